"""Batches depend on seed and step alone, not on workers, ranks or restarts."""

import json
import os
from dataclasses import fields, replace
from itertools import islice

import cv2
import numpy as np
import pytest
import torch

from dicl_flow.cli import describe, main
from dicl_flow.config import AugmentConfig
from dicl_flow.data import FlowDataset, FlowPair, FlowSample
from dicl_flow.data.loader import stream_batches, usable_workers
from dicl_flow.errors import InputError
from dicl_flow.files import encode_image, write_flow
from dicl_flow.lab.data_sets import measure_loader, measure_stages

CONFIG = AugmentConfig((24, 32), eraser_size=(3, 6))
SEED = 7


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Five pairs laid out as FlyingChairs; the blue channel of a frame tells its pair."""
    folder = tmp_path_factory.mktemp("chairs") / "data"
    folder.mkdir()
    return [make_pair(folder, number) for number in range(5)]


@pytest.fixture
def threads_kept():
    """Undo what a command may do to its process but a test may not."""
    threads = torch.get_num_threads(), cv2.getNumThreads()
    yield
    torch.set_num_threads(threads[0])
    cv2.setNumThreads(threads[1])


def make_pair(folder, number):
    generator = np.random.default_rng(number)
    paths = [folder / f"0000{number}_{end}" for end in ("img1.ppm", "img2.ppm", "flow.flo")]
    for path in paths[:2]:
        image = generator.integers(0, 256, (40, 56, 3), dtype=np.uint8)
        image[..., 2] = 10 * number
        path.write_bytes(encode_image(path, image))
    write_flow(paths[2], generator.normal(size=(40, 56, 2)).astype(np.float32))
    return FlowPair(str(number), *paths)


def take(dataset, batch_size, count, **options):
    return list(islice(stream_batches(dataset, batch_size, **{"workers": 0, **options}), count))


def equal(first, second):
    return all(
        torch.equal(getattr(first, field.name), getattr(second, field.name))
        for field in fields(first)
    )


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_do_not_depend_on_the_number_of_workers(pairs, workers):
    dataset = FlowDataset(pairs, CONFIG, SEED)
    expected = take(dataset, 2, 6)
    found = take(dataset, 2, 6, workers=workers)
    assert all(map(equal, expected, found))
    assert expected[0].image1.shape == (2, 3, 24, 32)


def test_another_seed_gives_other_batches(pairs):
    first, again, other = (take(FlowDataset(pairs, CONFIG, s), 5, 1)[0] for s in (7, 7, 8))
    assert equal(first, again)
    assert not equal(first, other)
    samples = [FlowDataset(pairs, CONFIG, seed)[0, 0] for seed in (7, 8)]
    assert not np.array_equal(samples[0].image1, samples[1].image1)
    assert len({tuple(FlowDataset(pairs, CONFIG, seed).order(0)) for seed in range(20)}) > 10


def test_each_epoch_sees_every_pair_once_and_in_its_own_order(pairs):
    dataset = FlowDataset(pairs, AugmentConfig.crop_only((24, 32)), SEED)
    batches = take(dataset, 2, 25)  # 10 epochs of 5 pairs, in batches that do not divide them
    seen = torch.cat([batch.image1[:, 2, 0, 0] for batch in batches]).mul(255 / 10).round()
    epochs = seen.int().reshape(10, 5)
    np.testing.assert_array_equal(epochs.sort(dim=1).values, np.tile(np.arange(5), (10, 1)))
    assert len({tuple(epoch.tolist()) for epoch in epochs}) > 5


def test_no_two_epochs_and_no_two_listings_repeat_a_variation(pairs):
    dataset = FlowDataset([pairs[0], pairs[0]], CONFIG, SEED)
    samples = [dataset[key] for key in [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]]
    assert len({sample.image1.tobytes() for sample in samples}) == 5
    np.testing.assert_array_equal(dataset[0, 1].image1, samples[3].image1)


@pytest.mark.heavy
def test_a_stream_is_resumed_by_its_step(pairs):
    dataset = FlowDataset(pairs, CONFIG, SEED)
    whole = take(dataset, 2, 8)
    assert all(map(equal, whole[5:], take(dataset, 2, 3, start_step=5, workers=1)))
    assert not equal(whole[0], whole[5])


def test_the_batches_of_all_ranks_make_up_the_batch_of_one_process(pairs):
    dataset = FlowDataset(pairs, CONFIG, SEED)
    whole = take(dataset, 6, 4)
    for rank in range(3):
        for large, small in zip(whole, take(dataset, 2, 4, rank=rank, world_size=3), strict=True):
            part = slice(2 * rank, 2 * rank + 2)
            assert torch.equal(large.image2[part], small.image2)
            assert torch.equal(large.flow[part], small.flow)


def test_sparse_pairs_are_treated_as_such(pairs):
    doubled = replace(CONFIG, spatial=1.0, min_scale=1.0, stretch_probability=0.0)
    dense, sparse = (
        FlowDataset([replace(pairs[0], sparse=flag)], doubled, SEED)[0, 0].valid.mean()
        for flag in (False, True)
    )
    assert dense == 1
    assert sparse == pytest.approx(0.25, abs=0.02)


def test_without_augmentation_the_files_come_as_they_are(pairs):
    batch = take(FlowDataset(pairs, None, SEED), 1, 1)[0]
    assert batch.image1.shape == (1, 3, 40, 56)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    ("content", "expected"), [(b"no image", InputError), (None, FileNotFoundError)]
)
def test_a_broken_file_is_named(pairs, tmp_path, workers, content, expected):
    broken = tmp_path / "broken.png"
    if content:
        broken.write_bytes(content)
    dataset = FlowDataset([*pairs, replace(pairs[0], image2=broken)], CONFIG, SEED)
    with pytest.raises(expected) as error:
        take(dataset, 6, 1, workers=workers)
    assert str(broken) in describe(error.value)
    assert "Traceback" not in describe(error.value)


@pytest.mark.heavy
def test_the_global_generator_is_left_alone(pairs):
    before = torch.get_rng_state()
    take(FlowDataset(pairs, CONFIG, SEED), 2, 2, workers=1)
    assert torch.equal(before, torch.get_rng_state())


class ThreadCounts(FlowDataset):
    """Samples whose flow is the number of threads that torch and OpenCV would use."""

    def __getitem__(self, key):
        flow = np.full((1, 1, 2), (torch.get_num_threads(), cv2.getNumThreads()), np.float32)
        image = np.zeros((1, 1, 3), np.uint8)
        return FlowSample(image, image, flow, np.ones((1, 1), bool))


@pytest.mark.usefixtures("threads_kept")
@pytest.mark.heavy
def test_a_worker_keeps_to_one_core(pairs):
    cv2.setNumThreads(2)
    batch = take(ThreadCounts(pairs, CONFIG, SEED), 1, 1, workers=1)[0]
    assert batch.flow.flatten().tolist() == [1, 1]


def test_there_are_no_more_workers_than_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert [usable_workers(wanted) for wanted in (0, 2, 3, 4, 64)] == [0, 2, 3, 3, 3]
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS, Windows
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_workers(4) == 1


inherited = False


class Inheritance(FlowDataset):
    """Samples whose flow is what the process has of its parent's memory."""

    def __getitem__(self, key):
        image = np.zeros((1, 1, 3), np.uint8)
        flow = np.full((1, 1, 2), inherited, np.float32)
        return FlowSample(image, image, flow, np.ones((1, 1), bool))


@pytest.mark.heavy
def test_workers_are_not_forked(pairs, monkeypatch):
    monkeypatch.setattr(f"{__name__}.inherited", True)
    dataset = Inheritance(pairs, CONFIG, SEED)
    assert take(dataset, 1, 1)[0].flow.all()
    assert not take(dataset, 1, 1, workers=1)[0].flow.any()


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"workers": -1},
        {"start_step": -1},
        {"rank": 2, "world_size": 2},
    ],
)
def test_impossible_options_are_refused_at_once_and_named(pairs, options):
    arguments = {"batch_size": 1, "workers": 0, **options}
    with pytest.raises(InputError, match=next(iter(options))):
        stream_batches(FlowDataset(pairs, CONFIG, SEED), **arguments)


def test_a_data_set_needs_pairs_and_a_seed(pairs):
    with pytest.raises(InputError, match="at least one pair"):
        FlowDataset([], CONFIG, SEED)
    with pytest.raises(InputError, match="seed"):
        FlowDataset(pairs, CONFIG, -1)


@pytest.mark.heavy
def test_the_bench_measures_loader_and_stages(pairs):
    assert measure_loader(FlowDataset(pairs, CONFIG, SEED), 2, workers=1, seconds=0.1) > 0
    stages = measure_stages(pairs, CONFIG, 2, seconds=0.1)
    assert list(stages) == ["reading", "geometry", "colour", "collating"]
    assert min(stages.values()) > 0


@pytest.mark.usefixtures("threads_kept")
@pytest.mark.heavy
def test_the_bench_command_names_the_bottleneck(pairs, capsys):
    root = str(pairs[0].image1.parents[1])
    options = ["--crop", "32x24", "--seconds", "0.1", "--workers", "0", "--json"]
    with pytest.raises(SystemExit) as end:
        main(["data", "bench", "chairs:all", root, *options])
    assert end.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pairs"] == 5
    assert report["pairs_per_second"] > 0
    assert report[f"{report['bottleneck']}_ms"] == max(
        value for key, value in report.items() if key.endswith("_ms")
    )


@pytest.mark.parametrize("crop", ["24", "24x", "axb", "0x32"])
def test_the_bench_command_refuses_a_bad_crop(pairs, capsys, crop):
    with pytest.raises(SystemExit) as end:
        main(["data", "bench", "chairs:all", str(pairs[0].image1.parents[1]), "--crop", crop])
    assert end.value.code == 2
    assert "crop must be" in capsys.readouterr().err


def test_masks_that_augmentation_drops_are_not_read(pairs, tmp_path):
    masked = replace(pairs[0], occlusion=tmp_path / "missing.png")
    FlowDataset([masked], CONFIG, SEED)[0, 0]
    with pytest.raises(FileNotFoundError):
        FlowDataset([masked], None, SEED)[0, 0]
