"""What is better is accepted; what is not, or is only wrong in the same way twice, is not."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_adaptation import moving_picture

from dicl_flow.adaptation.acceptance import (
    PairErrors,
    compare,
    judge,
    pair_errors,
    scene_errors,
)
from dicl_flow.data import FlowSample
from dicl_flow.estimation.result import Estimate

SIZE = (32, 48)
SPEED = 2.0


def both_ways(motion):
    flow = torch.zeros(1, 2, *SIZE)
    flow[:, 0] = motion
    sure = torch.ones(1, 1, *SIZE)
    return Estimate(flow, sure), Estimate(-flow, sure)


@pytest.fixture(scope="module")
def pairs():
    """Pairs of frames that move to the left by `SPEED` px."""
    frames = moving_picture(10, SIZE, SPEED)
    tensors = [torch.from_numpy(f).permute(2, 0, 1)[None].float() / 255 for f in frames]
    return [*pairwise(tensors)]


def judged(pairs, before, after, scenes=((1.0, 2.0), (1.0, 2.0))):
    """Judge networks that say that all moves by so many px; a list has one number per pair."""
    errors = [
        pair_errors(*pair, [both_ways(one), both_ways(two)])
        for pair, one, two in zip(pairs, before, after, strict=True)
    ]
    return judge(*zip(*errors, strict=True), scenes, 0.03)


def wrong(number, scale):
    """A motion that is wrong by up to `scale` px, differently for each pair."""
    return -SPEED + scale * (1 + number % 3) / 3


def test_right_flow_has_a_smaller_warping_error(pairs):
    right, off = pair_errors(*pairs[0], [both_ways(-SPEED), both_ways(-SPEED + 1)])
    assert right.census < 0.5 * off.census
    assert right.disagreement == pytest.approx(off.disagreement, abs=0.5)
    assert (right.speed, off.speed) == (pytest.approx(2), pytest.approx(1))


def test_calling_everything_hidden_is_no_way_to_look_better(pairs):
    lost = Estimate(torch.full((1, 2, *SIZE), 500.0), torch.ones(1, 1, *SIZE))
    right, outside = pair_errors(*pairs[0], [both_ways(-SPEED), (lost, lost)])
    assert outside.census == pytest.approx(1)
    assert outside.disagreement == pytest.approx(10)
    assert right.census < 0.3


def test_flow_in_a_blank_border_does_not_count(pairs):
    image1, image2 = (image.clone() for image in pairs[0])
    image1[..., :20], image2[..., :20] = 0, 0  # as around what an endoscope shows
    calm, wild = both_ways(-SPEED), both_ways(-SPEED)
    for ways in wild:
        ways.flow[..., :12] = 3.0
    one, two = pair_errors(image1, image2, [calm, wild])
    assert one == two
    image1[..., 8:10], image2[..., 8:10] = 0.1, 0.1
    one, two = pair_errors(image1, image2, [calm, wild])
    assert two.disagreement > one.disagreement


def test_better_flow_is_accepted(pairs):
    before = [wrong(n, 1.2) for n in range(len(pairs))]
    disagreeing = [
        PairErrors(e.census, e.disagreement + 0.3 + 0.01 * n, e.speed)
        for n, e in enumerate(_errors(pairs, before))
    ]
    after = _errors(pairs, [wrong(n, 0.3) for n in range(len(pairs))])
    verdict = judge(disagreeing, after, [[1.0, 2.0], [1.0, 2.05]], 0.03)
    assert verdict.accepted
    assert verdict.reasons == verdict.warnings == ()
    assert verdict.census.falls
    assert verdict.census.relative < -0.3
    forgotten = judge(disagreeing, after, [[1.0, 2.0], [1.1, 2.05]], 0.03)
    assert not forgotten.accepted
    (reason,) = forgotten.reasons
    assert "the error rises by 5.0%, more than 3%" in reason
    values = verdict.document()
    assert values["census"]["relative"] == verdict.census.relative


def _errors(pairs, motions):
    return [
        pair_errors(*p, [both_ways(motion)])[0] for p, motion in zip(pairs, motions, strict=True)
    ]


def test_no_change_and_noise_are_refused(pairs):
    motions = [wrong(n, 0.6) for n in range(len(pairs))]
    same = judged(pairs, motions, motions)
    assert not same.accepted
    assert len(same.reasons) == 2
    assert all("does not fall by more than its noise" in reason for reason in same.reasons)
    shuffled = judged(pairs, motions, motions[1:] + motions[:1])
    assert not shuffled.accepted


def test_a_student_that_is_wrong_in_the_same_way_both_times_is_refused_and_warned_of(pairs):
    """It says that nothing moves, in either direction: no two flows agree better."""
    before = [wrong(n, 0.3) for n in range(len(pairs))]
    errors = [
        replace_disagreement(pair_errors(*pair, [both_ways(one), both_ways(0.0)]))
        for pair, one in zip(pairs, before, strict=True)
    ]
    verdict = judge(*zip(*errors, strict=True), [[1.0], [1.0]], 0.03)
    assert verdict.disagreement.falls
    assert not verdict.accepted
    assert "the warping error does not fall" in verdict.reasons[0]
    shorter, same_way = verdict.warnings
    assert "the flow has become shorter" in shorter
    assert "wrong in the same way" in same_way


def test_a_fall_within_its_noise_is_no_gain():
    generator = np.random.default_rng(0)
    before = [PairErrors(*values, 2.0) for values in generator.uniform(0.2, 0.4, (12, 2))]
    noise = generator.normal(0, 0.05, (12, 2))
    noise += -0.01 - noise.mean(0)  # lower on average, by a third of the noise of the mean
    after = [
        PairErrors(e.census + one, e.disagreement + two, 2.0)
        for e, (one, two) in zip(before, noise, strict=True)
    ]
    verdict = judge(before, after, [[1.0], [1.0]], 0.03)
    assert verdict.census.after < verdict.census.before
    assert not verdict.accepted
    lower = [PairErrors(e.census - 0.1, e.disagreement - 0.1, 2.0) for e in after]
    assert judge(before, lower, [[1.0], [1.0]], 0.03).accepted


def replace_disagreement(errors):
    before, after = errors
    assert after.disagreement == 0  # of zero flow
    return before._replace(disagreement=max(before.disagreement, 0.1)), after


def test_the_range_of_a_change_is_that_of_its_noise():
    generator = np.random.default_rng(1)
    before = generator.normal(5, 1, 400)
    change = compare(before, before + generator.normal(-0.1, 1, 400))
    spread = 1.645 / 20  # 90 % of the means of 400 normal numbers
    assert change.high - change.low == pytest.approx(2 * spread, rel=0.2)
    assert change.low < change.after - change.before < change.high
    constant = compare([1.0, 2.0], [0.9, 1.9])
    assert constant.falls
    assert constant.low == pytest.approx(constant.high)


def test_neighbours_that_change_alike_are_no_further_evidence():
    alike = np.random.default_rng(1).normal(0, 1, 32).repeat(4)
    shuffled = np.random.default_rng(2).permutation(alike)
    zero = np.zeros(len(alike))
    ranges = [
        change.high - change.low for change in (compare(zero, alike), compare(zero, shuffled))
    ]
    assert ranges[0] > 1.4 * ranges[1]


class KnownScenes:
    """A renderer of one scene that moves by (1, 2) px, and an estimator that says (1, 0)."""

    device = "cpu"

    def render(self, batch, number):
        return self

    def to_samples(self):
        image = np.zeros((*SIZE, 3), np.uint8)
        flow = np.broadcast_to(np.float32([1, 2]), (*SIZE, 2)).copy()
        valid = np.ones(SIZE, bool)
        valid[0], flow[0] = False, 100
        return [FlowSample(image, image, flow, valid)]

    def estimate(self, image1, image2):
        flow = torch.zeros(1, 2, *SIZE)
        flow[:, 0] = 1
        return Estimate(flow, torch.ones(1, 1, *SIZE))


def test_errors_on_scenes_are_of_valid_pixels():
    known = KnownScenes()
    assert scene_errors(known, known, range(3)) == [2.0] * 3


def test_a_verdict_names_its_reasons_in_the_order_of_the_report(pairs):
    motions = [wrong(n, 0.6) for n in range(len(pairs))]
    verdict = judged(pairs, motions, motions, scenes=((1.0,), (2.0,)))
    words = ("warping error", "disagreement", "rendered scenes")
    assert [word in reason for word, reason in zip(words, verdict.reasons, strict=True)] == [
        True
    ] * 3
    assert replace(verdict, accepted=True).document()["reasons"] == verdict.reasons
