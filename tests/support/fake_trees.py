"""Small trees laid out like the public data sets, with frames that really move.

Every pair shifts one texture by whole pixels, so its truth is exact, and a network can learn it.
`size` is (height, width). Each builder returns `root`.
"""

import cv2
import numpy as np
import pytest

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


def make_kitti_stereo(root, size=SIZE, num_pairs=2, year=2015):
    left, right, end = (
        ("image_2", "image_3", "_0") if year == 2015 else ("colored_0", "colored_1", "")
    )
    for number in range(num_pairs):
        frames, flow = moving_frames(2, size, seed=number, motion=(-3, 0))
        seen = np.random.default_rng(number).random(size) < 0.5
        for folder, frame in zip((left, right), frames, strict=True):
            write_image(root / "training" / folder / f"{number:06d}_10.png", frame)
        known = {"occ": seen, "noc": seen & ~leaves_image(flow)}
        for word, where in known.items():
            path = root / "training" / f"disp_{word}{end}" / f"{number:06d}_10.png"
            write_png(path, np.where(where, 3 * 256, 0).astype(np.uint16))
    return root


def make_kitti12_stereo(root, size=SIZE, num_pairs=2):
    return make_kitti_stereo(root, size, num_pairs, year=2012)


def make_sintel_stereo(root, size=SIZE, scenes=("alley_1", "cave_4")):
    """Where a pixel is hidden is said by `outofframe`, and of one pixel by `occlusions`."""
    for seed, scene in enumerate(scenes):
        frames, flow = moving_frames(2, size, seed, motion=(-3, 0))
        masks = {"outofframe": leaves_image(flow), "occlusions": np.zeros(size, bool)}
        masks["occlusions"][-1, -1] = True
        split, name = root / "training", f"{scene}/frame_0001.png"
        for eye, frame in zip(("left", "right"), frames, strict=True):
            for render_pass in ("clean", "final"):
                write_image(split / f"{render_pass}_{eye}" / name, frame)
        for folder, mask in masks.items():
            write_image(split / folder / name, np.where(mask, 255, 0).astype(np.uint8))
        disparity = np.zeros((*size, 3), np.uint8)
        disparity[..., 1] = 3 * 2**6  # red would have steps of 4 px
        write_image(split / "disparities" / name, disparity)
    return root


def make_spring(root, size=SIZE, num_frames=2):
    """A scene for training, with maps, and one for tests."""
    pytest.importorskip("h5py", reason="h5py is not installed")
    for seed, eye in enumerate(("left", "right")):
        frames, flow = moving_frames(num_frames, size, seed)
        for number, frame in enumerate(frames, start=1):
            for scene in ("train/0001", "test/0003"):
                write_image(root / scene / f"frame_{eye}" / f"frame_{eye}_{number:04d}.png", frame)
        for direction, number, step in spring_steps(num_frames):
            write_spring_truth(root / "train/0001", direction, eye, number, step * flow)
    return root


def spring_steps(num_frames):
    """Yield (direction, number of the frame, 1 or -1)."""
    for number in range(1, num_frames):
        yield "FW", number, 1
        yield "BW", number + 1, -1


def write_spring_truth(scene, direction, eye, number, flow):
    """The truth and its maps, each at the size that the publishers' have."""
    fine = flow.repeat(2, 0).repeat(2, 1)
    folder = f"flow_{direction}_{eye}"
    write_truth(scene / folder / f"{folder}_{number:04d}.flo5", fine)
    for kind, size in (("detailmap_flow", 1), ("matchmap_flow", 1), ("rigidmap", 2), ("skymap", 2)):
        height, width = size * flow.shape[0], size * flow.shape[1]
        picture = np.zeros((height, width, 3), np.uint8)
        picture[: height // 4] = 255 if kind != "matchmap_flow" else (255, 0, 0)
        end = eye if kind == "skymap" else f"{direction}_{eye}"
        write_image(scene / "maps" / f"{kind}_{end}" / f"{kind}_{end}_{number:04d}.png", picture)


def make_tartanair(root, size=SIZE, num_frames=3):
    """One pixel has moved itself, one is hidden by itself, and some leave the frame."""
    for seed, level in enumerate(("Easy", "Hard")):
        frames, flow = moving_frames(num_frames, size, seed)
        place = root / "abandonedfactory" / level / "P000"
        codes = np.where(leaves_image(flow), 100, 0).astype(np.uint8)
        codes[0, :2] = 1, 10
        for number, frame in enumerate(frames):
            write_image(place / "image_left" / f"{number:06d}_left.png", frame)
        for number in range(num_frames - 1):
            path = place / "flow" / f"{number:06d}_{number + 1:06d}_flow.npy"
            write_truth(path, flow)
            np.save(path.with_name(path.name.replace("flow", "mask")), codes)
    return root


def make_virtual_kitti(root, size=SIZE, num_frames=2):
    """A row of sky; the frames are stored without loss, whatever their names say."""
    scale = 2 / 65535 * (np.array(size)[::-1] - 1)
    for seed, camera in enumerate(("Camera_0", "Camera_1")):
        frames, flow = moving_frames(num_frames, size, seed)
        place = root / "Scene01" / "clone" / "frames"
        for number, frame in enumerate(frames):
            path = place / "rgb" / camera / f"rgb_{number:05d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_files({path: encode_image("x.png", frame)})
        for direction, number, step in spring_steps(num_frames):
            word, start = ("flow", "forward") if direction == "FW" else ("backwardFlow", "backward")
            raw = np.full((*size, 3), 65535, np.uint16)  # blue, green, red
            raw[..., 2:0:-1] = np.rint((step * flow + np.array(size)[::-1] - 1) / scale)
            raw[0] = 0
            write_png(place / f"{start}Flow" / camera / f"{word}_{number - 1:05d}.png", raw)
    return root


def make_viper(root, size=SIZE, num_frames=3):
    """Frames are .png in one split and .jpg (by name only) in the other; one vector is unknown."""
    for seed, (split, suffix) in enumerate((("train", ".png"), ("val", ".jpg"))):
        frames, flow = moving_frames(num_frames, size, seed)
        u, v = np.moveaxis(np.array(flow, np.float16), 2, 0)
        u[0, 0], v[0, 1] = np.inf, np.nan
        for number, frame in enumerate(frames, start=1):
            name = f"001/001_{number:05d}"
            path = root / split / "img" / f"{name}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_files({path: encode_image("x.png", frame)})
            path = root / split / "flow" / f"{name}.npz"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(path, u=u, v=v)
    return root


def make_monkaa(root, size=SIZE, num_frames=2, scene="a_rain_of_stones_x2"):
    for seed, (view, letter) in enumerate((("left", "L"), ("right", "R"))):
        frames, flow = moving_frames(num_frames, size, seed)
        for number, frame in enumerate(frames):
            for render_pass in ("clean", "final"):
                folder = root / f"frames_{render_pass}pass" / scene / view
                write_image(folder / f"{number:04d}.png", frame)
            for word, step in (("Future", 1), ("Past", -1)):  # beyond the clip as well
                file = f"into_{word.lower()}/{view}/OpticalFlowInto{word}_{number:04d}_{letter}.pfm"
                write_truth(root / "optical_flow" / scene / file, step * flow)
    return root


def make_driving(root, size=SIZE, num_frames=2):
    return make_monkaa(root, size, num_frames, "35mm_focallength/scene_forwards/slow")


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
    "kitti12-stereo": make_kitti12_stereo,
    "kitti15-stereo": make_kitti_stereo,
    "sintel-stereo-clean": make_sintel_stereo,
    "sintel-stereo-final": make_sintel_stereo,
    "spring": make_spring,
    "tartanair": make_tartanair,
    "vkitti2": make_virtual_kitti,
    "viper": make_viper,
    "monkaa-clean": make_monkaa,
    "monkaa-final": make_monkaa,
    "driving-clean": make_driving,
    "driving-final": make_driving,
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


def write_png(path, pixels):
    """Pixels in the order of OpenCV, blue first, 8 or 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(cv2.imencode(".png", pixels)[1]))


def write_truth(path, flow):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_flow(path, flow)
