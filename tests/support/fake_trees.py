"""Small trees laid out like the public data sets, with frames that really move.

Every pair shifts one texture by whole pixels, so its truth is exact, and a network can learn it.
`size` is (height, width). Each builder returns `root`.
"""

import cv2
import numpy as np

from dicl_flow.files import encode_image, write_files, write_flow

SIZE = (64, 96)
EXACT = (cv2.IMWRITE_TIFF_COMPRESSION, 1)
"""OpenCV 4 writes floats as .tiff with a lossy compression, in which NaN becomes a number."""


def make_chairs(root, size=SIZE, num_pairs=4):
    """The last pair is for validation, the others for training."""
    for number in range(1, num_pairs + 1):
        (image1, image2), flow = moving_frames(2, size, seed=number)
        write_image(root / "data" / f"{number:05d}_img1.ppm", image1)
        write_image(root / "data" / f"{number:05d}_img2.ppm", image2)
        write_truth(root / "data" / f"{number:05d}_flow.flo", flow)
    marks = "1\n" * (num_pairs - 1) + "2\n"
    (root / "FlyingChairs_train_val.txt").write_text(marks)
    return root


def make_things(root, size=SIZE, num_frames=3):
    """The subset: both splits, passes, views and directions."""
    sides = [(split, view) for split in ("train", "val") for view in ("left", "right")]
    for seed, (split, view) in enumerate(sides):
        frames, flow = moving_frames(num_frames, size, seed)
        for number, frame in enumerate(frames):
            for render_pass in ("clean", "final"):
                images = root / split / f"image_{render_pass}" / view
                write_image(images / f"{number:07d}.png", frame)
        flows = root / split / "flow" / view
        for number in range(num_frames - 1):
            write_truth(flows / "into_future" / f"{number:07d}.flo", flow)
            write_truth(flows / "into_past" / f"{number + 1:07d}.flo", -flow)
    return root


def make_things_full(root, size=SIZE, num_frames=4):
    """The full data set: frames from 0006 on, with flow in both directions."""
    scenes = ("TRAIN/A/0000", "TEST/A/0000")
    sides = [(scene, *view) for scene in scenes for view in (("left", "L"), ("right", "R"))]
    for seed, (scene, view, letter) in enumerate(sides):
        frames, flow = moving_frames(num_frames, size, seed)
        for number, frame in enumerate(frames, start=6):
            for render_pass in ("clean", "final"):
                folder = root / f"frames_{render_pass}pass" / scene / view
                write_image(folder / f"{number:04d}.png", frame)
            # the published files reach beyond the clip at both ends
            future = f"into_future/{view}/OpticalFlowIntoFuture_{number:04d}_{letter}.pfm"
            past = f"into_past/{view}/OpticalFlowIntoPast_{number:04d}_{letter}.pfm"
            write_truth(root / "optical_flow" / scene / future, flow)
            write_truth(root / "optical_flow" / scene / past, -flow)
    return root


def make_sintel(root, size=SIZE, num_frames=3, scenes=("alley_1", "cave_4")):
    for seed, scene in enumerate(scenes):
        frames, flow = moving_frames(num_frames, size, seed)
        hidden = np.where(leaves_image(flow), 255, 0).astype(np.uint8)
        invalid = np.zeros(size, np.uint8)
        invalid[:2, :2] = 255
        for number, frame in enumerate(frames, start=1):
            name = f"{scene}/frame_{number:04d}"
            for part in ("training/clean", "training/final", "test/clean", "test/final"):
                write_image(root / part / f"{name}.png", frame)
            write_image(root / "training" / "invalid" / f"{name}.png", invalid)
            if number < num_frames:
                write_truth(root / "training" / "flow" / f"{name}.flo", flow)
                write_image(root / "training" / "occlusions" / f"{name}.png", hidden)
    return root


def make_kitti15(root, size=SIZE, num_pairs=2, frames_folder="image_2"):
    for number in range(num_pairs):
        frames, flow = moving_frames(2, size, seed=number)
        for frame, suffix in zip(frames, ("10", "11"), strict=True):
            for split in ("training", "testing"):
                write_image(root / split / frames_folder / f"{number:06d}_{suffix}.png", frame)
        seen = np.random.default_rng(number).random(size) < 0.5
        truth = np.where(seen[..., None], flow, np.nan)
        visible = np.where(leaves_image(flow)[..., None], np.nan, truth)
        write_truth(root / "training" / "flow_occ" / f"{number:06d}_10.png", truth)
        write_truth(root / "training" / "flow_noc" / f"{number:06d}_10.png", visible)
    return root


def make_kitti12(root, size=SIZE, num_pairs=2):
    return make_kitti15(root, size, num_pairs, frames_folder="colored_0")


def make_hd1k(root, size=SIZE, num_frames=3):
    """Two sequences; as published, the last frame has a flow file too."""
    for sequence in range(2):
        frames, flow = moving_frames(num_frames, size, seed=sequence)
        for number, frame in enumerate(frames):
            name = f"{sequence:06d}_{number:04d}.png"
            write_image(root / "hd1k_input" / "image_2" / name, frame)
            write_truth(root / "hd1k_flow_gt" / "flow_occ" / name, flow)
    return root


def make_middlebury(root, size=SIZE, scenes=("RubberWhale", "Venus")):
    for seed, scene in enumerate(scenes):
        frames, flow = moving_frames(2, size, seed)
        for frame, number in zip(frames, (10, 11), strict=True):
            write_image(root / "other-data" / scene / f"frame{number}.png", frame)
        write_truth(root / "other-gt-flow" / scene / "flow10.flo", flow)
    return root


def make_stereo(root, size=SIZE, scenes=("Motorcycle", "Piano")):
    """The first scene has its disparity as .npy, the others as .pfm."""
    for seed, scene in enumerate(scenes):
        (left, right), _ = moving_frames(2, size, seed, motion=(-4, 0))
        write_image(root / scene / "im0.png", left)
        write_image(root / scene / "im1.png", right)
        disparity = np.full(size, 4, np.float32)
        disparity[0, 0] = np.inf  # how Middlebury marks unknown
        if seed == 0:
            np.save(root / scene / "disp0.npy", disparity)
        else:
            header = f"Pf\n{size[1]} {size[0]}\n-1\n".encode()
            (root / scene / "disp0.pfm").write_bytes(header + disparity[::-1].tobytes())
    return root


def make_own_pairs(root, size=SIZE, num_pairs=2):
    """NAME_img1.png, NAME_img2.png and NAME_flow.flo."""
    for number in range(num_pairs):
        (image1, image2), flow = moving_frames(2, size, seed=number)
        write_image(root / f"pair{number}_img1.png", image1)
        write_image(root / f"pair{number}_img2.png", image2)
        write_truth(root / f"pair{number}_flow.flo", flow)
    return root


def make_own_clip(root, size=SIZE, num_frames=3, truth="{}.flo"):
    """frame_9.png, frame_10.png, …; the last has no flow file. `truth` None: no flow at all."""
    frames, flow = moving_frames(num_frames, size, seed=0)
    for number, frame in enumerate(frames, start=9):
        write_image(root / f"frame_{number}.png", frame)
        if truth is not None and number < 8 + num_frames:
            write_truth(root / truth.format(f"frame_{number}"), flow)
    return root


MAKERS = {
    "chairs": make_chairs,
    "things-clean": make_things,
    "things-final": make_things_full,
    "sintel-clean": make_sintel,
    "sintel-final": make_sintel,
    "kitti12": make_kitti12,
    "kitti15": make_kitti15,
    "hd1k": make_hd1k,
    "middlebury": make_middlebury,
    "stereo": make_stereo,
    "pairs": make_own_pairs,
}
"""A builder for each name of a data set."""


def moving_frames(num_frames, size, seed=0, motion=None):
    """(frames, flow): what is at x in one frame is at x + motion in the next."""
    height, width = size
    generator = np.random.default_rng(seed)
    if motion is None:
        motion = tuple(int(step) for step in generator.integers(1, 5, 2))
    margin = num_frames * max(map(abs, motion))
    texture = make_texture(height + 2 * margin, width + 2 * margin, generator)
    frames = []
    for number in range(num_frames):
        left, top = margin - number * motion[0], margin - number * motion[1]
        frames.append(texture[top : top + height, left : left + width])
    return frames, np.broadcast_to(np.float32(motion), (height, width, 2))


def make_texture(height, width, generator):
    """(height, width, 3) uint8: noise at several scales, so that every level can match it."""
    layers = []
    for cell in (2, 8, 32):
        noise = generator.random((height // cell + 2, width // cell + 2, 3), np.float32)
        layers.append(cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC))
    return np.rint(np.clip(np.mean(layers, 0), 0, 1) * 255).astype(np.uint8)


def leaves_image(flow):
    """(H, W) bool: where the flow leads out of the image."""
    height, width = flow.shape[:2]
    x, y = np.meshgrid(np.arange(width) + flow[0, 0, 0], np.arange(height) + flow[0, 0, 1])
    return (x < 0) | (x >= width) | (y < 0) | (y >= height)


def write_image(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_files({path: encode_image(path, image)})


def write_truth(path, flow):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_flow(path, flow)
