"""Views of the footage have exactly transformed flow; batches depend on their step alone."""

from itertools import islice

import numpy as np
import pytest
import torch
from small_adaptation import moving_picture
from small_training import CPU, RandomSource

from dicl_flow.adaptation.settings import read_settings
from dicl_flow.adaptation.student import (
    FootageDataset,
    FootageSource,
    Mixed,
    between,
    footage_speed,
    paced,
    staying_shares,
)
from dicl_flow.adaptation.teacher import Lesson, count_kept, encode_counts, encode_flows
from dicl_flow.config import AugmentConfig, ModelConfig
from dicl_flow.data import UnlabelledBatch
from dicl_flow.data.augmentation import draw_placement
from dicl_flow.files import encode_image, write_files
from dicl_flow.weights import Weights

SIZE = (32, 48)
CROP = (16, 32)
MOVED = AugmentConfig(
    crop=CROP, color=0.0, eraser=0.0, noise=0.0, spatial=1.0, vertical_flip=0.5, max_scale=0.5
)
HARD = AugmentConfig(crop=CROP, eraser_size=(4, 8), noise=0.05, blur=1.5)


@pytest.fixture
def lessons(tmp_path):
    """Three pairs with smooth flow, another one backwards, and holes in what is kept."""
    made = []
    for number in range(3):
        names = ("1.png", "2.png", "f.npy", "f.json", "new.png", "new.npy", "look.npy")
        files = Lesson(*(tmp_path / f"{number}{name}" for name in names))
        frames = moving_picture(3, SIZE, seed=number)
        flows = [wavy_flow(10 * number + seed) for seed in range(3)]
        write_files(
            {
                files.image1: encode_image(files.image1, frames[0]),
                files.image2: encode_image(files.image2, frames[1]),
                files.flows: encode_flows(*flows[:2]),
                files.new_image2: encode_image(files.new_image2, frames[2]),
                files.new_flow: encode_flows(flows[2]),
            }
        )
        made.append(files)
    return made


def test_half_of_the_way_is_the_mean():
    start = Weights(ModelConfig(), {"a": torch.tensor([0.0, 2.0]), "count": torch.tensor(3)})
    end = Weights(ModelConfig(), {"a": torch.tensor([1.0, 4.0]), "count": torch.tensor(5)})
    found = between(start, end, 0.5).tensors
    assert found["a"].tolist() == [0.5, 3.0]
    assert found["count"] == 5
    assert torch.equal(between(start, end, 1.0).tensors["a"], end.tensors["a"])


def test_scenes_move_as_fast_as_the_footage_does(lessons):
    kept = np.zeros(SIZE, bool)  # pixels count whether they are kept or not
    for files, distance in zip(lessons, (1, 2, 4), strict=True):
        flow = np.full((*SIZE, 2), 3.0 * distance / 2**0.5, np.float32)  # 3 px from frame to frame
        write_files({files.counts: encode_counts(count_kept(flow, kept))})
    speed = footage_speed(lessons, (1, 2, 4))
    assert speed == pytest.approx(2 * 2**0.5)  # the middle of the octave from 2 to 4
    _, recipe = read_settings(["render.motion=0.8"], ModelConfig(), 0)
    assert paced(recipe, 5.3).render.motion == pytest.approx(0.4)
    assert paced(recipe, 100.0).render.motion == 0.8
    assert paced(recipe, 0.0).render.motion == 0.05


def wavy_flow(seed):
    """(1, 2, H, W) flow in steps of a 64th, and (1, H, W) kept pixels."""
    generator = torch.Generator().manual_seed(seed)
    coarse = 4 * torch.randn(1, 2, 4, 6, generator=generator)
    flow = torch.nn.functional.interpolate(coarse, SIZE, mode="bilinear", align_corners=True)
    kept = torch.rand(1, *SIZE, generator=generator) < 0.97
    return (flow * 64).round() / 64, kept


def naive_view(flow, kept, placement):
    """Flow and validity of a view, pixel by pixel."""
    origin, motion = placement.origin, placement.motion
    vectors, valid = np.zeros((*placement.size, 2)), np.zeros(placement.size, bool)
    for row in range(placement.size[0]):
        for column in range(placement.size[1]):
            x, y, _ = origin @ (column, row, 1)
            x = np.clip(round(x * 32) / 32, 0, SIZE[1] - 1)  # OpenCV's steps
            y = np.clip(round(y * 32) / 32, 0, SIZE[0] - 1)
            left, top = int(x), int(y)
            vector, whole = np.zeros(2), True
            for corner_x, corner_y in ((0, 0), (1, 0), (0, 1), (1, 1)):
                weight = (1 - abs(x - left - corner_x)) * (1 - abs(y - top - corner_y))
                place = min(top + corner_y, SIZE[0] - 1), min(left + corner_x, SIZE[1] - 1)
                if weight > 0:
                    vector += weight * flow[place]
                    whole &= bool(kept[place])
            start = np.array([column, row, 1.0])
            end = motion @ (start + np.append(np.linalg.inv(origin)[:2, :2] @ vector, 0))
            vectors[row, column], valid[row, column] = (end - start)[:2], whole
    return vectors, valid


@pytest.mark.parametrize("new_frames", [0.0, 1.0])
def test_flow_and_mask_of_a_view_are_those_of_a_naive_transformation(lessons, new_frames):
    dataset = FootageDataset(lessons, MOVED, seed=3, new_frames=new_frames)
    ways = set()
    for epoch in range(6):
        view = dataset[epoch, 1]
        generator = np.random.default_rng([3, epoch, 1])
        backwards = bool(generator.random(2)[1] < 0.5)
        generator.random()  # no part is erased
        placement = draw_placement(SIZE, MOVED, generator, sparse=False)
        seed = 12 if new_frames else 10 + backwards
        flow, kept = wavy_flow(seed)
        expected, valid = naive_view(flow[0].permute(1, 2, 0).numpy(), kept[0].numpy(), placement)
        differing = view.valid != valid
        assert differing.mean() < 0.02  # where a position is rounded to a pixel, or just not
        both = view.valid & valid
        assert both.mean() > 0.5
        assert np.abs(view.flow - expected)[both].max() < 0.05
        assert not view.flow[~view.valid].any()
        ways.add(backwards)
    assert ways == {True, False}


def test_reversed_pairs_have_their_frames_swapped(lessons):
    plain = AugmentConfig.crop_only(SIZE)
    dataset = FootageDataset(lessons, plain, seed=0)
    views = [dataset[epoch, 0] for epoch in range(20)]
    frames = moving_picture(3, SIZE, seed=0)
    seen = set()
    for view in views:
        backwards = np.array_equal(view.image1, frames[1])
        first, second = frames[:2][::-1] if backwards else frames[:2]
        np.testing.assert_array_equal(view.image1, first)
        np.testing.assert_array_equal(view.image2, second)
        flow, kept = wavy_flow(int(backwards))
        np.testing.assert_array_equal(view.valid, kept[0])
        expected = flow[0].permute(1, 2, 0).numpy()[view.valid]
        np.testing.assert_allclose(view.flow[view.valid], expected, atol=1e-5)
        seen.add(backwards)
    assert seen == {True, False}


def test_frequent_speeds_are_thinned_out(lessons):
    shares = staying_shares([10_000, 0, 400, 100], 1.0)
    np.testing.assert_allclose(shares, [0.1, 1, 1, 1])
    np.testing.assert_allclose(staying_shares([1600, 0, 400, 100], 0.5), [0.5, 1, 1, 1])
    np.testing.assert_allclose(staying_shares([1600, 0, 400, 100], 0.0), 1)
    whole = FootageDataset(lessons, HARD, seed=0)[0, 0]
    none = FootageDataset(lessons, HARD, seed=0, stay=np.zeros(9, np.float32))[0, 0]
    half = FootageDataset(lessons, HARD, seed=0, stay=np.full(9, 0.5, np.float32))[0, 0]
    assert not none.valid.any()
    assert 0.4 < half.valid.sum() / whole.valid.sum() < 0.6
    np.testing.assert_array_equal(half.flow, whole.flow)


class Counting:
    """Batches that are the number of their step, of this source."""

    def __init__(self, name):
        self.name = name

    def batches(self, size, start_step, processes):
        while True:
            yield self.name, start_step
            start_step += 1


def test_sources_take_turns_and_each_step_has_its_batch():
    source = Mixed(Counting("footage"), Mixed(Counting("usual"), Counting("own"), 0.25))
    steps = [*islice(source.batches(2, 0, CPU), 40)]
    assert [name for name, _ in steps[::2]] == ["footage"] * 20
    names = [name for name, _ in steps[1::2]]
    assert (names.count("usual"), names.count("own")) == (15, 5)
    for name in ("footage", "usual", "own"):
        numbers = [number for kind, number in steps if kind == name]
        assert numbers == [*range(len(numbers))]
    for start in range(40):
        assert next(source.batches(2, start, CPU)) == steps[start]


@pytest.mark.parametrize(("share", "name"), [(0.0, "footage"), (1.0, "scenes")])
def test_a_source_without_a_share_is_never_asked(share, name):
    source = Mixed(Counting("footage"), Counting("scenes"), share)
    assert {kind for kind, _ in islice(source.batches(2, 3, CPU), 20)} == {name}


def test_a_resumed_stream_goes_on_with_the_same_batches(lessons):
    dataset = FootageDataset(lessons, HARD, seed=5, new_frames=0.3)
    source = Mixed(FootageSource(dataset, 0), RandomSource())
    first = [*islice(source.batches(2, 0, CPU), 8)]
    resumed = [*islice(source.batches(2, 5, CPU), 3)]
    for one, two in zip(first[5:], resumed, strict=True):
        assert all(map(torch.equal, vars(one).values(), vars(two).values()))
    assert all(type(batch) is UnlabelledBatch for batch in first[::2])
    assert not any(isinstance(batch, UnlabelledBatch) for batch in first[1::2])
    assert not torch.equal(first[0].image1, first[2].image1)
