"""Points are followed frame by frame: through occlusion, without drift, both ways, to a cut."""

import numpy as np
import pytest
import torch
from clips import write_images, write_video
from conftest import TINY
from known_tracks import ESTIMATOR, SIZE, KnownFlows, scene

import dicl_flow
from dicl_flow import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build
from dicl_flow.tracking.tracker import PATIENCE, Tracker, reversed_frames, track
from dicl_flow.tracking.tracks import Reference, grid
from dicl_flow.video.frames import open_source

POINTS = np.float32([[5, 6], [10.5, 8.25]])
FRAMES = scene(80)


def steady(before, after):
    """A quarter of a pixel to the right for each frame."""
    return (after - before) / 4, 0.0


def tracker_of(flows, *references, **options):
    references = references or (Reference(0, POINTS),)
    return Tracker(ESTIMATOR, references, sequence=flows, **options)


def follow(tracker, numbers):
    return [tracker.push(FRAMES[number], number) for number in numbers]


def test_points_go_where_the_flow_leads():
    found = follow(tracker_of(KnownFlows(steady)), range(20))
    for number, (positions,) in enumerate(found):
        expected = POINTS + np.float32([number / 4, 0])
        np.testing.assert_allclose(positions.points, expected, atol=1e-4)
        assert positions.visible.all()
        assert positions.points.dtype == positions.error.dtype == torch.float32
    first, later = found[0][0], found[7][0]
    assert not first.error.any()
    assert not first.interval.any()
    assert (later.error > 0).all()


def test_flows_start_at_intervals_and_references_each_once():
    flows = KnownFlows(steady)
    references = Reference(0, POINTS), Reference(3, POINTS)
    follow(tracker_of(flows, *references, intervals=(1, 2, 4)), range(10))
    assert flows.pairs[0] == []
    assert flows.pairs[1] == [(0, 1)]
    assert flows.pairs[4] == [(0, 4), (2, 4), (3, 4)]  # reference 0 is also four frames before
    assert flows.pairs[9] == [(0, 9), (3, 9), (5, 9), (7, 9), (8, 9)]


def test_before_the_first_reference_only_cuts_are_looked_for():
    flows = KnownFlows(steady)
    found = follow(tracker_of(flows, Reference(5, POINTS)), range(7))
    assert flows.pairs[4] == [(3, 4)]
    assert found[4] == [None]
    assert found[5][0].points.tolist() == POINTS.tolist()


def test_direct_flows_do_not_drift():
    def biased(before, after):
        return 0.3, 0.0  # nothing moves: each flow is wrong by as much

    (chained,) = follow(tracker_of(KnownFlows(biased), intervals=(1,), direct=False), range(30))[-1]
    (found,) = follow(tracker_of(KnownFlows(biased)), range(30))[-1]
    drift, error = (
        float((p.points - torch.tensor(POINTS)).norm(dim=1).max()) for p in (chained, found)
    )
    assert drift == pytest.approx(29 * 0.3, abs=1e-3)
    assert error < 0.6  # the direct flow's 0.3, and a part of the chains that agree with it
    assert found.interval.tolist() == [29, 29]
    assert (chained.error > 3 * found.error).all()


def covered(before, after):
    """What lies in frames 5 to 8 is hidden; a flow from there follows what covers it, surely."""
    return 40.0 if 5 <= after <= 8 and before < 5 else 0.0


def test_a_hidden_point_is_found_again():
    found = [p for (p,) in follow(tracker_of(KnownFlows(steady, covered)), range(14))]
    assert [bool(p.visible.all()) for p in found] == [not 5 <= n <= 8 for n in range(14)]
    np.testing.assert_allclose(found[9].points, POINTS + np.float32([9 / 4, 0]), atol=1e-4)
    assert (found[7].error > found[4].error).all()


def test_without_direct_or_long_flows_it_stays_hidden():
    flows = KnownFlows(steady, covered)
    found = [p for (p,) in follow(tracker_of(flows, intervals=(1,), direct=False), range(14))]
    assert [bool(p.visible.any()) for p in found] == [n < 5 for n in range(14)]


def test_a_long_interval_leads_over_an_occlusion():
    flows = KnownFlows(steady, covered)
    found = [p for (p,) in follow(tracker_of(flows, intervals=(1, 8), direct=False), range(14))]
    assert found[9].visible.all()  # from frame 1
    assert found[9].interval.tolist() == [8, 8]


def test_numbers_may_fall():
    flows = KnownFlows(steady)
    found = follow(tracker_of(flows, Reference(10, POINTS)), range(12, 4, -1))
    assert found[0] == found[1] == [None]
    for step, (positions,) in enumerate(found[2:]):
        np.testing.assert_allclose(positions.points, POINTS - np.float32([step / 4, 0]), atol=1e-4)
        assert positions.interval.tolist() == [step] * 2


def test_a_lost_frame_is_a_gap():
    flows = KnownFlows(steady)
    found = follow(tracker_of(flows, intervals=(1,), direct=False), [0, 1, 4, 5])
    np.testing.assert_allclose(found[2][0].points, POINTS + np.float32([1, 0]), atol=1e-4)
    assert found[2][0].interval.tolist() == [3, 3]


def test_memory_does_not_grow_with_the_frames():
    flows = KnownFlows(steady)
    references = Reference(0, POINTS), Reference(3, POINTS)
    tracker = tracker_of(flows, *references, intervals=(1, 2, 8))
    for number in range(40):
        tracker.push(FRAMES[number])
        assert len(tracker.needs()) <= 8 + len(references)
        assert len(tracker.state()["numbers0"]) <= 8 + len(references)
        assert len(flows.pairs[-1]) <= 3 + len(references)
    assert tracker.needs() == [0, 3, *range(32, 40)]


def test_many_points_are_followed_in_parts(monkeypatch):
    points = np.stack(np.meshgrid(np.arange(32), np.arange(24)), -1).reshape(-1, 2)
    whole = follow(tracker_of(KnownFlows(steady), Reference(0, points)), range(4))[-1][0]
    monkeypatch.setattr("dicl_flow.tracking.tracker._POINTS_AT_ONCE", 100)
    parts = follow(tracker_of(KnownFlows(steady), Reference(0, points)), range(4))[-1][0]
    assert len(parts.points) == SIZE[0] * SIZE[1]
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)


def nothing_returns_over(cut):
    """How far the backward flow misses: much, from one side of a cut to the other."""
    return lambda before, after: 20.0 * ((before < cut) != (after < cut))


def test_a_cut_ends_tracks_and_new_ones_begin_after_it():
    frames = [*scene(4), *scene(8, seed=1)[4:]]
    flows = KnownFlows(hidden=nothing_returns_over(4))
    tracker = tracker_of(flows, Reference(0, POINTS), Reference(4, POINTS))
    found, cuts = [], []
    for frame in frames:
        found.append(tracker.push(frame))
        cuts.append(tracker.cut)
    assert cuts == [False] * 4 + [True] + [False] * 3
    assert [one is None for one, _ in found] == [False] * 4 + [True] * 4
    assert [two is None for _, two in found] == [True] * 4 + [False] * 4


def interrupted(first, last):
    """Frames of a scene, a stretch of which shows another, and flows that know it."""
    frames = [*scene(first), *scene(last, seed=1)[first:], *scene(40)[last:]]
    inside = range(first, last)

    def miss(before, after):
        return 20.0 * ((before in inside) != (after in inside))

    return frames, KnownFlows(steady, miss)


@pytest.mark.parametrize("intervals", [(1,), (1, 2, 4, 8, 16, 32)])
def test_tracks_go_on_if_their_scene_returns(intervals):
    frames, flows = interrupted(4, 10)
    tracker = tracker_of(flows, Reference(0, POINTS), Reference(5, POINTS), intervals=intervals)
    found = [tracker.push(frame) for frame in frames[:30]]
    assert [one is None for one, _ in found] == [4 <= n < 10 for n in range(30)]
    for number in range(10, 30):
        positions = found[number][0]
        assert positions.visible.all()
        np.testing.assert_allclose(positions.points, POINTS + np.array([number / 4, 0]), atol=1e-4)
    assert found[9][1] is not None
    assert found[10][1] is None  # of the other scene


def test_a_scene_that_returns_late_is_a_new_one():
    frames, flows = interrupted(4, 4 + PATIENCE + 1)
    tracker = tracker_of(flows)
    found = [tracker.push(frame) for frame in frames[:30]]
    assert [one is None for (one,) in found] == [n >= 4 for n in range(30)]
    assert not len(tracker.state()["numbers0"])  # nothing of the scene before is kept
    assert flows.pairs[-1] == [(28, 29)]


def test_a_tracker_that_waits_for_its_scene_can_be_restored():
    frames, flows = interrupted(4, 10)
    tracker, other = tracker_of(flows), tracker_of(flows)
    for frame in frames[:7]:
        tracker.push(frame)
    state = tracker.state()
    other.restore(state, [(number, frames[number]) for number in tracker.needs()])
    for number in range(7, 20):
        (expected,), (found,) = (t.push(frames[number], number) for t in (tracker, other))
        assert (found is None) == (expected is None) == (number < 10)
        assert found is None or torch.equal(found.points, expected.points)


def test_a_sudden_light_is_no_cut():
    frames = [*scene(4), *(255 - frame for frame in scene(4))]
    for number, frame in enumerate(frames):
        frame[0, 0] = number
    tracker = tracker_of(KnownFlows())
    for frame in frames:
        assert tracker.push(frame) != [None]
        assert not tracker.cut


@pytest.mark.parametrize("stop", [3, 12])
def test_a_restored_tracker_goes_on_as_if_nothing_had_been(stop):
    references = Reference(0, POINTS), Reference(6, POINTS)
    options = {"intervals": (1, 2, 4)}
    expected = follow(tracker_of(KnownFlows(steady, covered), *references, **options), range(20))
    first = tracker_of(KnownFlows(steady, covered), *references, **options)
    follow(first, range(stop))
    again = tracker_of(KnownFlows(steady, covered), *references, **options)
    again.restore(first.state(), ((number, FRAMES[number]) for number in first.needs()))
    assert again.needs() == first.needs()
    for number in range(stop, 20):
        for one, other in zip(again.push(FRAMES[number]), expected[number], strict=True):
            assert (one is None) == (other is None)
            assert one is None or all(map(torch.equal, one, other))


def test_a_state_of_others_is_refused():
    tracker = tracker_of(KnownFlows())
    follow(tracker, range(3))
    with pytest.raises(InputError, match=r"frames \[0, 1, 2\] are needed"):
        tracker_of(KnownFlows()).restore(tracker.state(), [])
    two = tracker_of(KnownFlows(), Reference(0, POINTS), Reference(1, POINTS))
    with pytest.raises(InputError, match="1 references, and this tracker has 2"):
        two.restore(tracker.state(), [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intervals": (0, 1)}, "at least 1, got 0"),
        ({"intervals": (1.5,)}, "whole numbers"),
        ({"intervals": (2,), "direct": False}, "must contain 1"),
    ],
)
def test_intervals_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        tracker_of(KnownFlows(), **options)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (Reference(0, np.zeros((2, 3))), r"\(P, 2\)"),
        (Reference(0, np.zeros((0, 2))), r"\(P, 2\)"),
        (Reference(0, np.float32([[1, np.nan]])), "not a number"),
        (Reference(-1, POINTS), "counted from 0"),
        (Reference(0, np.float32([[40, 3]])), "outside the frames, which are 32x24"),
    ],
)
def test_references_are_checked(reference, message):
    with pytest.raises(InputError, match=message):
        follow(tracker_of(KnownFlows(), reference), [0])


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([0, 1, 1], "cannot follow frame 1"),
        ([0, 1, 0], "cannot follow frame 1"),
        ([1, 2], "frame 0 has points to follow"),
    ],
)
def test_frames_must_come_in_order(numbers, message):
    with pytest.raises(InputError, match=message):
        follow(tracker_of(KnownFlows()), numbers)


@pytest.fixture
def known(monkeypatch):
    flows = KnownFlows(steady)
    monkeypatch.setattr("dicl_flow.tracking.tracker.FlowSequence", lambda *_, **__: flows)
    return flows


def test_a_clip_is_tracked_forward_and_backward(known):
    queries = [[6, 10, 8], [0, 5, 6], [6, 12, 3], [9, 4.5, 20]]
    tracks = track(FRAMES[:10], queries, estimator=ESTIMATOR)
    number = np.arange(10)
    for row, (frame, x, y) in enumerate(queries):
        np.testing.assert_allclose(tracks.points[row, :, 0], x + (number - frame) / 4, atol=1e-4)
        np.testing.assert_allclose(tracks.points[row, :, 1], y, atol=1e-4)
        assert (np.sign(tracks.interval[row]) == np.sign(number - frame)).all()
        assert not tracks.error[row, frame]
    assert tracks.visible.all()
    assert tracks.queries.tolist() == queries
    assert tracks.size == SIZE
    assert np.isnan(tracks.times).all()
    assert not len(tracks.cuts)


def test_without_the_way_back_earlier_frames_are_unknown(known):
    tracks = track(FRAMES[:10], [[6, 10, 8]], estimator=ESTIMATOR, backward=False)
    assert np.isnan(tracks.points[0]).any(1).tolist() == [True] * 6 + [False] * 4
    assert not tracks.visible[0, :6].any()
    assert known.pairs[0] == [(6, 7)] or known.pairs[1] == [(6, 7)]  # nothing before it


def test_no_track_crosses_a_cut(known):
    known.hidden = nothing_returns_over(5)
    frames = [*scene(5), *scene(10, seed=1)[5:]]
    tracks = track(frames, [[2, 10, 8], [7, 10, 8]], estimator=ESTIMATOR)
    assert tracks.cuts.tolist() == [5]
    unknown = np.isnan(tracks.points).any(2)
    assert unknown.tolist() == [[False] * 5 + [True] * 5, [True] * 5 + [False] * 5]
    assert not tracks.visible[unknown].any()


def test_points_without_a_frame_are_of_the_first(known):
    tracks = track(np.stack(FRAMES[:3]), [[5, 6]], estimator=ESTIMATOR)
    assert tracks.queries.tolist() == [[0, 5, 6]]


def test_a_video_and_a_folder_are_tracked_as_their_frames_are(known, tmp_path):
    expected = track(FRAMES[:8], [[4, 10, 8]], estimator=ESTIMATOR)
    video = write_video(tmp_path / "clip.mkv", FRAMES[:8], rate=4)
    folder = write_images(tmp_path / "shots", FRAMES[:8])
    for source in (video, folder, f"{folder}/*.png"):
        found = track(source, [[4, 10, 8]], estimator=ESTIMATOR)
        np.testing.assert_array_equal(found.points, expected.points)
    assert track(video, [[4, 10, 8]], estimator=ESTIMATOR).times.tolist() == [
        n / 4 for n in range(8)
    ]


@pytest.mark.parametrize("at_once", [1, 3, 64, None])
def test_frames_are_read_in_reverse_order_in_parts(tmp_path, at_once):
    video = write_video(tmp_path / "clip.mkv", FRAMES[:8])
    found = list(reversed_frames(open_source(str(video)), 6, at_once))
    assert [frame.number for frame in found] == [6, 5, 4, 3, 2, 1, 0]
    for frame in found:
        np.testing.assert_array_equal(frame.image, FRAMES[frame.number])


@pytest.mark.parametrize(
    ("frames", "points", "message"),
    [
        (FRAMES[:1], [[5, 6]], "at least 2 frames; it has 1"),
        (FRAMES[:3], [[3, 5, 6]], "no frame 3: the clip has 3 frames, 0 to 2"),
        (FRAMES[:3], [[0.5, 5, 6]], "whole numbers, counted from 0; got 0.5"),
        (FRAMES[:3], [[-1, 5, 6]], "got -1"),
        (FRAMES[:3], [[0, 5, np.inf]], "finite"),
        (FRAMES[:3], [[0, 5, 24]], "the point 5,24 lies outside"),
        (FRAMES[:3], [5, 6], r"got the shape \(2,\)"),
        (FRAMES[:3], np.zeros((0, 3)), r"got the shape \(0, 3\)"),
        (FRAMES[:3], [["a", 1]], "must be numbers"),
        (iter(FRAMES), [[5, 6]], "a path or a sequence"),
        ("no-such-clip.mp4", [[5, 6]], "no-such-clip"),
    ],
)
def test_bad_input_is_refused_before_any_flow(known, frames, points, message):
    with pytest.raises((InputError, OSError), match=message):
        track(frames, points, estimator=ESTIMATOR)
    assert not any(known.pairs)


def test_frames_of_another_size_are_refused():
    estimator = FlowEstimator(build(TINY), "cpu", "fp32", "plain")
    tracker = Tracker(estimator, [Reference(0, POINTS)])
    tracker.push(FRAMES[0])
    with pytest.raises(InputError, match="one size, got 16x16 after 32x24"):
        tracker.push(FRAMES[1][:16, :16])


def test_a_network_tracks_every_pixel(monkeypatch):
    monkeypatch.setattr("dicl_flow.tracking.tracker.CUT", np.inf)  # its weights are random
    torch.manual_seed(0)
    estimator = FlowEstimator(build(TINY), "cpu", "fp32", "plain")
    points = grid(SIZE, 1)
    tracker = Tracker(estimator, [Reference(0, points)], intervals=(1, 2))
    for frame in FRAMES[:4]:
        (found,) = tracker.push(torch.from_numpy(frame).permute(2, 0, 1))  # a tensor
    assert found.points.shape == (SIZE[0] * SIZE[1], 2)
    assert found.points.isfinite().all()
    assert found.error.isfinite().all()


def test_public_names():
    assert dicl_flow.track is track
    assert dicl_flow.Tracker is Tracker
    assert dicl_flow.Reference is Reference
