"""On a CUDA device the student trains with kernels and recorded steps, of all kinds of batches."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
import torch
from conftest import SMALL
from small_adaptation import (
    CHANGES,
    accept_everything,
    moving_picture,
    write_footage,
    write_weights,
)
from small_training import QUICK, RandomSource

from dicl_flow import adapt
from dicl_flow.training import Processes, Trainer
from dicl_flow.weights import read_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LOSS = ["loss.refined=[0.75,1.0]", "loss.matched=[0.6,0.8]", "loss.matching=[1.0,0.0]"]


@pytest.mark.parametrize("photometric", [[0.0, 0.0], [0.1, 0.01]])
def test_all_stages_run_with_the_fused_backend(photometric, tmp_path, monkeypatch):
    accept_everything(monkeypatch.setattr)
    clip = write_footage(tmp_path / "clip", moving_picture(16, (48, 64)))
    weights = write_weights(tmp_path / "start.safetensors", SMALL)
    others = [change for change in CHANGES if not change.startswith("loss.")]
    changes = [
        *others,
        *LOSS,
        f"loss.photometric={photometric}",
        "adapt.new_frames=0.3",
        "augment.crop=[48,64]",
        "render.sizes=[[48,64],[32,64]]",
        "optimizer.precision=bf16",
        "workers=2",  # a thread pins what they make, also while a step is recorded
    ]
    output = tmp_path / "mine.safetensors"
    ended = adapt(clip, output, weights, steps=12, changes=changes, device="cuda")
    assert ended.accepted
    lines = (ended.report / "student/log.jsonl").read_text().splitlines()
    assert {json.loads(line)["backend"] for line in lines} == {"fused"}
    assert all("epe" in json.loads(line) for line in lines)
    before, after = read_weights(weights).tensors, read_weights(output).tensors
    assert any(not torch.equal(before[key], after[key]) for key in before)


def ask_again_and_again(done):
    """Ask whether copies have ended, as the loader's thread does before it reuses memory."""
    stream, asked = torch.cuda.Stream(), 0
    while not done.is_set():
        stream.record_event().query()
        asked += 1
    return asked


def test_a_step_is_recorded_while_another_thread_uses_the_device():
    device, done = torch.device("cuda"), Event()
    trainer = Trainer(replace(QUICK, backend="fused"), Processes(device))
    batches = RandomSource().batches(2, 0, Processes(device))
    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask_again_and_again, done)
        try:
            losses = [trainer.train_step(batches, 0.0)["loss"] for _ in range(3)]
        finally:
            done.set()
        assert asking.result() > 10
    assert len(losses) == 3
