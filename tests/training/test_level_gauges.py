"""A run records what each level learns, and names a dead one."""

import json
from dataclasses import replace

import numpy as np
import pytest
import small_training
import torch
from conftest import SMALL
from small_training import CPU

from dicl_flow.config import AugmentConfig, ModelConfig, OptimizerConfig
from dicl_flow.data import FlowBatch
from dicl_flow.models import LevelFlow, build
from dicl_flow.ops import upsample_flow
from dicl_flow.training import RunFolder, monitoring, train
from dicl_flow.training.monitoring import ZERO, LevelWatch, level_gauges
from dicl_flow.weights import Weights, encode_weights

STRIDES = (8, 4)
MODEL = replace(SMALL, matcher="dot")  # no level is to match, so the quickest matcher will do
CONFIG = replace(
    small_training.CONFIG,
    model=MODEL,
    steps=8,
    picture_every=0,
    augment=AugmentConfig(crop=(32, 48)),
    optimizer=OptimizerConfig(learning_rate=1e-9),
)


def batch_of(flow_x=3.0, flow_y=4.0):
    flow = torch.stack([torch.full((2, 32, 48), flow_x), torch.full((2, 32, 48), flow_y)], 1)
    valid = torch.ones(2, 32, 48, dtype=torch.bool)
    return FlowBatch(*torch.rand(2, 2, 3, 32, 48), flow, valid)


class StillSource:
    """Noise, all of whose truth is the same motion."""

    def batches(self, size, start_step, processes):
        while True:
            yield batch_of()


def level_of(stride, x, y, scores=None):
    """A level that says one motion, in pixels of the frame, everywhere."""
    flow = torch.tensor([x, y])[None, :, None, None].expand(2, 2, 32 // stride, 48 // stride)
    matched = 0.5 * flow / stride
    return LevelFlow(matched, flow / stride, torch.full_like(flow[:, :1], 0.25), scores=scores)


def test_the_gauges_are_what_they_are_called():
    scores = torch.zeros(2, 5, 5, 4, 6)
    scores[:, 2, 2] = np.log(24)  # as much as all others together
    batch = batch_of()
    batch.valid[1] = False
    batch.flow[1] = 1000
    levels = [level_of(8, 0.0, 0.0, scores), level_of(4, 3.0, 4.0)]
    found = level_gauges(levels, batch, STRIDES, upsample_flow)
    assert found == pytest.approx(
        {
            ZERO: 5.0,
            "stride_8/matched_error": 5.0,
            "stride_8/refined_error": 5.0,
            "stride_8/entropy": 0.25,
            "stride_8/no_displacement": 0.5,
            "stride_4/matched_error": 2.5,
            "stride_4/refined_error": 0.0,
            "stride_4/entropy": 0.25,
        },
        abs=1e-5,
    )


def errors(zero, *refined):
    pairs = zip(STRIDES, refined, strict=True)
    return {ZERO: zero} | {f"stride_{stride}/refined_error": error for stride, error in pairs}


def test_a_level_that_adds_nothing_for_a_thousand_steps_is_named():
    watch = LevelWatch(STRIDES, 0)
    assert all(not watch.note(step, errors(10, 9.99, 2)) for step in range(50, 1000, 50))
    (sentence,) = watch.note(1000, errors(10, 9.99, 2))
    assert "the level of stride 8 contributes nothing" in sentence
    assert "9.99 px after it and 10.00 px before it" in sentence
    assert not watch.note(1050, errors(10, 11, 2))  # counted from 0 again


def test_a_level_that_helps_most_of_the_time_is_not_named():
    watch = LevelWatch(STRIDES, 500)
    for step in range(550, 1500, 50):
        assert not watch.note(step, errors(10, 8 if step % 100 else 10.5, 7))
    assert not watch.note(1500, errors(10, 8, 8.5))


def with_dead_level(path, stride):
    """A network that has learned the motion, but for one level, which only ever says "still"."""
    torch.manual_seed(0)
    model = build(MODEL)
    state = model.state_dict()
    for key, tensor in state.items():
        if ".context." in key:
            tensor.zero_()
    for key in (f"levels.{each}.projection.weight" for each in STRIDES):
        state[key].zero_()
    last_bias = [key for key in state if ".context." in key and key.endswith("bias")]
    for each in STRIDES:
        key = [key for key in last_bias if f"levels.{each}." in key][-1]
        # what the context net adds is multiplied by 2 / stride: the motion, in px of the frame
        state[key][:] = torch.tensor([3.0, 4.0]) / 2 if each != stride else 0
    path.write_bytes(encode_weights(Weights(MODEL, state)))
    return path


def run_with_dead_level(folder, stride, monkeypatch, capsys):
    monkeypatch.setattr(monitoring, "_WINDOW", 4)
    start = with_dead_level(folder / "start.safetensors", stride)
    run = RunFolder(folder / "run")
    train(CONFIG, StillSource(), run, CPU, initial=start)
    lines = [json.loads(line) for line in run.log.read_text().splitlines()]
    return lines, " ".join(capsys.readouterr().err.split())


@pytest.mark.heavy
def test_a_run_names_its_dead_level(tmp_path, monkeypatch, capsys):
    lines, said = run_with_dead_level(tmp_path, 8, monkeypatch, capsys)
    assert said.count("the level of stride 8 contributes nothing") == 2  # in eight steps
    assert "stride 4 adds" not in said
    assert all(line[ZERO] == pytest.approx(5) for line in lines)
    assert lines[-1]["stride_8/refined_error"] == pytest.approx(5, rel=1e-3)
    assert lines[-1]["stride_4/refined_error"] == pytest.approx(0, abs=1e-2)
    assert lines[-1]["stride_8/no_displacement"] == pytest.approx(1 / 25, rel=1e-3)
    assert 0.99 < lines[-1]["stride_8/entropy"] <= 1.001


@pytest.mark.heavy
def test_hosts_without_scores_have_the_other_gauges():
    model = build(ModelConfig(host="pwcnet")).train()
    flow, valid = torch.ones(1, 2, 64, 64), torch.ones(1, 64, 64, dtype=torch.bool)
    images = torch.rand(2, 1, 3, 64, 64)
    with torch.no_grad():
        levels = model(*images)
    found = level_gauges(
        levels, FlowBatch(*images, flow, valid), model.config.strides, model.upsample
    )
    assert found["stride_64/refined_error"] > 0
    assert not any(key.endswith("no_displacement") for key in found)
