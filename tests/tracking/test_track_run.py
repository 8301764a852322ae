"""A run of the tracker: forward, backward, outputs; a run that was stopped or killed goes on."""

from fractions import Fraction
from functools import partial

import av
import cv2
import fake_trees
import numpy as np
import pytest
from clips import read_video, write_images, write_video
from followers import KnownTracker

from dicl_flow import InputError, Tracker, load, read_flow
from dicl_flow.files.exr import decode_channels
from dicl_flow.tracking import progress
from dicl_flow.tracking.outputs import ERROR_CHANNEL, OverlayVideo, draw_tracks, point_radius
from dicl_flow.tracking.run import TrackOutputs, frames_back, run
from dicl_flow.tracking.task import dense_task, grid_queries, look_at, point_task
from dicl_flow.tracking.tracks import read_tracks
from dicl_flow.video import Checkpoint, Moment, Selection, open_source

SIZE = (48, 64)
FRAMES, _ = fake_trees.moving_frames(20, SIZE, motion=(3, 1))
QUERIES = np.float32([[5, 20, 20], [0, 10.5, 12], [5, 30, 25], [12, 40, 30]])


@pytest.fixture(autouse=True)
def tracker(monkeypatch):
    """A class that a test may change."""
    made = type("Tracker", (KnownTracker,), {"hidden": set(), "cuts": set(), "pushed": []})
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setattr(progress, "_SAVING", 1e9)
    return made


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    path = write_video(tmp_path_factory.mktemp("clip") / "clip.mkv", FRAMES)
    return look_at(open_source(str(path)), Selection())


def go(task, tracker, folder, **more):
    """Run a task that writes tracks and an overlay, or ST maps."""
    folder.mkdir(exist_ok=True)
    first = folder / ("maps" if task.dense else "t.npz")
    names = {"maps": first} if task.dense else {"files": [first, folder / "t.csv"]}
    video = partial(_overlay, folder / "o.mkv") if task.count else None
    with Checkpoint(first, {}) as checkpoint:
        return run(task, tracker, TrackOutputs(**names, video=video), checkpoint, **more)


def _overlay(path, parts):
    return OverlayVideo(path, parts, 10)


def contents(folder):
    """The bytes of all files, and the pictures of a video, whose container has an identity."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): [p.tobytes() for p, _ in read_video(path)]
        if path.suffix == ".mkv"
        else path.read_bytes()
        for path in files
    }


def test_points_are_followed_both_ways_and_stay_in_the_order_of_the_queries(
    clip, tracker, tmp_path
):
    tracker.hidden.add(8)
    written, summary = go(point_task(clip, QUERIES), tracker, tmp_path)
    assert [path.name for path in written] == ["t.npz", "t.csv", "o.mkv"]
    tracks = read_tracks(tmp_path / "t.npz")
    steps = np.arange(20)[None, :, None] - QUERIES[:, :1, None]
    np.testing.assert_allclose(tracks.points, QUERIES[:, None, 1:] + steps * [3, 1], atol=1e-4)
    np.testing.assert_array_equal(tracks.interval, steps[..., 0])
    np.testing.assert_array_equal(tracks.queries, QUERIES)
    assert not tracks.visible[:, 8].any()
    assert summary["visible_share"] == pytest.approx(19 / 20)
    np.testing.assert_allclose(tracks.times, np.arange(20) / 10)
    assert (tracks.size, tracks.first, tracks.stride) == (SIZE, 0, 1)
    assert tracker.pushed == [*range(20), *range(12, -1, -1)]
    assert len(read_video(tmp_path / "o.mkv")) == 20
    assert not (tmp_path / "t.npz.parts").exists()


def test_forward_only_leaves_the_frames_before_a_point_empty(clip, tracker, tmp_path):
    go(point_task(clip, QUERIES[:1], backward=False), tracker, tmp_path)
    tracks = read_tracks(tmp_path / "t.npz")
    assert np.isnan(tracks.points[0, :5]).all()
    assert not tracks.visible[0, :5].any()
    assert np.isfinite(tracks.points[0, 5:]).all()
    assert tracker.pushed == [*range(5, 20)]


def test_cuts_end_tracks_and_are_named_once_from_both_sides(clip, tracker, tmp_path):
    tracker.cuts |= {3, 15}
    _, summary = go(point_task(clip, QUERIES[:1]), tracker, tmp_path)
    tracks = read_tracks(tmp_path / "t.npz")
    assert tracks.cuts.tolist() == summary["cuts"] == [3, 15]
    assert np.isfinite(tracks.points[0, :, 0]).tolist() == [3 <= t < 15 for t in range(20)]


class KilledError(BaseException):
    pass


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_a_run_that_ended_at_any_frame_goes_on_to_the_same_bytes(
    clip, tracker, tmp_path, monkeypatch, dense, killed
):
    """Stopped, or killed: then it goes on from an earlier frame."""
    tracker.cuts.add(11)
    monkeypatch.setattr(OverlayVideo, "piece", 3)
    clip = look_at(clip.source, Selection(end=Moment(14, False)))
    task = dense_task(clip, [0, 9]) if dense else point_task(clip, QUERIES)
    go(task, tracker, tmp_path / "whole")
    every = iter([0.0, 1e9, 0.0, 0.0, 1e9] * 100)
    seen = []

    def watch():
        if killed:
            monkeypatch.setattr(progress, "EVERY", next(every))
        seen.append(1)
        if len(seen) % 7 == 0 and killed:
            raise KilledError
        return len(seen) % 7 != 0

    for _ in range(60):
        try:
            if go(task, tracker, tmp_path / "parts", watch=watch)[0]:
                break
        except KilledError:
            pass
        saved = tmp_path / "parts" / ("maps" if dense else "t.npz")
        assert saved.with_name(f"{saved.name}.parts").is_dir()
    assert len(seen) >= 20
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_the_tracker_itself_goes_on_to_the_same_bytes(clip, tiny_weights, tmp_path, monkeypatch):
    monkeypatch.setattr("dicl_flow.tracking.tracker.CUT", np.inf)  # the network is random
    monkeypatch.setattr(OverlayVideo, "piece", 2)
    estimator = load(tiny_weights, "cpu")
    part = look_at(clip.source, Selection(end=Moment(7, False)))
    task = point_task(part, QUERIES[:3])

    def tracker(references):
        return Tracker(estimator, references, intervals=(1, 3))

    go(task, tracker, tmp_path / "whole")
    seen = []
    while not go(task, tracker, tmp_path / "parts", watch=lambda: seen.append(1) or len(seen) % 3)[
        0
    ]:
        assert len(seen) < 60
    assert len(seen) > 12
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_what_a_tracker_knows_is_stored_once(clip, tracker, tmp_path):
    """Rows of large arrays that are alike are one file, and old ones go."""
    memory = progress.Memory(tmp_path / "tracker")
    large = np.arange(3 << 16, dtype=np.float64).reshape(3, -1)
    memory.save("a", {"large": large, "small": np.arange(3)}, [1, 2])
    before = {*memory.folder.glob("*.npy")}
    memory.save("b", {"large": large[[1, 2, 0]], "small": np.arange(4)}, [2, 3])
    assert len({*memory.folder.glob("*.npy")} - before) == 1
    memory.forget_others("b")
    state, needs = memory.load("b")
    np.testing.assert_array_equal(state["large"], large[[1, 2, 0]])
    assert (state["small"].tolist(), needs) == ([0, 1, 2, 3], [2, 3])
    with pytest.raises(InputError, match="is damaged"):
        memory.load("a")


def test_an_st_map_brings_its_frame_to_the_reference(clip, tracker, tmp_path):
    go(dense_task(clip, [9]), tracker, tmp_path)
    maps = sorted((tmp_path / "maps").iterdir())
    assert [path.name for path in maps] == [f"frame_{n:06d}.st.exr" for n in range(20)]
    found = decode_channels(maps[6].read_bytes(), ("R", "G"), "map", (2, "")).pixels
    assert {*found} == {"R", "G", "B", ERROR_CHANNEL}
    height, width = SIZE
    x, y = found["R"] * width - 0.5, (1 - found["G"]) * height - 0.5
    again = cv2.remap(FRAMES[6], x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR)
    inside = (x >= 0) & (y >= 0)
    assert 0.7 < inside.mean() < 1
    np.testing.assert_allclose(again[inside], FRAMES[9][inside], atol=1)
    assert (found["B"] == 1).all()
    np.testing.assert_allclose(read_flow(maps[6])[5, 5], [-9, -3], atol=1e-3)
    assert np.isfinite(np.stack([*found.values()])).all()


def test_after_a_cut_there_are_no_maps_and_each_reference_has_a_folder(clip, tracker, tmp_path):
    tracker.cuts.add(10)
    go(dense_task(clip, [0, 12]), tracker, tmp_path)
    places = {
        folder.name: [int(path.name[6:12]) for path in sorted(folder.iterdir())]
        for folder in (tmp_path / "maps").iterdir()
    }
    assert places == {"reference_000000": [*range(10)], "reference_000012": [*range(10, 20)]}


def test_start_stride_and_scale_keep_numbers_and_pixels_of_the_clip(clip, tracker, tmp_path):
    selection = Selection(Moment(3, False), stride=2, scale=0.5)
    part = look_at(clip.source, selection)
    assert (part.size, part.used, part.first) == (SIZE, (24, 32), 3)
    go(point_task(part, np.float32([[7, 20, 20]])), tracker, tmp_path)
    tracks = read_tracks(tmp_path / "t.npz")
    assert tracks.frames.tolist() == [*range(3, 20, 2)]
    assert tracks.queries.tolist() == [[2, 20, 20]]
    np.testing.assert_allclose(tracks.points[0, :4, 0], [8, 14, 20, 26], atol=1e-4)
    assert read_video(tmp_path / "o.mkv")[0][0].shape == (*SIZE, 3)
    with pytest.raises(InputError, match="a point is frame 8, which `start` or `stride` leaves"):
        point_task(part, np.float32([[8, 20, 20]]))


def test_lost_frames_are_gaps(tracker, tmp_path):
    folder = write_images(tmp_path / "shots", FRAMES[:8])
    for number in (2, 5):
        (folder / f"shot_{number}.png").write_bytes(b"broken")
    lossy = look_at(open_source(str(folder)), Selection(on_error="skip"))
    tracker.cuts.add(3)
    go(point_task(lossy, np.float32([[4, 20, 20]])), tracker, tmp_path / "out")
    tracks = read_tracks(tmp_path / "out" / "t.npz")
    assert tracker.pushed == [4, 6, 7, 4, 3, 1, 0]
    assert np.flatnonzero(np.isfinite(tracks.error[0])).tolist() == [3, 4, 6, 7]
    assert tracks.cuts.tolist() == [3]
    assert np.isnan(tracks.times).all()
    with pytest.raises(InputError, match="frame 5 has points to track, but cannot be read"):
        go(point_task(lossy, np.float32([[5, 20, 20]])), tracker, tmp_path / "other")
    assert contents(tmp_path / "other") == {}


def test_a_variable_frame_rate_keeps_its_times(tracker, tmp_path):
    steps = [0, 40, 55, 200, 230]  # ms
    with av.open(str(tmp_path / "v.mkv"), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.height, stream.width, stream.pix_fmt = *SIZE, "bgr0"
        stream.codec_context.time_base = Fraction(1, 1000)
        for frame, step in zip(FRAMES, steps, strict=False):
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            picture.pts, picture.time_base = step, Fraction(1, 1000)
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    uneven = look_at(open_source(str(tmp_path / "v.mkv")), Selection(on_error="skip"))
    go(point_task(uneven, np.float32([[0, 20, 20]])), tracker, tmp_path / "out")
    tracks = read_tracks(tmp_path / "out" / "t.npz")
    there = np.isfinite(tracks.error[0])
    np.testing.assert_allclose(tracks.times[there], np.array(steps) / 1000, atol=1e-6)


def test_frames_come_back_in_reverse_from_chunks(clip, monkeypatch):
    monkeypatch.setattr("dicl_flow.tracking.run._CHUNK", 3 * 48 * 64 * 4)
    frames = [*frames_back(clip, 10)]
    assert [place for place, _ in frames] == [*range(10, -1, -1)]
    assert all((frame.image == FRAMES[place]).all() for place, frame in frames)


def test_a_count_that_is_too_high_is_found_while_reading(clip, tracker, tmp_path, monkeypatch):
    monkeypatch.setattr(type(clip), "count", 50)
    task = point_task(clip, np.float32([[30, 1, 1]]))
    with pytest.raises(InputError, match="a reference is frame 30, but the last frame is 19"):
        go(task, tracker, tmp_path)
    assert contents(tmp_path) == {}


def test_a_count_that_is_too_low_is_not_believed(clip, monkeypatch):
    monkeypatch.setattr(type(clip), "count", 5)
    assert point_task(clip, np.float32([[19, 1, 1]])).last == 19
    with pytest.raises(InputError, match="a point is frame 20, but the last frame is 19"):
        point_task(clip, np.float32([[20, 1, 1]]))


def test_a_grid_is_the_same_in_each_reference(clip):
    task = point_task(clip, grid_queries(clip, 16, [0, 5]))
    assert [len(reference.points) for reference in task.references] == [12, 12]


@pytest.mark.parametrize(("size", "most"), [((180, 320), 3), ((2160, 3840), 16)])
def test_points_can_be_seen_at_any_size(size, most):
    assert 1.3 <= point_radius(size, 2) <= most


@pytest.mark.parametrize("size", [(180, 320), (540, 960)])
def test_visible_points_are_filled_and_hidden_ones_hollow(size):
    image = np.full((*size, 3), 90, np.uint8)
    height, width = size
    present = np.array([[width // 4, height // 2], [3 * width // 4, height // 2]])
    past = np.linspace([-height / 4, 0], [0, 0], 25)
    points = present[:, None] + past[None]
    visible = np.ones((2, 25), bool)
    visible[1, 20:] = False
    radius = point_radius(size, 2)
    drawn = draw_tracks(image, points, visible, radius).astype(int)
    filled, hollow = (drawn[y, x] for x, y in present)
    assert filled[0] > 240
    assert filled[2] < 150
    assert hollow[0] < 240
    ring = drawn[height // 2 - round(1.15 * radius), present[1, 0]]
    assert ring[0] > 180
    tail = np.abs(drawn - 90).sum(2)[height // 2]
    assert tail[present[0, 0] - height // 40] > tail[present[0, 0] - height // 5] > 0
    assert not tail[present[0, 0] + height // 10 : present[1, 0] - height // 3].any()
