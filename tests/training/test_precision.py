"""The arithmetic of a training step: true float32, TF32 or bfloat16, and where it is recorded."""

import json
from dataclasses import replace

import pytest
import torch
from small_training import CPU, QUICK, RandomSource

from dicl_flow.accelerated import settings
from dicl_flow.config import OptimizerConfig
from dicl_flow.errors import InputError
from dicl_flow.training import Processes, RunFolder, Trainer, read_recipe, recipe_names, train
from dicl_flow.training.chain import TARGETS
from dicl_flow.training.optimizer import RecordedStep
from dicl_flow.weights import read_weights

PRECISIONS = ("fp32", "tf32")  # bf16 is slow on most CPUs


def flags():
    """What cuDNN and matrix products may do now: (TF32, search, matrices)."""
    cudnn = torch.backends.cudnn
    return cudnn.allow_tf32, cudnn.benchmark, torch.get_float32_matmul_precision()


def quick(precision):
    return replace(QUICK, steps=1, log_every=1, optimizer=OptimizerConfig(precision=precision))


@pytest.fixture(params=[True, False], ids=["TF32 on before", "TF32 off before"])
def before(request):
    """Settings of a program around the training, which are not those that it needs."""
    torch.set_float32_matmul_precision("high")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=request.param):
        yield flags()
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_is_computed_as_its_precision_says(before, precision):
    """Forward, backward and optimizer, in true float32 or with TF32; then all is as before."""
    trainer = Trainer(quick(precision), CPU)
    seen = {}
    first = next(trainer.model.parameters())  # the last to get its gradient
    trainer.model.features.register_forward_hook(lambda *_: seen.update(forward=flags()))
    first.register_hook(lambda _: seen.update(backward=flags()))
    trainer.optimizer.register_step_pre_hook(lambda *_: seen.update(optimizer=flags()))
    trainer.train_step(RandomSource().batches(2, 0, CPU), 0.0)
    exact = precision == "fp32"
    assert seen == dict.fromkeys(seen, (not exact, exact, "highest"))
    assert set(seen) == {"forward", "backward", "optimizer"}
    assert flags() == before


@pytest.mark.parametrize("precision", PRECISIONS)
def test_so_is_a_recorded_step(before, precision):
    """cuDNN selects its algorithms while a CUDA graph is recorded, inside the step."""
    trainer, seen = Trainer(quick(precision), CPU), []

    class Recorded(RecordedStep):
        def __init__(self):
            pass

        def replay(self, *_):
            with settings.cudnn_flags(benchmark=True):  # as it does
                seen.append(flags())
            return torch.ones(3)

    trainer._optimizer_step = Recorded()
    trainer.train_step(RandomSource().batches(2, 0, CPU), 0.0)
    assert seen == [(precision != "fp32", True, "highest")]
    assert flags() == before


def test_a_step_that_fails_restores_the_settings(before):
    trainer = Trainer(quick("fp32"), CPU)
    with pytest.raises(StopIteration):
        trainer.train_step(iter([]), 0.0)
    assert flags() == before


@pytest.mark.parametrize("precision", PRECISIONS)
def test_log_and_weights_name_the_precision(tmp_path, precision, monkeypatch):
    """What was used: a device without TF32 computes in float32."""
    for found in (False, True):
        monkeypatch.setattr("dicl_flow.training.trainer.has_tf32", lambda _, found=found: found)
        used = precision if found else "fp32"
        folder = RunFolder(tmp_path / str(found))
        train(quick(precision), RandomSource(), folder, CPU, quiet=True)
        lines = map(json.loads, folder.log.read_text().splitlines())
        assert {line["precision"] for line in lines} == {used}
        assert read_weights(folder.weights).about["precision"] == used
        assert f'precision = "{precision}"' in folder.config.read_text()


def test_tf32_needs_an_nvidia_gpu_that_has_it(monkeypatch):
    assert not settings.has_tf32(CPU.device)
    gpu = Processes(torch.device("cuda")).device
    for capability, expected in (((6, 1), False), ((8, 0), True), ((9, 0), True)):  # 6.1: 1080 Ti
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert settings.has_tf32(gpu) is expected


def test_the_published_stages_train_in_true_float32():
    chosen = {name: read_recipe(name, []).optimizer.precision for name in recipe_names()}
    assert {chosen.pop(name) for name in TARGETS["all"]} == {"fp32"}
    assert chosen.pop("finetune") == "tf32"
    assert set(chosen.values()) == {"bf16"}


def test_an_unknown_precision_is_refused():
    with pytest.raises(
        InputError, match=r"unknown optimizer\.precision 'tf23'; did you mean 'tf32'"
    ):
        OptimizerConfig(precision="tf23")
