"""A chain is extended by flows, and the best of several is chosen for each point."""

import math

import pytest
import torch

from dicl_flow.tracking.chains import choose, extend
from dicl_flow.tracking.reliability import packaged_calibration, read_flow_at
from dicl_flow.tracking.tracks import Positions


def positions(points, error, visible, interval=0):
    count = len(points)
    return Positions(
        torch.tensor(points, dtype=torch.float32),
        torch.tensor(error, dtype=torch.float32),
        torch.tensor(visible),
        torch.full((count,), interval, dtype=torch.int16),
    )


def packed(x, y, miss=0.0, confidence=0.99, size=(400, 600)):
    values = torch.tensor([x, y, confidence, miss - x, -y, confidence])
    return values[None, :, None, None].expand(1, 6, *size).contiguous()


def test_the_visible_candidate_with_the_lowest_expected_error_is_chosen():
    short = positions(
        [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], [0.5, 0.1, 3.0], [True, False, False], 1
    )
    long = positions([[9.0, 1.0], [9.0, 2.0], [99.0, 3.0]], [0.3, 9.0, 2.0], [True, True, False], 8)
    found = choose([short, long])
    # the better one; the visible one, though worse; of hidden ones, the better
    assert found.points.tolist() == [[9, 1], [9, 2], [99, 3]]
    assert found.error.tolist() == pytest.approx([0.3, 9.0, 2.0])
    assert found.visible.tolist() == [True, True, False]
    assert found.interval.tolist() == [8, 8, 8]
    assert found.interval.dtype == torch.int16


def test_the_choice_does_not_depend_on_the_order():
    torch.manual_seed(0)
    candidates = [
        positions(
            torch.rand(50, 2).tolist(), torch.rand(50).tolist(), (torch.rand(50) > 0.5).tolist()
        )
        for _ in range(5)
    ]
    (places, *one), (other_places, *other) = choose(candidates), choose(candidates[::-1])
    torch.testing.assert_close(places, other_places)
    assert all(map(torch.equal, one, other))


def test_the_position_is_the_mean_of_the_candidates_that_agree():
    best = positions([[10.0, 10.0]], [0.5], [True], 1)
    near = positions([[11.5, 10.0]], [1.0], [True], 2)
    hidden = positions([[10.0, 11.0]], [1.0], [False], 4)
    far = positions([[14.0, 10.0]], [1.0], [True], 8)
    found = choose([far, near, hidden, best])
    # weights 4 and 1; the other two are hidden, or further away than twice 0.5 + 1 px
    torch.testing.assert_close(found.points, torch.tensor([[10.3, 10.0]]))
    assert (found.error.item(), found.interval.item()) == (0.5, 1)


@pytest.mark.parametrize(
    ("size", "visible"),
    [
        ((1200, 900), [True, True, False]),  # from 1 % of the shorter side on it is lost
        ((400, 600), [True, False, False]),
        ((20, 30), [True, False, False]),  # but not below 4 px
    ],
)
def test_a_point_with_a_large_expected_error_is_hidden(size, visible):
    before = positions([[8.0, 8.0]] * 3, [3.0, 6.0, 12.0], [True] * 3)
    after = extend(before, packed(0.0, 0.0, size=size), 1, packaged_calibration())
    assert after.visible.tolist() == visible


def test_points_follow_the_flow_and_errors_grow_slower_than_their_sum():
    calibration = packaged_calibration()
    before, flow = positions([[3.25, 4.5], [10, 5]], [0.0, 2.0], [True, True]), packed(2.5, -1.0)
    after = extend(before, flow, 4, calibration)
    assert after.points.tolist() == [[5.75, 3.5], [12.5, 4]]
    alone = float(calibration.expected_error(read_flow_at(flow, before.points, 4).cues)[0])
    assert float(after.error[0]) == pytest.approx(alone)
    assert math.hypot(2.0, alone) < after.error[1] < 2.0 + alone
    assert after.visible.all()
    assert after.interval.tolist() == [4, 4]


def test_a_flow_is_read_between_pixels():
    ramp = packed(0.0, 0.0, size=(20, 30))
    ramp[:, 0] = torch.arange(30.0)
    found = read_flow_at(ramp, torch.tensor([[3.25, 4.0], [7.5, 0.0], [-5.0, 2.0]]), 1)
    assert found.vectors[:, 0].tolist() == pytest.approx([3.25, 7.5, 0.0], abs=1e-5)


@pytest.mark.parametrize(
    ("flow", "reason"),
    [
        (packed(1.0, 0.0, miss=40.0, confidence=0.01), "the way back misses"),
        (packed(600.0, 0.0), "it leaves the frame"),
    ],
    ids=["missed", "outside"],
)
def test_a_point_is_hidden_if(flow, reason):
    before = positions([[8.0, 8.0]], [0.0], [True])
    assert not extend(before, flow, 1, packaged_calibration()).visible.any(), reason


def test_a_chain_from_a_hidden_point_stays_hidden_and_doubts_what_it_follows():
    calibration, flow = packaged_calibration(), packed(6.0, 0.0)
    before = positions([[8.0, 8.0], [8.0, 8.0]], [1.0, 1.0], [True, False])
    after = extend(before, flow, 1, calibration)
    assert after.visible.tolist() == [True, False]
    assert after.error[1] >= 6.0 > after.error[0]


def test_a_chain_of_eight_flows_errs_about_four_times_as_much_as_one():
    calibration, flow = packaged_calibration(), packed(0.0, 0.0)
    chain = one = extend(positions([[8.0, 8.0]], [0.0], [True]), flow, 1, calibration)
    for _ in range(7):
        chain = extend(chain, flow, 1, calibration)
    assert float(chain.error / one.error) == pytest.approx(8 ** (1 / 1.4), rel=1e-4)


def test_intervals_of_any_length_fit():
    before = positions([[8.0, 8.0]], [0.0], [True])
    assert extend(before, packed(0.0, 0.0), 40_000, packaged_calibration()).interval > 32_000
