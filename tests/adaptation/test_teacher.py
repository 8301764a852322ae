"""What the teacher keeps of made-up flows, and what its files and summary say."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dicl_flow.adaptation.footage import NUM_SPEEDS, FootagePair
from dicl_flow.adaptation.settings import AdaptConfig
from dicl_flow.adaptation.teacher import (
    count_kept,
    encode_flows,
    kept_pixels,
    lesson,
    read_flow,
    review,
    speed_name,
    summarize,
    teach,
    teacher_qualities,
)
from dicl_flow.config import ModelConfig
from dicl_flow.estimation.result import Estimate
from dicl_flow.files import encode_image, write_files

SETTINGS = AdaptConfig()
SIZE = (32, 48)
MOTION = (3.0, -2.0)


def constant(motion):
    return torch.tensor(motion)[:, None, None].expand(2, *SIZE)[None].clone()


@pytest.fixture
def pair():
    """Frames that move by `MOTION`, and estimates that say so in both directions."""
    torch.manual_seed(0)
    image1 = torch.rand(1, 3, *SIZE)
    image2 = image1.roll((int(MOTION[1]), int(MOTION[0])), (2, 3))
    sure = torch.full((1, 1, *SIZE), 0.9)
    return [Estimate(constant(MOTION), sure), Estimate(-constant(MOTION), sure), image1, image2]


def test_what_agrees_inside_the_frame_is_kept(pair):
    kept = kept_pixels(*pair, SETTINGS)[0]
    expected = torch.zeros(SIZE, dtype=torch.bool)
    expected[2:, :-3] = True  # the rest leaves the frame
    # the colours are compared in squares, which at the border of the frame see what wrapped around
    assert torch.equal(kept[4:, :-5], expected[4:, :-5])
    assert not kept[~expected].any()


def test_directions_that_disagree_by_more_than_the_limit_are_dropped(pair):
    inner = (slice(10, 20), slice(10, 20))
    ends = (slice(8, 18), slice(13, 23))  # where the flow leads from there
    for error, stays in ((0.25, True), (0.37, False)):
        backward = pair[1].flow.clone()
        backward[0, 0][ends] += error
        pair[1] = pair[1]._replace(flow=backward)
        kept = kept_pixels(*pair, SETTINGS)[0]
        assert kept[inner].all() == stays
        assert kept[inner].any() == stays
        assert kept[22:, 4:-6].all()
        pair[1] = pair[1]._replace(flow=-constant(MOTION))


def test_longer_flow_may_disagree_more(pair):
    motion = (10.0, 0.0)
    flow, backward = constant(motion), -constant(motion)
    backward[:, 0] += 0.37  # 0.3 + 0.005 x 20 px
    moved = pair[2].roll(10, 3)
    some = Estimate(flow, pair[0].confidence), Estimate(backward, pair[0].confidence)
    assert kept_pixels(*some, pair[2], moved, SETTINGS)[0, 5:-5, 5:-15].all()
    strict = AdaptConfig(agreement=(0.003, 0.3))
    assert not kept_pixels(*some, pair[2], moved, strict).any()


def test_doubtful_pixels_are_dropped(pair):
    confidence = torch.full((1, 1, *SIZE), 0.9)
    confidence[..., 20:] = 0.5
    pair[0] = pair[0]._replace(confidence=confidence)
    kept = kept_pixels(*pair, SETTINGS)[0]
    assert kept[5:, 5:20].all()
    assert not kept[:, 20:].any()
    kept = kept_pixels(*pair, SETTINGS, calibrated=False)[0]  # only ranks: 0.5 is not doubtful
    assert kept[5:, 5:-6].all()


def test_other_colours_are_dropped_and_noise_is_not(pair):
    image2 = pair[3].clone()
    image2[..., 10:22, 20:32] = 0
    kept = kept_pixels(*pair[:3], image2, SETTINGS)[0]
    assert not kept[14:22, 19:26].any()
    assert kept[26:, 5:-6].all()
    noisy = (pair[3] + 0.15 * torch.randn_like(image2)).clamp(0, 1)
    assert kept_pixels(*pair[:3], noisy, SETTINGS)[0, 5:, 5:-6].float().mean() > 0.9


def test_files_hold_flow_to_a_64th_of_a_pixel_and_what_was_kept(tmp_path):
    flow = torch.randn(1, 2, *SIZE) * 50
    kept = torch.rand(1, *SIZE) < 0.5
    path = tmp_path / "a.npy"
    path.write_bytes(encode_flows((flow, kept), (-flow, ~kept)))
    (there, kept1), (back, kept2) = read_flow(path), read_flow(path, 1)
    np.testing.assert_array_equal(kept1, kept[0].numpy())
    np.testing.assert_array_equal(kept2, ~kept1)
    expected = np.where(kept1[..., None], flow[0].permute(1, 2, 0).numpy(), 0)
    assert np.abs(there - expected).max() <= 0.5 / 64 + 1e-5
    assert not back[kept1].any()
    assert path.stat().st_size < 8.2 * SIZE[0] * SIZE[1]


def test_kept_pixels_are_counted_by_speed_and_region():
    flow = np.zeros((30, 30, 2), np.float32)
    flow[:10, :10, 0] = 3  # the top left ninth
    kept = np.ones((30, 30), bool)
    kept[20:, 20:] = False
    summary = summarize([count_kept(flow, kept)], 1)
    assert summary["seen_by_speed"] == [800, 0, 100, *[0] * (NUM_SPEEDS - 3)]
    assert summary["kept_by_speed"] == [700, 0, 100, *[0] * (NUM_SPEEDS - 3)]
    assert summary["kept_by_region"] == [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
    assert summary["kept"] == pytest.approx(8 / 9)
    (warning,) = summary["warnings"]
    assert "hardly anything is kept at the bottom right" in warning
    names = [speed_name(octave) for octave in range(NUM_SPEEDS)]
    assert names[:3] == ["below 1", "1 to 2", "2 to 4"]
    assert names[-1] == "above 128"


class KnownFlow:
    """Stands for the teacher: 10 px to the right, and at the left half no way back."""

    estimator = SimpleNamespace(device="cpu", calibration=None)

    def __init__(self, motion=10.0):
        self.motion = motion

    def __call__(self, image1, image2):
        flow, sure = constant((self.motion, 0.0)), torch.full((1, 1, *SIZE), 0.9)
        back = -flow
        back[..., : SIZE[1] // 2] = 0
        return Estimate(flow, sure), Estimate(back, sure)


def test_what_is_not_kept_counts_with_its_speed(tmp_path):
    files = lesson(FootagePair(0, 0, 1, 10.0), tmp_path, tmp_path)
    black = np.zeros((*SIZE, 3), np.uint8)
    write_files({path: encode_image(path, black) for path in (files.image1, files.image2)})
    write_files(teach([KnownFlow()], None, files, SETTINGS, 0))
    found = review([files])
    pixels = SIZE[0] * SIZE[1]
    assert found["seen_by_speed"] == [0, 0, 0, 0, pixels, 0, 0, 0, 0]
    assert found["little_motion"] == 0
    assert 0.3 < found["kept"] < 0.6
    assert found["kept_by_speed"][4] == round(found["kept"] * pixels)


def test_still_footage_and_a_teacher_without_trust_are_warned_of():
    still = count_kept(np.zeros((9, 9, 2), np.float32), np.ones((9, 9), bool))
    (warning,) = summarize([still], 1)["warnings"]
    assert "little moves" in warning
    moving = np.full((9, 9, 2), 5, np.float32)
    (warning,) = summarize([count_kept(moving, np.eye(9, dtype=bool) & False)], 0)["warnings"]
    assert "trusts only 0.0%" in warning


def test_it_takes_the_flow_whose_directions_agree_better(tmp_path):
    files = lesson(FootagePair(0, 0, 1, 10.0), tmp_path, tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    write_files({path: encode_image(path, noise) for path in (files.image1, files.image2)})
    for teachers in ([KnownFlow(), KnownFlow(5.0)], [KnownFlow(5.0), KnownFlow()]):
        write_files(teach(teachers, None, files, AdaptConfig(difference=1.0), 0))
        flow, kept = read_flow(files.flows)
        assert kept.any()
        assert (flow[kept] == (5.0, 0.0)).all()  # the way back of 5 px misses by less


def test_the_teacher_is_best_where_its_network_can():
    assert teacher_qualities(ModelConfig()) == ("best", "normal")
    assert teacher_qualities(ModelConfig(host="pwcnet")) == ("normal",)


def test_lessons_of_different_pairs_have_different_files(tmp_path):
    pairs = [FootagePair(0, 1, 2, 1.0), FootagePair(0, 1, 3, 1.0), FootagePair(1, 1, 2, 1.0)]
    files = [lesson(pair, tmp_path, tmp_path) for pair in pairs]
    assert len({each.flows for each in files}) == 3
    assert files[0].image1 == files[1].image1 != files[2].image1
