"""Shaky clips of a known camera become steady; points are exact, or found by the network."""

import csv
import json
from dataclasses import replace
from itertools import pairwise

import av
import cv2
import numpy as np
import pytest
import torch
from clips import read_video, write_images, write_video

from dicl_flow import InputError
from dicl_flow.files import Plate, encode_plate
from dicl_flow.tracking import camera, stabilize
from dicl_flow.tracking.camera import CameraMotion, CameraPath, calm_path, largest_crop, smoothed
from dicl_flow.tracking.stabilize import Steadying, Warper, follow, plan, run
from dicl_flow.tracking.tracks import Positions
from dicl_flow.video import Checkpoint, Frame

HEIGHT, WIDTH = SIZE = (96, 128)
MIDDLE = np.array([(WIDTH - 1) / 2, (HEIGHT - 1) / 2])
OBJECT = 22.0  # px, the radius of a disc that moves by itself


def texture(seed=0, size=(400, 500)):
    """A picture with structure of all sizes, (H, W, 3) uint8."""
    random = np.random.default_rng(seed)
    picture = np.zeros((*size, 3), np.float32)
    for blur in (2, 6, 20):
        noise = random.standard_normal((*size, 3)).astype(np.float32)
        picture += cv2.GaussianBlur(noise, (0, 0), blur) * blur
    return cv2.normalize(picture, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)


def similarity(dx, dy, angle=0.0, zoom=1.0):
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.array([[*turn[0], dx], [*turn[1], dy], [0, 0, 1]])


class Scene:
    """What a camera sees: frame t shows world point X at `cameras[t]` X; a disc moves besides."""

    def __init__(self, cameras, seed=0, speed=1.5):
        self.cameras, self.speed, self.picture = cameras, speed, texture(seed)

    def disc(self, t):
        """The place of the disc in the world."""
        return np.array([-30 + self.speed * t, -8.0])

    def frame(self, t):
        place = np.array([self.picture.shape[1] / 2, self.picture.shape[0] / 2])
        world = self.picture.copy()
        x, y = np.rint(self.disc(t) + place).astype(int).tolist()
        cv2.circle(world, (x, y), round(OBJECT), (250, 40, 40), -1)
        to_frame = shift(MIDDLE) @ self.cameras[t] @ shift(-place)
        return cv2.warpPerspective(world, to_frame, (WIDTH, HEIGHT), flags=cv2.INTER_LINEAR)

    def frames(self):
        return [Frame(t, f"frame_{t:06d}", t / 25, self.frame(t)) for t in range(len(self.cameras))]

    def move(self, points, start, end):
        """Where points of frame `start` are in frame `end`, and whether one can see them."""
        world = transform(np.linalg.inv(self.cameras[start]), points - MIDDLE)
        disc = np.linalg.norm(world - self.disc(start), axis=1) < OBJECT
        world[disc] += self.disc(end) - self.disc(start)
        hidden = ~disc & (np.linalg.norm(world - self.disc(end), axis=1) < OBJECT)
        moved = transform(self.cameras[end], world) + MIDDLE
        inside = ((moved > 0) & (moved < [WIDTH - 1, HEIGHT - 1])).all(1)
        return moved, inside & ~hidden


def shift(by):
    return similarity(*by)


def transform(matrix, points):
    moved = np.c_[points, np.ones(len(points))] @ matrix.T
    return moved[:, :2] / moved[:, 2:]


class ExactTracker:
    """Stands in for a `Tracker`: knows the scene; `noise` px are added, `cuts` are known."""

    def __init__(self, scene, reference, noise=0.1, cuts=()):
        self.scene, self.reference, self.noise, self.cuts = scene, reference, noise, cuts
        self.cut, self.random = False, np.random.default_rng(reference.frame)

    def push(self, frame, number=None):
        assert frame.shape == (HEIGHT, WIDTH, 3)
        self.cut = number in self.cuts and number > self.reference.frame
        points, visible = self.scene.move(self.reference.points, self.reference.frame, number)
        points = points + self.noise * self.random.standard_normal(points.shape)
        count = len(points)
        error, interval = torch.full((count,), 0.3), torch.ones(count, dtype=torch.int16)
        return [Positions(torch.tensor(points), error, torch.tensor(visible), interval)]


def exact(scene, **how):
    return lambda reference: ExactTracker(scene, reference, **how)


def shaky(count=40, seed=1, pan=0.0, size=2.5):
    """World to frame for each frame of a hand-held camera."""
    random = np.random.default_rng(seed)
    moves = random.normal(0, size, (count, 2))
    turns, zooms = random.normal(0, 0.01, count), np.exp(random.normal(0, 0.005, count))
    moves[0], turns[0], zooms[0] = 0, 0, 1
    steps = zip(moves, turns, zooms, strict=True)
    return [similarity(x - pan * t, y, a, z) for t, ((x, y), a, z) in enumerate(steps)]


def true_steps(cameras):
    return [np.eye(3), *(after @ np.linalg.inv(before) for before, after in pairwise(cameras))]


def largest_error(steps, truth):
    """px: how far the corners of a frame are from where they should be, at most."""
    corners = np.array([(x, y) for x in (-60, 60) for y in (-45, 45)])
    pairs = zip(steps, truth, strict=True)
    return max(np.abs(transform(a, corners) - transform(b, corners)).max() for a, b in pairs)


def path_of(cameras, begins=()):
    steps, begin = np.array(true_steps(cameras)), np.zeros(len(cameras), bool)
    begin[[0, *begins]] = True
    steps[begin] = np.eye(3)
    return CameraPath(SIZE, np.arange(len(cameras)), steps, np.full(len(cameras), 50), begin)


def shake(places):
    """Mean change of the steps of points from frame to frame, in px: 0 for an even motion."""
    return np.abs(np.diff(places, 2, axis=0)).mean()


def seen_places(warps, cameras):
    """(T, N, 2): where points of the world are in the output."""
    world = np.array([(-20, -15), (0, 0), (25, 12)])
    frames = [transform(camera, world) + MIDDLE for camera in cameras]
    pairs = zip(warps, frames, strict=True)
    return np.array([transform(np.linalg.inv(warp), place) for warp, place in pairs])


@pytest.mark.parametrize("motion", ["similarity", "homography"])
def test_the_path_is_found_beside_a_thing_that_moves_by_itself(motion):
    scene = Scene(shaky(pan=0.5))
    path = follow(scene.frames(), exact(scene), Steadying(motion=motion))
    assert path.points[1:].min() > 100
    assert path.num_unknown == 0
    assert path.num_scenes == 1
    limit = {"similarity": 0.15, "homography": 0.5}[motion]  # px; 0.1 px of noise in each point
    assert largest_error(path.steps, true_steps(scene.cameras)) < limit


def test_the_disc_is_left_out_because_it_leaves_the_rest_over_longer_intervals():
    """It moves 0.7 px a frame, within the tolerance from one frame to the next."""
    scene = Scene([np.eye(3)] * 12, speed=0.7)
    path = follow(scene.frames(), exact(scene, noise=0), Steadying())
    assert largest_error(path.steps[9:], [np.eye(3)] * 3) < 1e-6
    assert largest_error(path.steps[1:2], [np.eye(3)]) > 1e-3  # nothing tells them apart yet


def test_a_shift_is_found_with_many_others():
    random = np.random.default_rng(0)
    before = random.uniform(-60, 60, (100, 2))
    after = before + np.array([3, -2])
    after[:45] += random.uniform(5, 30, (45, 2))
    found = camera.fit(before, after, "shift", 1.0)
    np.testing.assert_allclose(found.matrix, shift((3, -2)), atol=1e-9)
    assert found.agree.tolist() == [False] * 45 + [True] * 55


def test_the_camera_goes_on_as_before_where_too_few_points_agree():
    points = np.random.default_rng(0).uniform(-60, 60, (80, 2))
    motion = CameraMotion(SIZE, "similarity", 1.0)
    motion.seed(points)
    for t in range(1, 4):
        motion.add(points + np.array([2 * t, 0]), np.ones(80, bool))
    blank = motion.add(points, np.zeros(80, bool))
    assert blank.points == 0
    np.testing.assert_allclose(blank.matrix, shift((2, 0)), atol=1e-9)
    scattered = motion.add(np.random.default_rng(1).uniform(-60, 60, (80, 2)), np.ones(80, bool))
    assert scattered.points == 0
    motion.begin_scene()
    assert motion.add(points, np.zeros(80, bool)).matrix.tolist() == np.eye(3).tolist()


def test_new_points_on_a_large_thing_are_known_by_those_that_were_followed_before():
    """It covers 60 of 100 new points; those before, more of them beside it, have shown that."""
    x, y = (side.ravel() for side in np.meshgrid(np.arange(-45, 55, 10), np.arange(-45, 55, 10)))
    points, moved = np.column_stack([x, y]).astype(float), np.array([6.0, 0])
    beside = points[:, 0] < -10
    before = np.concatenate([points[beside] + 2, points[beside] - 2, points[~beside]])
    on_thing = np.repeat([False, True], [80, 60])
    motion = CameraMotion(SIZE, "similarity", 1.0)
    motion.seed(before - on_thing[:, None] * moved)
    assert motion.add(before, np.ones(140, bool)).points == 80
    motion.seed(points)
    step = motion.add(points + ~beside[:, None] * moved, np.ones(100, bool))
    assert step.points == 40
    np.testing.assert_allclose(step.matrix, np.eye(3), atol=1e-9)
    motion.begin_scene()  # of other scenes, nothing is known
    motion.seed(points)
    assert motion.add(points + ~beside[:, None] * moved, np.ones(100, bool)).points == 60


def seeds_of(scene, how):
    """The path, and the frames at which points were seeded."""
    seeds = []

    def begin(reference):
        seeds.append(reference.frame)
        return ExactTracker(scene, reference)

    return follow(scene.frames(), begin, how), seeds


def test_points_are_seeded_again_before_they_run_out():
    """The camera pans by two and a half frames."""
    scene = Scene([shift((-4.0 * t + 160, 0)) for t in range(80)])
    for lock in (False, True):
        path, seeds = seeds_of(scene, Steadying(lock=lock))
        assert path.num_unknown == 0
        assert largest_error(path.steps, true_steps(scene.cameras)) < 0.3
        assert max(np.diff(seeds)) <= WIDTH / 2 / 4 + 1


def test_points_of_a_still_camera_are_kept_only_if_it_is_to_be_locked():
    still = Scene([np.eye(3)] * 40)
    assert seeds_of(still, Steadying())[1] == [0, stabilize.SEGMENT, 2 * stabilize.SEGMENT]
    assert seeds_of(still, Steadying(lock=True))[1] == [0]


def test_a_camera_that_is_held_still_does_not_drift():
    scene = Scene(shaky(60, size=1.0), speed=0)
    ends = []
    for lock in (False, True):
        path = follow(scene.frames(), exact(scene, noise=0.2), Steadying(lock=lock))
        ends.append(largest_error(camera.held(path.steps)[-1:], scene.cameras[-1:]))
    assert ends[1] < 0.3
    assert ends[1] < ends[0]


def test_a_smaller_copy_gives_motion_in_px_of_the_frame():
    scene = Scene(shaky(12), speed=4)

    class Small(ExactTracker):
        def push(self, frame, number=None):
            assert frame.shape == (HEIGHT // 2, WIDTH // 2, 3)
            large = type(self.reference)(self.reference.frame, 2 * self.reference.points + 0.5)
            whole = ExactTracker(scene, large)
            (found,) = whole.push(np.empty((HEIGHT, WIDTH, 3)), number)
            return [found._replace(points=(found.points - 0.5) / 2)]

    path = follow(scene.frames(), lambda reference: Small(scene, reference), Steadying(scale=0.5))
    assert path.size == SIZE
    assert largest_error(path.steps, true_steps(scene.cameras)) < 0.2


def test_smoothing_calms_a_shaky_pan_and_leaves_an_even_one():
    cameras = shaky(80, pan=1.0)
    path = path_of(cameras)
    found = calm_path(path, 8.0)
    before = np.array([transform(c, np.array([(-20, -15), (0, 0), (25, 12)])) for c in cameras])
    assert shake(seen_places(found.warps, cameras)) < shake(before) / 15
    even = path_of([shift((-1.5 * t, 0.5 * t)) for t in range(30)])
    np.testing.assert_allclose(smoothed(even.steps, 5.0), np.tile(np.eye(3), (30, 1, 1)), atol=1e-9)


def test_smoothing_of_a_turn_keeps_the_size():
    turning = path_of([similarity(0, 0, 0.1 * t + 0.02 * (t % 2)) for t in range(40)])
    determinants = np.linalg.det(smoothed(turning.steps, 10.0)[:, :2, :2])
    np.testing.assert_allclose(determinants, 1, atol=1e-9)


def test_a_locked_camera_shows_the_first_frame_of_each_scene():
    cameras = shaky(20, size=1.0)
    found = calm_path(path_of(cameras, begins=[10]), 5.0, lock=True, crop=False)
    places = seen_places(found.warps, cameras)
    assert np.abs(places[:10] - places[0]).max() < 1e-6
    assert np.abs(places[10:] - places[10]).max() < 1e-6
    np.testing.assert_allclose(found.warps[[0, 10]], [np.eye(3)] * 2, atol=1e-12)


@pytest.mark.parametrize("perspective", [0, 2e-4])
def test_the_crop_is_the_largest_that_shows_no_border(perspective):
    random = np.random.default_rng(4)
    warps = np.array(shaky(50, seed=7))
    warps[:, 2, :2] = random.normal(0, perspective, (50, 2))
    found = largest_crop(warps, SIZE)
    half = MIDDLE * found.share
    corners = found.middle + np.array([(x, y) for x in (-1, 1) for y in (-1, 1)]) * half
    reached = np.abs([transform(warp, corners) for warp in warps]) / MIDDLE
    assert 1 - 1e-3 < reached.max() <= 1 + 1e-9
    centred = min(
        1 / np.abs(transform(w, c[None])[0] / MIDDLE).max()
        for w in warps
        for c in np.array([(x, y) for x in (-1, 1) for y in (-1, 1)]) * MIDDLE
    )
    assert found.share >= 0.98 * min(1, centred)


def test_the_crop_moves_off_the_middle_if_that_keeps_more():
    found = largest_crop(np.array([np.eye(3), shift((10, 0))]), SIZE)
    assert found.share == pytest.approx(1 - 5 / MIDDLE[0], abs=3e-4)
    assert found.middle[0] == pytest.approx(-5, abs=0.05)


@pytest.mark.parametrize("size", [(1, 64), (64, 1), (1, 1)])
def test_frames_of_one_row_or_column_keep_their_other_side(size):
    path = path_of([shift((0.1 * (t % 2), 0.05 * (t % 2))) for t in range(6)])
    found = calm_path(replace(path, size=size), 2.0)
    assert camera.LEAST_CROP < found.share <= 1
    assert not found.reduced


@pytest.mark.parametrize("lock", [False, True])
def test_too_large_a_crop_reduces_the_smoothing_of_its_scene_only(lock):
    calm, wild = shaky(40, size=0.5), shaky(40, size=14.0)
    found = calm_path(path_of([*calm, *wild], begins=[40]), 10.0, lock=lock)
    assert list(found.reduced) == [40]
    assert found.reduced[40] < 10
    assert camera.LEAST_CROP <= found.share < 1
    whole = np.array([(0, 0), (WIDTH - 1, 0), (0, HEIGHT - 1), (WIDTH - 1, HEIGHT - 1)])
    reached = np.array([transform(warp, whole) for warp in found.warps])
    assert (reached >= -1e-6).all()
    assert (reached <= whole[-1] + 1e-6).all()


def test_a_cut_begins_the_path_anew():
    first, second = Scene(shaky(14)), Scene(shaky(14, seed=9), seed=5)
    frames = [
        *first.frames(),
        *(f.__class__(f.number + 14, f.name, f.time, f.image) for f in second.frames()),
    ]
    both = Scene([*first.cameras, *second.cameras])
    path = follow(frames, exact(both, cuts=[14]), Steadying())
    assert np.flatnonzero(path.begins).tolist() == [0, 14]
    assert path.steps[14].tolist() == np.eye(3).tolist()
    alone = follow(second.frames(), exact(second), Steadying())
    found = smoothed(path.steps[14:], 5.0)
    assert largest_error(found, smoothed(alone.steps, 5.0)) < 0.3


def test_the_path_is_read_as_it_was_saved(tmp_path):
    path = path_of(shaky(5))
    (tmp_path / "path.npz").write_bytes(path.encode())
    again = CameraPath.read(tmp_path / "path.npz")
    assert again.size == path.size
    for name in ("numbers", "steps", "points", "begins"):
        np.testing.assert_array_equal(getattr(again, name), getattr(path, name))


def test_the_table_says_how_the_background_moves():
    path = path_of([np.eye(3), similarity(3, -2, np.radians(5), 1.25)])
    rows = list(csv.DictReader(path.table().splitlines()))
    assert [row["frame"] for row in rows] == ["0", "1"]
    values = [float(rows[1][name]) for name in ("dx", "dy", "angle", "zoom", "points")]
    np.testing.assert_allclose(values, [3, -2, 5, 1.25, 50], atol=1e-4)


def made(scene, border, **how):
    """The pictures of a scene whose path is known."""
    path = path_of(scene.cameras)
    found = calm_path(path, 8.0, crop=border == "crop", **how)
    warper = Warper(path, found, border)
    return [warper(frame.image) for frame in scene.frames()], found


def test_cropped_pictures_are_steady_and_show_no_border():
    scene = Scene(shaky(30), speed=0)
    pictures, found = made(scene, "crop", lock=True)
    assert found.share < 1
    before, after = (
        np.mean(
            [np.abs(a[8:-8, 8:-8].astype(float) - b[8:-8, 8:-8]).mean() for a, b in pairwise(clip)]
        )
        for clip in ([frame.image for frame in scene.frames()], pictures)
    )
    assert after < before / 8
    whole = np.ones((HEIGHT, WIDTH), np.uint8)
    assert all(stabilize.shown(whole, warp).all() for warp in found.warps)


def test_a_border_is_black_or_filled_from_frames_before():
    """The camera moves away from the first frame, which it is held at."""
    scene = Scene([shift((-1.5 * t, 0)) for t in range(12)], speed=0)
    first = scene.frame(0).astype(float)
    errors = {}
    for border in ("black", "fill"):
        pictures, _ = made(scene, border, lock=True)
        assert all(picture.shape == (HEIGHT, WIDTH, 3) for picture in pictures)
        errors[border] = np.abs(pictures[-1][:, :14] - first[:, :14]).mean()
        assert np.abs(pictures[-1][:, 24:-4] - first[:, 24:-4]).mean() < 8
    assert errors["black"] > 60
    assert errors["fill"] < 12


@pytest.mark.parametrize("depth", [np.uint16, np.float32])
def test_depth_is_kept(depth):
    picture = texture()[:HEIGHT, :WIDTH].astype(depth) * (200 if depth == np.uint16 else 0.01)
    for border in stabilize.BORDERS:
        path = path_of(shaky(3))
        warper = Warper(path, calm_path(path, 2.0), border)
        pictures = [warper(picture) for _ in range(3)]
        assert {p.dtype for p in pictures} == {np.dtype(depth)}
        assert max(p.max() for p in pictures) > 0.9 * picture.max()


def clip_of(tmp_path, scene, name="shaky.mkv"):
    return write_video(tmp_path / name, [frame.image for frame in scene.frames()], rate=25)


def test_a_whole_run_writes_a_video_of_the_same_size_and_length(tmp_path):
    scene = Scene(shaky(20))
    job = plan(
        clip_of(tmp_path, scene),
        tmp_path / "steady.mp4",
        Steadying(smooth=0.4),
        table=tmp_path / "path.csv",
    )
    done = run(job, exact(scene), Checkpoint(job.output, {}))
    assert done["written"] == [tmp_path / "steady.mp4", tmp_path / "path.csv"]
    assert done["frames"] == 20
    assert done["frames_of_unknown_motion"] == 0
    assert 0.8 <= done["kept_share"] < 1
    pictures = read_video(tmp_path / "steady.mp4")
    assert len(pictures) == 20
    assert pictures[0][0].shape == (HEIGHT, WIDTH, 3)
    assert pictures[-1][1] == pytest.approx(19 / 25, abs=1e-3)
    assert not (tmp_path / "steady.mp4.parts").exists()
    assert len((tmp_path / "path.csv").read_text().splitlines()) == 21


def test_a_run_that_is_stopped_while_it_writes_keeps_its_path(tmp_path):
    scene = Scene(shaky(12))
    clip = clip_of(tmp_path, scene)

    def go(name, begin, watch=lambda what, done: True):
        job = plan(clip, tmp_path / name, Steadying())
        return run(job, begin, Checkpoint(job.output, {"same": 1}), watch)

    def no_tracker(reference):
        raise AssertionError("the path was saved")

    assert go("a.mkv", exact(scene), lambda what, done: what == "follow") is None
    assert not (tmp_path / "a.mkv").exists()
    assert go("a.mkv", no_tracker)["frames"] == 12
    assert go("b.mkv", exact(scene), lambda what, done: what == "write") is None
    assert not (tmp_path / "b.mkv.parts").exists()
    assert go("b.mkv", exact(scene))["frames"] == 12
    a, b = ((tmp_path / name).read_bytes() for name in ("a.mkv", "b.mkv"))
    assert len(a) == len(b)


def test_images_keep_their_names_and_depth(tmp_path):
    scene = Scene(shaky(5))
    pictures = [frame.image.astype(np.uint16) * 257 for frame in scene.frames()]
    write_images(tmp_path / "in", pictures)
    job = plan(tmp_path / "in", tmp_path / "out", Steadying())
    run(job, exact(scene), Checkpoint(job.output, {}))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"shot_{number}.png" for number in range(5)
    ]
    assert cv2.imread(str(tmp_path / "out/shot_3.png"), cv2.IMREAD_UNCHANGED).dtype == np.uint16


def test_frames_of_another_depth_are_left_out_like_lost_ones(tmp_path):
    """Points are followed in 8 bits, where such frames are alike."""
    scene = Scene(shaky(4))
    pictures = [frame.image.astype(np.uint16) * 257 for frame in scene.frames()]
    write_images(tmp_path / "in", [*pictures[:2], scene.frame(2), pictures[3]])
    skipping = stabilize.Selection(on_error="skip")
    job = plan(tmp_path / "in", tmp_path / "out", Steadying(), selection=skipping)
    assert run(job, exact(scene), Checkpoint(job.output, {}))["frames"] == 3
    assert not (tmp_path / "out/shot_2.png").exists()


def test_ten_bits_colour_tags_and_sound_are_kept(tmp_path):
    scene, clip = Scene(shaky(4)), tmp_path / "film.mov"
    tags = {"color_primaries": 9, "color_trc": 16, "colorspace": 9, "color_range": 1}
    with av.open(str(clip), "w") as container:
        stream = container.add_stream("prores_ks", rate=25)
        audio = container.add_stream("pcm_s16le", rate=48000, layout="mono")
        stream.height, stream.width, stream.pix_fmt = HEIGHT, WIDTH, "yuv422p10le"
        for name, value in tags.items():
            setattr(stream.codec_context, name, value)
        for number, frame in enumerate(scene.frames()):
            picture = av.VideoFrame.from_ndarray(frame.image, format="rgb24")
            container.mux(stream.encode(picture.reformat(format="yuv422p10le", dst_colorspace=9)))
            wave = np.full((1, 1920), 99 * number, np.int16)
            sound = av.AudioFrame.from_ndarray(wave, format="s16", layout="mono")
            sound.sample_rate, sound.pts = 48000, 1920 * number
            container.mux(audio.encode(sound))
        container.mux(stream.encode())
    job = plan(clip, tmp_path / "steady.mov", Steadying())
    assert run(job, exact(scene), Checkpoint(job.output, {}))["sound"] == "kept"
    with av.open(str(job.output)) as opened:
        context = opened.streams.video[0].codec_context
        assert (context.name, context.pix_fmt) == ("prores", "yuv422p10le")
        assert {name: int(getattr(context, name)) for name in tags} == tags
        assert len(opened.streams.audio) == 1


def test_plates_become_prores_in_a_mov(run, tmp_path, monkeypatch, tiny_weights):
    pytest.importorskip("OpenEXR")
    scene = Scene(shaky(4))
    (tmp_path / "in").mkdir()
    for frame in scene.frames():
        pixels = np.dstack([frame.image / np.float32(64), np.ones((HEIGHT, WIDTH), np.float32)])
        path = tmp_path / "in" / f"{frame.name}.exr"
        path.write_bytes(encode_plate(path, Plate(pixels, "linear", "premultiplied")))
    monkeypatch.setattr(stabilize, "trackers", lambda estimator: exact(scene))
    words = ("-o", tmp_path / "s.mov", "-w", tiny_weights, "--json")
    code, out, _ = run("stabilize", tmp_path / "in", *words)
    assert code == 0
    assert json.loads(out)["alpha"] == "dropped: a video has none"
    assert json.loads(out)["compressed"].startswith("values above 1")
    with av.open(str(tmp_path / "s.mov")) as opened:
        context = opened.streams.video[0].codec_context
        assert (context.name, context.pix_fmt) == ("prores", "yuv422p10le")


def test_a_lost_frame_is_left_out(tmp_path):
    scene = Scene(shaky(6))
    write_images(tmp_path / "in", [frame.image for frame in scene.frames()])
    (tmp_path / "in/shot_3.png").write_text("no image")
    job = plan(tmp_path / "in", tmp_path / "out", Steadying())
    with pytest.raises(InputError, match="shot_3"):
        run(job, exact(scene), Checkpoint(job.output, {}))
    assert not (tmp_path / "out.parts").exists()
    skipping = stabilize.Selection(on_error="skip")
    job = plan(tmp_path / "in", tmp_path / "out", Steadying(), selection=skipping)
    assert run(job, exact(scene), Checkpoint(job.output, {}))["frames"] == 5
    assert not (tmp_path / "out/shot_3.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("stabilize one -o out", "a clip must have at least two frames"),
        ("stabilize one.mkv -o out.mp4", "a clip must have at least two frames"),
        ("stabilize two.mkv -o out.mp4 --start 9", "the start (frame 9) is past the end"),
        ("stabilize two -o out.mp4 --motion affine", "unknown --motion 'affine'; known: shift"),
        ("stabilize two -o out.mp4 --border mirror", "unknown --border 'mirror'"),
        ("stabilize two.mkv -o two.mkv", "two.mkv is the input as well"),
        ("stabilize two -o two", "two is the input as well"),
        ("stabilize two/*.png -o two", "two is the input as well"),
        ("stabilize two -o out.txt", "out.txt: a video must end in .mp4"),
        ("stabilize two -o out.mp4 --path path.txt", "path.txt: the path must be a .csv file"),
        ("stabilize two -o out.mp4 --smooth 0", "--smooth must be"),
        ("stabilize two -o out.mp4 --scale 2", "--scale must be"),
        ("stabilize two -o out --encoder libx264", "--encoder is for a video"),
        ("stabilize no.mp4 -o out.mp4", "no video, folder or camera no.mp4"),
        ("stabilize camera:0 -o out.mp4", "camera"),
    ],
)
def test_wrong_use_is_one_sentence(run, tmp_path, monkeypatch, tiny_weights, words, message):
    monkeypatch.chdir(tmp_path)
    frames = [frame.image for frame in Scene(shaky(2)).frames()]
    for name, some in (("one", frames[:1]), ("two", frames)):
        write_images(tmp_path / name, some)
        write_video(tmp_path / f"{name}.mkv", some)
    before = sorted(tmp_path.rglob("*"))
    code, out, errors = run(*words.split(), "-w", tiny_weights)
    assert (code, out) == (2, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_writes_nothing(run, tmp_path, tiny_weights):
    clip = clip_of(tmp_path, Scene(shaky(6)))
    code, out, _ = run(
        "stabilize", clip, "-o", tmp_path / "a.mp4", "-w", tiny_weights, "--dry-run", "--json"
    )
    planned = json.loads(out)
    assert code == 0
    assert (planned["frames"], planned["size"]) == (6, "128x96")
    assert planned["smoothing"] == "25 frames"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shaky.mkv"]


@pytest.mark.heavy
def test_the_command_makes_a_clip_steady_with_the_packaged_network(run, tmp_path):
    cameras = shaky(4, size=2.0)
    clip = clip_of(tmp_path, Scene(cameras, speed=0))
    words = ("stabilize", clip, "-o", tmp_path / "steady.mkv", "--lock", "--quality", "fast")
    table = tmp_path / "path.csv"
    code, out, _ = run(*words, "--path", table, "--json")
    assert code == 0
    done = json.loads(out)
    assert (done["frames"], done["frames_of_unknown_motion"], done["scenes"]) == (4, 0, 1)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    found = np.array([(float(row["dx"]), float(row["dy"])) for row in rows])
    truth = np.array(true_steps(cameras))[:, :2, 2]
    assert np.abs(found - truth).max() < 0.5
    assert np.abs(truth).max() > 2
    before, after = (
        np.mean([np.abs(a - b).mean() for a, b in pairwise(np.array(pictures, float))])
        for pictures in ([p for p, _ in read_video(clip)], [p for p, _ in read_video(words[3])])
    )
    assert after < before / 3
    code, _, errors = run(*words, "--path", table)
    assert code == 0
    assert "already finished" in errors
