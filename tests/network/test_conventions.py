"""Conventions are tested, not remembered. One test per line of docs/conventions.md."""

import struct
from dataclasses import replace
from math import log, sqrt

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL
from torch import nn

from dicl_flow.config import CUES, Calibration, ModelConfig
from dicl_flow.estimation.confidence import find_confidence, find_cues, find_occlusion
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.estimation.inputs import Feeding, image_batch
from dicl_flow.estimation.pipeline import clear_uninformative
from dicl_flow.files import flow_files
from dicl_flow.files.flow_files import decode_flow, encode_flow
from dicl_flow.models import LevelFlow, build
from dicl_flow.models.blocks import ContextNet
from dicl_flow.models.dicl import DiclLevel
from dicl_flow.models.matching import (
    DisplacementProjection,
    Matcher,
    PairwiseMatcher,
    build_matcher,
)
from dicl_flow.ops import (
    displacement_probability,
    displacement_windows,
    expected_displacement,
    length,
    normalize,
    normalized_entropy,
    pad_to_multiple,
    resize,
    upsample_flow,
    warp,
)


@pytest.fixture(scope="module")
def paper():
    return build(ModelConfig())


# --- flow ------------------------------------------------------------------------------------


def test_flo_files_start_with_202021_25_width_and_height_and_mark_unknown_flow_with_1e10():
    flow = np.float32([[[1, -2], [np.nan, 0], [3, 4]]])
    values = 1, -2, 1e10, 1e10, 3, 4
    assert encode_flow("x.flo", flow) == struct.pack("<fii6f", 202021.25, 3, 1, *values)
    assert encode_flow("x.flo", flow)[:4] == b"PIEH"


def test_a_component_beyond_1e9_makes_a_vector_of_a_flo_file_unknown():
    data = struct.pack("<fii6f", 202021.25, 3, 1, 1, -1.1e9, 0.9e9, 2, 3, 4)
    found = decode_flow("x.flo", data)
    assert np.isnan(found[0, 0]).all()
    np.testing.assert_array_equal(found[0, 1:], np.float32([[0.9e9, 2], [3, 4]]))


def test_kitti_files_are_16_bit_pngs_of_64_flow_plus_32768_and_validity():
    flow = np.float32([[[1.5, -2], [np.nan, np.nan]]])
    stored = cv2.imdecode(np.frombuffer(encode_flow("x.png", flow), np.uint8), -1)
    assert stored.dtype == np.uint16
    assert stored[..., ::-1].tolist() == [[[32768 + 96, 32768 - 128, 1], [0, 0, 0]]]  # RGB


def test_validity_and_not_the_value_marks_unknown_flow_in_kitti_files():
    rgb = np.uint16([[[0, 0, 1], [32768, 32768, 0]]])
    data = bytes(cv2.imencode(".png", rgb[..., ::-1])[1])
    np.testing.assert_array_equal(decode_flow("x.png", data), [[[-512, -512], [np.nan] * 2]])


def test_y_points_down_in_memory_and_up_in_exr_files():
    pytest.importorskip("OpenEXR", reason="OpenEXR is not installed")
    data = encode_flow("x.exr", np.float32([[[3, 4]]]))
    up = flow_files._decode_channels(data, flow_files._VECTORS)
    assert up.tolist() == [[[3, -4]]]


def finest(flow, *, matched=None, entropy=0.0):
    """A level of stride 4 that says the same (x, y) everywhere, or a flow (1, 2, H, W)."""
    flow = flow if isinstance(flow, torch.Tensor) else spread(*flow)
    matched = flow if matched is None else spread(*matched)
    return LevelFlow(matched, flow, torch.full_like(flow[:, :1], entropy))


def spread(x, y, size=(6, 8)):
    return torch.tensor([x, y])[None, :, None, None].expand(1, 2, *size).clone()


GREY = torch.zeros(1, 3, 24, 32)


def cues_at(levels, image1=GREY, image2=GREY, row=3, column=3):
    found = find_cues(levels, image1, image2)[0, :, row, column]
    return dict(zip(CUES, found.tolist(), strict=True))


def test_the_seven_cues_are_those_of_the_finest_level_in_pixels_of_the_frame():
    coarser = LevelFlow(*[torch.zeros(1, 2, 3, 4)] * 2, torch.zeros(1, 1, 3, 4))
    level = finest((0.75, 1.0), matched=(0.0, 1.0), entropy=0.3)
    found = cues_at([coarser, level], GREY, GREY + 0.5)
    expected = {
        "entropy": 0.3,
        "refinement": log(1 + 4 * 0.75),  # the context net moved the match by 0.75 px of stride 4
        "disagreement": log(1 + 4 * 1.25),
        "length": log(1 + 4 * 1.25),
        "edge": 0.0,
        "difference": log(0.5 + 0.02),
        "outside": 0.0,
    }
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_cue_of_an_edge_is_the_range_of_the_flow_among_the_neighbours():
    flow = torch.zeros(1, 2, 6, 8)
    flow[:, 0, :, 4:] = 0.5
    assert cues_at([finest(flow)], column=3)["edge"] == pytest.approx(log(1 + 4 * 0.5))
    assert cues_at([finest(flow)], column=2)["edge"] == 0


def test_a_flow_that_leaves_the_frame_is_outside():
    level = finest((3.0, 0.0))  # of a map 8 wide
    assert cues_at([level], column=4)["outside"] == 0
    assert cues_at([level], column=5)["outside"] == 1


def test_confidence_is_a_logistic_regression_resized_before_the_sigmoid():
    ramp = LevelFlow(*[torch.zeros(1, 2, 1, 2)] * 2, torch.tensor([[[[0.0, 1.0]]]]))
    calibration = Calibration(1.0, -4.0, *[0.0] * 6)  # 1 - 4 entropy
    found = find_confidence([ramp], *[torch.zeros(1, 3, 1, 3)] * 2, calibration)
    torch.testing.assert_close(found[0, 0, 0], torch.tensor([1.0, -1.0, -3.0]).sigmoid())


def test_confidence_without_a_calibration_is_one_minus_the_entropy():
    found = find_confidence([finest((0.0, 0.0), entropy=0.25)], GREY, GREY, None)
    torch.testing.assert_close(found, torch.full((1, 1, 24, 32), 0.75))


def test_a_frame_of_one_colour_to_within_a_grey_level_has_flow_0_and_confidence_0():
    answer, texture = torch.ones(3, 3, 2, 2), torch.rand(3, 3, 2, 2)
    image = torch.zeros(3, 3, 2, 2)
    image[0, 1, 0, 0], image[1, 1, 0, 0] = 2 / 255, 4 / 255  # one grey level and two
    image[2] = texture[2]
    gated = clear_uninformative(answer, image, texture)
    assert gated[0].eq(0).all()
    assert gated[1].eq(1).all()
    assert torch.equal(clear_uninformative(answer, texture, image), gated)


def test_a_pair_of_identical_frames_has_flow_0_and_keeps_its_confidence():
    texture = torch.rand(1, 3, 2, 2)
    gated = clear_uninformative(torch.ones(1, 3, 2, 2), texture, texture)
    assert gated[0, :, 0, 0].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("forward", "back", "occluded"),
    [
        ((2.0, 0.0), (-2.0, 0.0), False),  # returns
        ((0.0, 0.0), (1.99, 0.0), False),  # 3.96 <= 0.05 * 3.96 + 4
        ((0.0, 0.0), (2.06, 0.0), True),  # 4.24 > 0.05 * 4.24 + 4
        ((3.0, 0.0), (-0.84, 0.0), True),  # 4.67 > 0.05 * 9.71 + 4
        ((3.0, 0.0), (-0.9, 0.0), False),  # 4.41 <= 0.05 * 9.81 + 4
    ],
)
def test_a_pixel_is_occluded_if_the_backward_flow_does_not_lead_back(forward, back, occluded):
    found = find_occlusion(spread(*forward), spread(*back))
    assert found[0, 0, 2, 2].item() is occluded


def test_the_backward_flow_is_read_where_the_pixel_goes():
    backward = torch.zeros(1, 2, 6, 8)
    backward[:, 0, :, 5] = -3  # only there does it lead back
    found = find_occlusion(spread(3.0, 0.0), backward)[0, 0]
    assert found[2].tolist() == [True, True, False, True, True, True, True, True]  # 5 on: outside


def test_a_pixel_that_leaves_the_frame_is_occluded_however_well_the_flows_agree():
    found = find_occlusion(spread(1.0, 0.0), spread(-1.0, 0.0))
    assert found[0, 0, 2].tolist() == [False] * 7 + [True]


# --- images ---------------------------------------------------------------------------------


def test_input_is_rgb_normalised_to_minus_one_one():
    image = np.zeros((2, 3, 3), np.uint8)
    image[..., 0], image[..., 1] = 255, 51
    batch = normalize(image_batch(image)[0])
    assert batch.shape == (1, 3, 2, 3)
    torch.testing.assert_close(batch[0, :, 0, 0], torch.tensor([1.0, -0.6, -1.0]))


def test_images_are_padded_at_the_right_and_bottom_to_multiples_of_128():
    assert ModelConfig().pad_multiple == 128
    image = torch.rand(1, 3, 130, 50)
    padded = pad_to_multiple(image, 128)
    assert padded.shape == (1, 3, 256, 128)
    assert torch.equal(padded[..., :130, :50], image)
    assert torch.equal(padded[..., :130, 127], image[..., 49])
    assert torch.equal(padded[..., 255, :50], image[..., 129, :])


def test_white_padding_is_one_in_normalised_units():
    padded = pad_to_multiple(torch.full((1, 3, 1, 1), -1.0), 2, "white")
    assert padded[0, 0].tolist() == [[-1, 1], [1, 1]]


def test_floats_of_users_are_in_zero_one():
    image = np.float32([[[1, 0.2, 0]]])
    torch.testing.assert_close(
        normalize(image_batch(image)[0])[0, :, 0, 0], torch.tensor([1.0, -0.6, -1.0])
    )


RESIZING = Feeding.of(replace(ModelConfig(), padding="resize", max_pixels=128 * 256))


def test_frames_of_more_than_max_pixels_are_scaled_down_to_about_that():
    assert RESIZING.seen((256, 512)) == (128, 256)
    assert RESIZING.seen((100, 200)) == (128, 256)  # to multiples, and no smaller
    assert Feeding.of(replace(ModelConfig(), padding="resize")).seen((256, 512)) == (256, 512)
    coarse = replace(ModelConfig(), padding="resize", multiple=256)
    assert Feeding.of(coarse).seen((100, 300)) == (256, 512)


def test_frame_size_is_that_of_every_frame():
    fixed = Feeding.of(replace(ModelConfig(), padding="resize", frame_size=(384, 512)))
    for size in ((436, 1024), (375, 1242), (384, 512), (100, 100)):
        assert fixed.seen(size) == (384, 512)
    flow = fixed.unfit_flow(spread(1.0, 2.0, (384, 512)), (768, 256))
    torch.testing.assert_close(flow[0, :, 7, 9], torch.tensor([0.5, 4.0]))
    full = replace(ModelConfig(), padding="resize", frame_size=(384, 512)).at_full_size()
    assert Feeding.of(full).seen((436, 1024)) == (512, 1024)


def test_resized_frames_are_areas_and_the_flow_is_resized_to_match():
    image = torch.zeros(1, 3, 256, 512)
    image[..., ::2] = 1  # an average of areas is 0.5 everywhere
    small = RESIZING.fit(image)
    torch.testing.assert_close(
        small[..., 2:-2], torch.full((1, 3, 128, 252), 0.5), atol=2e-3, rtol=0
    )
    flow = RESIZING.unfit_flow(spread(1.0, 2.0, (128, 256)), (256, 1024))
    assert flow.shape == (1, 2, 256, 1024)
    torch.testing.assert_close(flow[0, :, 7, 9], torch.tensor([4.0, 4.0]))


# --- feature net ----------------------------------------------------------------------------


def test_feature_net_has_the_published_widths(paper):
    features = paper.features
    widths = [32, 48, 64, 96, 128, 160, 192]
    assert [block.conv.out_channels for block in features.stem] == [32, 32, 32]
    assert [block.conv.stride[0] for block in features.stem] == [1, 2, 1]
    assert [block.conv.out_channels for block in features.down.values()] == widths[1:]
    assert [m.fuse.conv.out_channels for m in features.up.values()] == widths[-2::-1]
    assert [m.fuse.conv.out_channels for m in features.down_again.values()] == widths[1:]
    assert [m.fuse.conv.out_channels for m in features.up_again.values()] == widths[-2:0:-1]
    assert list(features.outputs) == ["64", "32", "16", "8", "4"]
    assert {block.conv.out_channels for block in features.outputs.values()} == {32}


def test_resampling_in_a_merge_has_no_batch_norm_and_the_fusion_has(paper):
    merges = [*paper.features.up.values(), *paper.features.down_again.values()]
    assert all(isinstance(merge.resample.bn, nn.Identity) for merge in merges)
    assert all(isinstance(merge.fuse.bn, nn.BatchNorm2d) for merge in merges)
    assert all(isinstance(m.resample.conv, nn.ConvTranspose2d) for m in paper.features.up.values())
    assert all(m.resample.conv.stride == (2, 2) for m in merges)


def test_features_have_32_channels_at_strides_64_to_4(paper):
    shapes = [tuple(features.shape) for features in paper.features(torch.rand(1, 3, 128, 256))]
    assert shapes == [(1, 32, 128 // s, 256 // s) for s in (64, 32, 16, 8, 4)]


# --- matching -------------------------------------------------------------------------------


def test_matching_net_has_the_layers_of_the_paper():
    net = build_matcher("dicl", 32, 3).net
    blocks, score = [net.first, net.down, *net.inner, net.up], net.score
    assert [*net] == [*blocks, score]
    layers = [(b.conv.in_channels, b.conv.out_channels, b.conv.kernel_size[0]) for b in blocks]
    assert layers == [(64, 96, 3), (96, 128, 3), (128, 128, 3), (128, 64, 3), (64, 32, 4)]
    assert [block.conv.stride[0] for block in blocks] == [1, 2, 1, 1, 2]
    assert all(block.conv.bias is None for block in blocks)
    assert (score.in_channels, score.out_channels, score.kernel_size) == (32, 1, (3, 3))
    assert score.bias is not None


def test_every_level_has_its_own_matching_net(paper):
    nets = [level.matcher.net[0].conv.weight for level in paper.levels.values()]
    assert len({id(weight) for weight in nets}) == 5


def test_outer_displacement_is_horizontal_and_pixel_p_shows_p_plus_d():
    features = torch.zeros(1, 1, 5, 6)
    features[0, 0, 2, 4] = 1
    windows = displacement_windows(features, 3)
    assert windows.shape == (1, 1, 7, 7, 5, 6)
    dx, dy = 2, -1
    assert windows[0, 0, dx + 3, dy + 3].nonzero().tolist() == [[2 - dy, 4 - dx]]


def test_flat_displacement_channel_is_dx_major():
    """Channel (dx+3)·7 + (dy+3): the order in which the released projections are stored."""
    scores = torch.zeros(1, 7, 7, 1, 1)
    projection = DisplacementProjection(3)
    with torch.no_grad():
        projection.weight[:, :, 0, 0] = torch.eye(49).roll(1, 0)  # output n reads input n-1
    scores[0, 5, 6] = 1
    assert projection(scores)[0, 6, 0, 0, 0] == 1


def test_shift_beyond_a_small_map_gives_zeros():
    windows = displacement_windows(torch.ones(1, 1, 2, 2), 3)
    assert windows[0, 0, 0].abs().sum() == 0  # dx = -3
    assert windows[0, 0, 3, 6].abs().sum() == 0  # dy = 3
    assert windows[0, 0, 3, 3].sum() == 4


def test_both_halves_of_a_pair_are_zero_where_there_is_nothing_to_compare():
    seen = []

    class Spy(nn.Module):
        def forward(self, pairs):
            seen.append(pairs)
            return pairs[:, :1]

    features1, features2 = torch.rand(1, 2, 3, 4) + 1, torch.rand(1, 2, 3, 4) + 1
    features2[0, :, 1, 1] = 0  # a hole left by the warp
    PairwiseMatcher(Spy(), 1)(features1, features2)
    pairs = seen[0].reshape(3, 3, 4, 3, 4)  # (U, V, C1 + C2, H, W)
    centre, right = pairs[1, 1], pairs[2, 1]
    assert centre[:, 1, 1].abs().sum() == 0
    assert (centre[:, 0, 0] > 0).all()
    assert right[:, :, 3].abs().sum() == 0  # x + 1 lies outside
    assert right[:, 1, 0].abs().sum() == 0  # x + 1 is the hole
    torch.testing.assert_close(right[:2, 0, 0], features1[0, :, 0, 0])
    torch.testing.assert_close(right[2:, 0, 0], features2[0, :, 0, 1])


def test_a_half_zero_vector_is_still_compared():
    features2 = torch.zeros(1, 2, 1, 1)
    features2[0, 1] = 1
    matcher = PairwiseMatcher(nn.Conv2d(4, 1, 1, bias=False), 1)
    nn.init.ones_(matcher.net.weight)
    assert matcher(torch.ones(1, 2, 1, 1), features2)[0, 0, 1, 1] == 3


# --- reading the flow off -------------------------------------------------------------------


def test_higher_scores_win():
    scores = torch.zeros(1, 7, 7, 1, 1)
    scores[0, 5, 1] = 50  # dx = 2, dy = -2
    flow = expected_displacement(displacement_probability(scores))
    torch.testing.assert_close(flow[0, :, 0, 0], torch.tensor([2.0, -2.0]))


def test_soft_argmax_is_the_expectation_over_all_49():
    scores = torch.zeros(1, 7, 7, 1, 1)
    scores[0, 3, 3], scores[0, 6, 3] = 100, 100 + log(3)
    flow = expected_displacement(displacement_probability(scores))
    torch.testing.assert_close(flow[0, :, 0, 0], torch.tensor([0.75 * 3, 0.0]))


def test_entropy_is_normalised_by_the_logarithm_of_49():
    uniform = displacement_probability(torch.zeros(1, 7, 7, 1, 1))
    torch.testing.assert_close(normalized_entropy(uniform).item(), 1.0)
    certain = displacement_probability(
        torch.zeros(1, 7, 7, 1, 1).index_fill(1, torch.tensor(3), 90)
    )
    torch.testing.assert_close(normalized_entropy(certain).item(), log(7) / log(49))


def test_length_is_that_of_torch_and_has_no_gradient_at_zero():
    vectors = torch.randn(2, 2, 3, 4, dtype=torch.float64)
    vectors[0, :, 0, 0] = 0
    ours, theirs = (vectors.clone().requires_grad_() for _ in range(2))
    lengths = length(ours), theirs.norm(dim=1)
    assert lengths[0][0, 0, 0] == 0
    torch.testing.assert_close(*lengths)
    for each in lengths:
        each.sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert length(torch.tensor([[torch.nan, 1.0]])).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_entropy_and_flow_are_never_below_float32(dtype):
    probability = displacement_probability(torch.rand(1, 3, 3, 2, 2, dtype=dtype))
    assert probability.dtype == torch.float32
    assert displacement_probability(torch.rand(1, 3, 3, 2, 2).double()).dtype == torch.float64


def test_projection_starts_as_the_identity_without_bias(paper):
    for level in paper.levels.values():
        assert list(dict(level.projection.named_parameters())) == ["weight"]
        assert torch.equal(level.projection.weight[:, :, 0, 0], torch.eye(49))


# --- between levels -------------------------------------------------------------------------


class FixedMatcher(Matcher):
    """Always the same displacement, whatever it is shown; remembers what it was shown."""

    def __init__(self, dx, dy):
        super().__init__(radius=1)
        self.scale = nn.Parameter(torch.tensor(100.0))
        self.dx, self.dy = dx, dy

    def forward(self, features1, features2):
        self.seen = features2
        batch, _, height, width = features1.shape
        scores = torch.zeros(batch, 1, 3, 3, height, width)
        scores[:, :, self.dx + 1, self.dy + 1] = 1
        return scores * self.scale


def test_matched_flow_is_the_expectation_plus_the_coarse_flow():
    level = DiclLevel(FixedMatcher(1, -1), None, None)
    features = torch.rand(1, 2, 4, 4)
    coarse = torch.full((1, 2, 4, 4), 0.5)
    out = level(features, features, torch.rand(1, 3, 16, 16), coarse)
    torch.testing.assert_close(out.matched[0, :, 2, 2], torch.tensor([1.5, -0.5]))
    torch.testing.assert_close(level.matcher.seen, warp(features, coarse))


def test_coarsest_level_is_not_warped():
    level = DiclLevel(FixedMatcher(0, 0), None, None)
    features = torch.rand(1, 2, 4, 4)
    level(features, features, torch.rand(1, 3, 16, 16), None)
    assert level.matcher.seen is features


def test_flow_between_levels_is_doubled_resized_and_detached():
    model = build(SMALL)
    matchers = [FixedMatcher(1, 0), FixedMatcher(0, 1)]
    for level, matcher in zip(model.levels.values(), matchers, strict=True):
        level.matcher, level.projection, level.context = matcher, nn.Identity(), None
    coarse, fine = model(*torch.rand(2, 1, 3, 32, 32))
    torch.testing.assert_close(coarse.refined[0, :, 0, 0], torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(fine.refined[0, :, 0, 0], torch.tensor([2.0, 1.0]))
    fine.refined.sum().backward()
    assert matchers[0].scale.grad is None, "the finer level must not train the coarser one"
    assert matchers[1].scale.grad is not None


def test_full_size_flow_scales_x_by_width_and_y_by_height():
    flow = torch.ones(1, 2, 2, 4)
    full = upsample_flow(flow, (6, 20))
    assert full.shape == (1, 2, 6, 20)
    torch.testing.assert_close(full[0, :, 0, 0], torch.tensor([5.0, 3.0]))


def test_resizing_keeps_corners_on_corners():
    ramp = torch.tensor([0.0, 1.0, 2.0]).expand(1, 1, 2, 3)
    torch.testing.assert_close(resize(ramp, (2, 5))[0, 0, 0], torch.linspace(0, 2, 5))


# --- warping --------------------------------------------------------------------------------


def test_warp_is_backward_and_x_comes_first():
    features = torch.arange(12.0).reshape(1, 1, 3, 4)
    flow = torch.zeros(1, 2, 3, 4)
    flow[:, 0], flow[:, 1] = 1, -1
    assert warp(features, flow)[0, 0, 1, 1] == features[0, 0, 0, 2]


def test_warp_samples_bilinearly_at_pixel_centres():
    features = torch.tensor([[0.0, 10.0, 20.0]]).expand(3, 3)[None, None]
    flow = torch.zeros(1, 2, 3, 3)
    flow[:, 0] = 0.25
    torch.testing.assert_close(warp(features, flow)[0, 0, 1, :2], torch.tensor([2.5, 12.5]))


def test_samples_that_touch_the_outside_are_zero():
    features = torch.ones(1, 1, 3, 3)
    flow = torch.zeros(1, 2, 3, 3)
    flow[:, 0, :, 2] = 0.0005  # weight inside .9995
    flow[:, 0, :, 0] = -0.00005  # weight inside .99995: still counts
    warped = warp(features, flow)[0, 0]
    assert (warped[:, 2] == 0).all()
    assert (warped[:, :2] > 0.999).all()


def test_warp_of_half_features_uses_a_float32_grid():
    features = torch.rand(1, 1, 1, 600, dtype=torch.float64)
    flow = torch.zeros(1, 2, 1, 600)
    flow[:, 0] = 0.3
    warped = warp(features.half(), flow)
    assert warped.dtype == torch.float16
    expected = warp(features, flow.double())
    assert (warped.double() - expected).abs().max() < 2e-3  # a half grid is off by up to .25 px


# --- context net ----------------------------------------------------------------------------


def test_context_net_layers_by_stride(paper):
    deep = [(64, 1), (128, 2), (128, 4), (96, 8), (64, 16), (32, 1)]
    expected = {
        "64": [(64, 1), (64, 2), (32, 1)],
        "32": [(64, 1), (128, 2), (64, 4), (32, 1)],
        "16": [(64, 1), (128, 2), (128, 4), (64, 8), (32, 1)],
        "8": deep,
        "4": deep,
    }
    for stride, level in paper.levels.items():
        layers = level.context.layers
        found = [(block.conv.out_channels, block.conv.dilation[0]) for block in layers[:-1]]
        assert found == expected[stride]
        assert layers[0].conv.in_channels == 38
        assert (layers[-1].out_channels, layers[-1].bias is None) == (2, False)


def test_context_output_is_scaled_by_two_over_stride(paper):
    scales = [level.context.scale for level in paper.levels.values()]
    assert scales == [1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2]


def test_context_input_is_flow_entropy_features_image_with_flow_and_entropy_detached():
    context = ContextNet(2, (), scale=3.0)
    flow = torch.full((1, 2, 4, 4), 1.0, requires_grad=True)
    entropy = torch.full((1, 1, 4, 4), 2.0, requires_grad=True)
    features = torch.full((1, 2, 4, 4), 4.0, requires_grad=True)
    image = torch.full((1, 3, 8, 8), 8.0)
    with torch.no_grad():
        context.layers[0].bias.zero_()
        context.layers[0].weight.zero_()
        context.layers[0].weight[0, :, 1, 1] = torch.tensor([1.0, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7])
    out = context(flow, entropy, features, image)
    expected = 3 * (1 * 11 + 2 * 100 + 4 * 11e3 + 8 * 111e5)
    torch.testing.assert_close(out[0, 0, 2, 2].item(), float(expected), rtol=1e-6, atol=0)
    out.sum().backward()
    assert flow.grad is None
    assert entropy.grad is None
    assert features.grad is not None


def test_without_context_the_refined_flow_is_the_matched_flow():
    level = DiclLevel(FixedMatcher(1, 0), None, None)
    out = level(*torch.rand(2, 1, 2, 4, 4), torch.rand(1, 3, 8, 8), None)
    assert out.refined is out.matched


# --- initialisation -------------------------------------------------------------------------


def test_convolutions_start_kaiming_normal_fan_out(paper):
    weight = paper.levels["4"].matcher.net[2].conv.weight
    assert abs(weight.std().item() / sqrt(2 / (128 * 9)) - 1) < 0.02
    up = paper.features.up["64"].resample.conv.weight  # transposed: fan out is dim 0 there
    assert abs(up.std().item() / sqrt(2 / (192 * 16)) - 1) < 0.02
    norm = paper.features.stem[0].bn
    assert (norm.weight == 1).all()
    assert (norm.bias == 0).all()
    assert (paper.levels["4"].matcher.net[-1].bias == 0).all()


# --- the whole ------------------------------------------------------------------------------


def test_reach_accumulates_radius_times_stride():
    assert ModelConfig().reach == (192, 288, 336, 360, 372)


def test_estimator_is_network_then_resize_then_crop():
    torch.manual_seed(3)
    model = build(SMALL).eval()
    image1, image2 = torch.rand(2, 1, 3, 20, 35)
    flow, confidence = FlowEstimator(model, "cpu", "fp32", "plain").estimate(image1, image2)
    with torch.no_grad():
        padded = [F.pad(x * 2 - 1, (0, 13, 0, 12), mode="replicate") for x in (image1, image2)]
        finest = model(*padded)[-1]
        full = F.interpolate(finest.refined, (32, 48), mode="bilinear", align_corners=True) * 4
        sure = 1 - F.interpolate(finest.entropy, (32, 48), mode="bilinear", align_corners=True)
    torch.testing.assert_close(flow, full[..., :20, :35])
    torch.testing.assert_close(confidence, sure[..., :20, :35])
