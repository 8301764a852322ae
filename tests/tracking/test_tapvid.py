"""TAP-Vid's metrics against a second implementation, and files that must not run code."""

import builtins
import math
import os
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest

from dicl_flow.errors import InputError
from dicl_flow.tracking import tapvid
from dicl_flow.tracking.tapvid import Queries, Scores, Truth, draw_queries, mean_scores, score

SIZE = (90, 160)


def naive_scores(truth, queries, points, visible, mode):
    """The formulas of the paper, one point of one frame after another."""
    height, width = truth.size
    agree = counted = positives = 0
    near, found, false = ([0] * 5 for _ in range(3))
    for number, track in enumerate(queries.tracks):
        for frame in range(truth.points.shape[1]):
            begin = queries.points[number, 0]
            if frame == begin or (mode == "first" and frame < begin):
                continue
            counted += 1
            is_visible = not truth.occluded[track, frame]
            said = bool(visible[number, frame])
            agree += is_visible == said
            positives += is_visible
            dx = float(points[number, frame, 0] - truth.points[track, frame, 0]) * 256 / width
            dy = float(points[number, frame, 1] - truth.points[track, frame, 1]) * 256 / height
            for place, threshold in enumerate((1, 2, 4, 8, 16)):
                within = math.hypot(dx, dy) < threshold
                near[place] += is_visible and within
                found[place] += is_visible and within and said
                false[place] += said and (not is_visible or not within)

    def share(part, whole):
        return part / whole if whole else math.nan

    return Scores(
        tuple(share(n, positives) for n in near),
        tuple(share(f, positives + wrong) for f, wrong in zip(found, false, strict=True)),
        share(agree, counted),
    )


def naive_queries(truth, mode):
    """(frame, track) of every query."""
    num_tracks, num_frames = truth.occluded.shape
    if mode == "strided":
        return [
            (frame, track)
            for frame in range(0, num_frames, 5)
            for track in range(num_tracks)
            if not truth.occluded[track, frame]
        ]
    seen = [[f for f in range(num_frames) if not truth.occluded[t, f]] for t in range(num_tracks)]
    return [(frames[0], track) for track, frames in enumerate(seen) if frames]


def made_up(seed, hidden=0.3):
    """Tracks that leave the frame, are hidden, or are never visible."""
    rng = np.random.default_rng(seed)
    num_tracks, num_frames = rng.integers(1, 9), rng.integers(2, 14)
    steps = rng.normal(0, 8, (num_tracks, num_frames, 2)).cumsum(1)
    points = rng.uniform(0, 1, (num_tracks, 1, 2)) * (160, 90) + steps
    outside = ((points < -0.5) | (points >= np.array([160, 90]) - 0.5)).any(-1)
    occluded = outside | (rng.random((num_tracks, num_frames)) < hidden)
    occluded[rng.random(num_tracks) < 0.2] = True
    return Truth(points, occluded, SIZE), rng


def guess(truth, queries, rng):
    """Positions with errors of all sizes, some unknown, and visibility that is partly wrong."""
    points = truth.points[queries.tracks]
    spread = rng.choice([0.2, 1.5, 6, 40], points.shape[:2])[..., None]
    points = points + rng.normal(0, 1, points.shape) * spread
    points[rng.random(points.shape[:2]) < 0.1] = np.nan
    return points, truth.occluded[queries.tracks] == (rng.random(points.shape[:2]) < 0.3)


def values(scores):
    return [*scores.within, *scores.jaccard, scores.occlusion_accuracy]


@pytest.mark.parametrize("mode", tapvid.MODES)
@pytest.mark.parametrize("hidden", [0.0, 0.3, 1.0])
def test_metrics_equal_those_of_naive_loops(mode, hidden):
    for seed in range(40):
        truth, rng = made_up(seed, hidden)
        queries = draw_queries(truth, mode)
        points, visible = guess(truth, queries, rng)
        found = score(truth, queries, points, visible, mode)
        expected = naive_scores(truth, queries, points, visible, mode)
        np.testing.assert_allclose(values(found), values(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", tapvid.MODES)
def test_queries_equal_those_of_naive_loops(mode):
    for seed in range(20):
        truth, _ = made_up(seed)
        queries = draw_queries(truth, mode)
        pairs = list(zip(queries.points[:, 0].astype(int), queries.tracks, strict=True))
        assert pairs == naive_queries(truth, mode)
        for (frame, track), place in zip(pairs, queries.points[:, 1:], strict=True):
            np.testing.assert_allclose(place, truth.points[track, frame], rtol=1e-6)


def test_a_perfect_track_has_full_marks_and_a_silent_one_none():
    truth, _ = made_up(3, hidden=0.1)
    queries = draw_queries(truth, "strided")
    points, visible = truth.points[queries.tracks], ~truth.occluded[queries.tracks]
    perfect = score(truth, queries, points, visible, "strided")
    assert values(perfect) == [1.0] * 11
    assert perfect.average_jaccard == perfect.position_accuracy == 1
    silent = score(truth, queries, points, np.zeros_like(visible), "strided")
    assert silent.position_accuracy == 1  # positions count even where nothing is said to be seen
    assert silent.average_jaccard == 0


def test_thresholds_are_those_of_frames_of_256_px_and_exclude_their_end():
    truth = Truth(np.zeros((1, 2, 2)), np.zeros((1, 2), bool), (512, 1024))
    queries = draw_queries(truth, "first")

    def within(x, y):
        points = np.array([[[0, 0], [x, y]]], float)
        return score(truth, queries, points, np.ones((1, 2), bool), "first").within

    assert within(15.9, 0) == (0, 0, 1, 1, 1)  # 4 px of 256 are 16 of 1024
    assert within(16, 0) == (0, 0, 0, 1, 1)
    assert within(0, 7.9) == (0, 0, 1, 1, 1)
    assert within(0, 8) == (0, 0, 0, 1, 1)


def test_raster_coordinates_have_the_centre_of_the_first_pixel_at_a_half():
    corners = np.array([[0.0, 0.0], [255.0, 255.0]])
    assert tapvid.to_raster(corners, (256, 256)).tolist() == [[0.5, 0.5], [255.5, 255.5]]
    edge = np.array([[-0.5, 89.5]])
    assert tapvid.to_raster(edge, (90, 160)).tolist() == [[0, 256]]


def test_every_clip_has_the_same_weight_and_those_of_nothing_none():
    one, other = Scores((1.0,) * 5, (0.5,) * 5, 1.0), Scores((0.0,) * 5, (0.1,) * 5, 0.5)
    nothing = Scores((math.nan,) * 5, (math.nan,) * 5, math.nan)
    mean = mean_scores([one, other, nothing])
    assert mean.position_accuracy == 0.5
    assert mean.average_jaccard == pytest.approx(0.3)
    assert mean.occlusion_accuracy == 0.75
    with pytest.raises(InputError, match="no scores"):
        mean_scores([])


def test_wrong_shapes_and_modes_are_refused():
    truth, _ = made_up(0)
    queries = draw_queries(truth, "first")
    with pytest.raises(InputError, match="did you mean 'strided'"):
        draw_queries(truth, "stride")
    with pytest.raises(InputError, match="expected points"):
        score(truth, queries, np.zeros((1, 1, 2)), np.zeros((1, 1), bool), "first")
    with pytest.raises(InputError, match="points must be"):
        Truth(np.zeros((3, 4)), np.zeros((3, 4), bool), SIZE)
    assert isinstance(queries, Queries)


def clip_of(num_frames=3, video=None, **changes):
    rng = np.random.default_rng(0)
    if video is None:
        video = rng.integers(0, 255, (num_frames, 24, 32, 3), np.uint8)
    clip = {
        "video": video,
        "points": rng.random((4, num_frames, 2), np.float32),
        "occluded": rng.random((4, num_frames)) < 0.3,
    }
    return clip | changes


def jpegs(num_frames=3):
    image = np.full((24, 32, 3), 120, np.uint8)
    return [cv2.imencode(".jpg", image)[1].tobytes()] * num_frames


def write(path, contents, protocol=4):
    path.write_bytes(pickle.dumps(contents, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_clips_are_read_from_every_protocol(tmp_path, protocol):
    clip = clip_of()
    path = write(tmp_path / "davis.pkl", {"goat": clip}, protocol)
    (read,) = tapvid.read_tapvid(path)
    assert read.name == "goat"
    assert read.truth.size == (24, 32)
    np.testing.assert_array_equal(np.stack(list(read.frames())), clip["video"])
    np.testing.assert_array_equal(read.truth.occluded, clip["occluded"])
    np.testing.assert_allclose(read.truth.points, clip["points"] * (32, 24) - 0.5, rtol=1e-6)


@pytest.mark.parametrize("old", [True, False])
def test_arrays_of_numpy_1_and_2_are_read(tmp_path, old):
    data = pickle.dumps([clip_of()], 2)
    here, there = b"numpy._core", b"numpy.core"
    data = data.replace(here, there) if old else data.replace(there, here)
    (tmp_path / "clips.pkl").write_bytes(data)
    assert tapvid.read_tapvid(tmp_path / "clips.pkl")[0].name == "0000"


def test_other_orders_byte_orders_and_numbers_are_read(tmp_path):
    clip = clip_of()
    other = {
        "video": np.asfortranarray(clip["video"]),
        "points": clip["points"].astype(">f8"),
        "occluded": clip["occluded"],
        "rate": np.float32(25),
    }
    (read,) = tapvid.read_tapvid(write(tmp_path / "clips.pkl", (other,)))
    np.testing.assert_array_equal(np.stack(list(read.frames())), clip["video"])
    np.testing.assert_allclose(read.truth.points, clip["points"] * (32, 24) - 0.5, rtol=1e-6)


@pytest.mark.parametrize("form", [list, tuple, np.array])
def test_frames_of_kinetics_are_decoded(tmp_path, form):
    path = write(tmp_path / "kinetics.pkl", [clip_of(video=form(jpegs()))])
    (read,) = tapvid.read_tapvid(path)
    frames = list(read.frames())
    assert len(frames) == 3
    assert frames[0].shape == (24, 32, 3)
    assert abs(int(frames[0].mean()) - 120) <= 1


class Payload:
    """Unpickled by pickle itself, it calls a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def harmful(target):
    touch = f"touch {target}"
    in_array = np.empty(1, object)
    in_array[0] = Payload(os.system, touch)
    return {
        "system": (Payload(os.system, touch), "posix.system|nt.system"),
        "eval": (Payload(eval, f"open({str(target)!r}, 'w')"), "builtin.*eval"),
        "getattr": (Payload(getattr, Path(target), "touch"), "getattr|pathlib"),
        "object": (clip_of(points=in_array), "'O8'"),
        "objects": (clip_of(points=np.array([None, 1], object)), "'O8'"),
        "records": (clip_of(points=np.zeros(2, "i4,f4")), "'V8'"),
        "times": (clip_of(points=np.zeros(2, "M8[s]")), "'M8'"),
        "class": (clip_of(points=Path("x")), "pathlib"),
        "function": (clip_of(points=builtins.print), "builtin.*print"),
    }


@pytest.mark.parametrize("name", list(harmful("x")))
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_files_that_would_run_code_are_refused_and_named(tmp_path, name, protocol):
    contents, refused = harmful(tmp_path / "harm")[name]
    path = write(tmp_path / "clips.pkl", {"goat": contents}, protocol)
    with pytest.raises(InputError, match=f"clips.pkl is refused.*({refused})"):
        tapvid.read_tapvid(path)
    assert not (tmp_path / "harm").exists()


# opcodes written by hand: what `pickle.dumps` never writes
RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
BY_HAND = {
    "a function of numpy": (b"cnumpy\nload\n(S'x'\ntR.", "numpy.load"),
    "an array that is called": (b"cnumpy\nndarray\n(I9\ntR.", "a call of numpy.ndarray"),
    "a known function that is changed": (RECONSTRUCT + b"}b.", "changes of a function"),
    "a name with a dot": (
        b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.base\x93.",
        r"numpy.ndarray.base",
    ),
    "an array of a list": (
        RECONSTRUCT + b"(cnumpy\nndarray\n(tS'b'\ntR(I1\n(ttb.",
        "damaged",
    ),
    "a reference": (b"Pother\n.", "a reference 'other'"),
    "an encoding": (b"c_codecs\nencode\n(Vx\nVrot13\ntR.", "rot13"),
    "an unknown extension": (b"\x80\x02\x82\x07.", "damaged"),
}


@pytest.mark.parametrize("name", list(BY_HAND))
def test_pickles_written_by_hand_are_refused(tmp_path, name):
    data, refused = BY_HAND[name]
    (tmp_path / "clips.pkl").write_bytes(data)
    with pytest.raises(InputError, match=refused):
        tapvid.read_tapvid(tmp_path / "clips.pkl")


def test_a_truncated_file_is_one_sentence_wherever_it_ends(tmp_path):
    path = tmp_path / "clips.pkl"
    for protocol in (2, 4, 5):
        data = pickle.dumps({"goat": clip_of()}, protocol)
        for length in [1, 2, 10, *range(20, len(data) - 1, 211), len(data) - 1]:
            path.write_bytes(data[:length])
            with pytest.raises(InputError, match=r"truncated|damaged"):
                tapvid.read_tapvid(path)
    with pytest.raises(InputError, match="truncated: it ends too early; copy it again"):
        tapvid.read_tapvid(path)


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        (7, "a dict or a list of clips, not int"),
        ([3], "must be a dict with video"),
        ([{"video": 1}], "must be a dict with video"),
        ([clip_of(points=[1, 2])], "must be arrays"),
        ([clip_of(points=np.zeros((4, 3, 3), np.float32))], "points must be"),
        ([clip_of(points=np.zeros((4, 3, 2), np.int32))], "points must be"),
        ([clip_of(occluded=np.zeros((4, 2), bool))], "points must be"),
        ([clip_of(video=np.zeros((2, 8, 8, 3), np.uint8))], "has 2 frames, its tracks 3"),
        ([clip_of(video=np.zeros((3, 8, 8), np.uint8))], "video must be"),
        ([clip_of(video=[])], "video must be"),
        ([clip_of(video={1: 2})], "video must be"),
        ([clip_of(video=["text"] * 3)], "must be an image file, not str"),
        ([clip_of(video=[b"no JPEG"] * 3)], "is not an image"),
    ],
)
def test_other_contents_are_refused(tmp_path, contents, told):
    with pytest.raises(InputError, match=told):
        tapvid.read_tapvid(write(tmp_path / "clips.pkl", contents))


def test_what_is_no_pickle_is_refused(tmp_path):
    (tmp_path / "clips.pkl").write_bytes(b"{}")
    with pytest.raises(InputError, match="is not a pickle file"):
        tapvid.read_tapvid(tmp_path / "clips.pkl")
    with pytest.raises(FileNotFoundError, match="no such file"):
        tapvid.read_tapvid(tmp_path / "none.pkl")
