"""Validation during training: it finds the best weights and changes nothing else."""

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from fake_trees import make_chairs, make_kitti15, write_truth
from small_training import CPU, QUICK, RandomSource

from dicl_flow.config import OptimizerConfig
from dicl_flow.data import read_sample
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.training import (
    Processes,
    RunFolder,
    Trainer,
    Validation,
    read_recipe,
    train,
    trainer,
)
from dicl_flow.training.recipe import find_start
from dicl_flow.training.run_folder import load_checkpoint
from dicl_flow.weights import load_model, read_weights

pytestmark = pytest.mark.heavy

VALIDATED = replace(
    QUICK,
    validation=("chairs:val",),
    validate_every=2,
    save_every=100,
    picture_every=0,
    optimizer=OptimizerConfig(average=0.5, learning_rate=1e-2),
)


@pytest.fixture(scope="module")
def validation(tmp_path_factory):
    """A pair that moves the other way than those of training: the more is learned, the worse."""
    root = make_chairs(tmp_path_factory.mktemp("chairs"), size=(20, 40))
    write_truth(root / "data/00004_flow.flo", np.full((20, 40, 2), -2, np.float32))
    return Validation.of(VALIDATED, {"chairs": root})


@pytest.fixture(scope="module")
def validated(validation, tmp_path_factory):
    """The folder of a run that was validated three times."""
    folder = RunFolder(tmp_path_factory.mktemp("validated"))
    train(VALIDATED, RandomSource(), folder, CPU, validation=validation, quiet=True)
    return folder


def validations(folder):
    lines = map(json.loads, folder.log.read_text().splitlines())
    return {line["step"]: line["validation_epe"] for line in lines if "validation_epe" in line}


def test_the_best_weights_are_kept_though_the_last_are_worse(validated, validation):
    errors = validations(validated)
    assert list(errors) == [2, 4, 6]
    best = min(errors, key=errors.get)
    assert best < 6
    kept = read_weights(validated.best)
    assert kept.about["steps"] == str(best)
    assert validation.errors(kept, CPU) == {"chairs:val": errors[best]}
    assert validation.errors(read_weights(validated.weights), CPU) == {"chairs:val": errors[6]}
    found = load_checkpoint(validated.checkpoint)["validated"]
    assert found == {"step": 6, "best_step": best, "best_epe": errors[best]}


def test_pairs_count_alike_however_many_valid_pixels_they_have(tmp_path):
    """KITTI's best weights are chosen by the mean of its images, as in the authors' code."""
    root = make_kitti15(tmp_path, size=(20, 40))
    for number, (columns, motion) in enumerate([(40, 1.0), (10, 9.0)]):
        truth = np.full((20, 40, 2), np.nan, np.float32)
        truth[:, :columns] = motion
        write_truth(root / f"training/flow_occ/{number:06d}_10.png", truth)
    config = replace(VALIDATED, validation=("kitti15",))
    validation = Validation.of(config, {"kitti15": root})
    weights = Trainer(config, CPU).weights()
    estimator = FlowEstimator(load_model(weights), "cpu", "fp32", "plain")
    means = []
    for pair in validation.pairs["kitti15"]:
        sample = read_sample(pair)
        flow = estimator(sample.image1, sample.image2).flow
        means.append(np.linalg.norm(flow - sample.flow, axis=-1)[sample.valid].mean())
    assert abs(means[0] - means[1]) > 1
    assert validation.errors(weights, CPU)["kitti15"] == pytest.approx(np.mean(means), rel=1e-6)


def test_the_next_stage_starts_from_the_best(validated):
    following = replace(QUICK, start=validated.path.name)
    assert find_start(following, validated.path.parent / "next") == validated.best


def test_training_is_the_same_without_validation(validated, tmp_path):
    plain = RunFolder(tmp_path)
    train(VALIDATED, RandomSource(), plain, CPU, quiet=True)
    assert not plain.best.exists()
    found, expected = (load_checkpoint(folder.checkpoint) for folder in (validated, plain))
    for part in ("model", "average"):
        assert found[part].keys() == expected[part].keys()
        assert all(torch.equal(found[part][key], expected[part][key]) for key in found[part])
    assert torch.equal(found["random"], expected["random"])


@pytest.mark.parametrize("last", [3, 5])
def test_a_run_that_died_ends_with_the_same_best(validated, validation, tmp_path, last):
    class Dying(RandomSource):
        def batches(self, size, start_step, processes):
            yield from islice(super().batches(size, start_step, processes), last)
            raise InputError("no more")

    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match="no more"):
        train(VALIDATED, Dying(), folder, CPU, validation=validation, quiet=True)
    assert load_checkpoint(folder.checkpoint)["validated"]["step"] == last - 1
    again = {"validation": validation, "resume": True, "quiet": True}
    train(VALIDATED, RandomSource(), folder, CPU, **again)
    assert validations(folder) == validations(validated)
    for name in ("best", "weights"):
        assert getattr(folder, name).read_bytes() == getattr(validated, name).read_bytes(), name


def test_validation_needs_data():
    with pytest.raises(InputError, match="validate_every needs a data set"):
        replace(QUICK, validate_every=2)
    with pytest.raises(InputError, match="needs 'chairs:val': give its folder"):
        Validation.of(VALIDATED, {})
    assert Validation.of(replace(VALIDATED, validate_every=0), {}) is None


@pytest.mark.parametrize("triton", [True, False])
def test_auto_is_fused_on_one_gpu_only(monkeypatch, triton):
    monkeypatch.setattr(trainer, "find_spec", lambda name: object() if triton else None)
    gpu, config = Processes(torch.device("cuda")), read_recipe("rendered", [])
    assert trainer.choose_backend(config, gpu) == ("fused" if triton else "plain")
    assert trainer.choose_backend(config, replace(gpu, world_size=2)) == "plain"
    assert trainer.choose_backend(config, CPU) == "plain"
    in_parts = read_recipe("chairs-0", ["optimizer.accumulate=2"])
    assert trainer.choose_backend(in_parts, gpu) == "plain"
    assert trainer.choose_backend(replace(config, backend="plain"), gpu) == "plain"


def test_the_log_names_the_backend(validated):
    lines = list(map(json.loads, validated.log.read_text().splitlines()))
    assert VALIDATED.backend == "auto"
    assert {line["backend"] for line in lines if "epe" in line} == {"plain"}
