"""The recipe for long training: from others' weights, of flat rate, counted over all runs."""

from dataclasses import replace
from math import prod

import pytest
import torch
from conftest import SMALL

from dicl_flow.config import AugmentConfig, DataConfig, LossConfig, ModelConfig, TrainConfig
from dicl_flow.data import FlowBatch
from dicl_flow.errors import InputError
from dicl_flow.models import build
from dicl_flow.training import Processes, Trainer, read_recipe
from dicl_flow.training.optimizer import learning_rate
from dicl_flow.training.recipe import pairs_behind
from dicl_flow.weights import Weights, encode_weights, read_weights, resolve

pytestmark = pytest.mark.heavy

CPU = Processes(torch.device("cpu"))
CONFIG = TrainConfig(
    name="small",
    data=(DataConfig("chairs"),),
    batch=2,
    model=SMALL,
    augment=AugmentConfig(crop=(32, 48)),
    loss=LossConfig((0.5, 1.0), (0.4, 0.8)),
)


def batches():
    while True:
        flow, valid = torch.full((2, 2, 32, 48), 2.0), torch.ones(2, 32, 48, dtype=torch.bool)
        yield FlowBatch(*torch.rand(2, 2, 3, 32, 48), flow, valid)


def weights_at(path, about):
    path.write_bytes(encode_weights(Weights(SMALL, build(SMALL).state_dict(), about)))
    return path


def test_the_rate_is_flat_after_its_warm_up():
    config = read_recipe("every-level", [])
    assert learning_rate(config, 0, 0.0) < config.optimizer.learning_rate / 100
    for step, progress in ((199, 0.1), (5000, 0.5), (99_999, 1.0)):
        assert learning_rate(config, step, progress) == config.optimizer.learning_rate
    settings = ["schedule.kind=cosine", "schedule.final=0.02", "schedule.hold=0.7"]
    decay, rate = read_recipe("every-level", settings), config.optimizer.learning_rate
    assert learning_rate(decay, 5000, 0.7) == rate
    assert learning_rate(decay, 5000, 0.85) == pytest.approx(0.51 * rate)
    assert learning_rate(decay, 5000, 1.0) == pytest.approx(0.02 * rate)
    with pytest.raises(InputError, match=r"schedule.hold must be in \[0, 1\)"):
        read_recipe("every-level", ["schedule.hold=1"])


def test_sizes_of_about_one_number_of_pixels_and_every_one_in_the_log():
    config = read_recipe("every-level", [])
    pixels = config.batch * prod(config.augment.crop)
    for size in config.render.sizes:
        pairs = round(pixels / prod(size))
        assert pairs * prod(size) == pytest.approx(pixels, rel=0.06)
    logged = {step % len(config.render.sizes) for step in range(0, 10_000, config.log_every)}
    assert len(logged) == len(config.render.sizes)
    assert (
        config.model
        == read_weights(resolve("rendered")).config
        == replace(ModelConfig(), padding="resize", max_pixels=config.model.max_pixels)
    )


def test_pairs_are_counted_over_all_runs(tmp_path):
    first = Trainer(
        CONFIG, CPU, weights_at(tmp_path / "start.safetensors", {"pairs_total": "1000"})
    )
    first.train_step(batches(), 0.0)
    assert (first.pairs, first.pairs_total) == (2, 1002)
    path = weights_at(tmp_path / "first.safetensors", first.weights().about)
    second = Trainer(CONFIG, CPU, path)
    second.train_step(batches(), 0.0)
    assert second.weights().about["pairs"] == "2"
    assert second.weights().about["pairs_total"] == "1004"
    resumed = Trainer(CONFIG, CPU)
    resumed.restore(second.checkpoint())
    assert resumed.pairs_total == 1004


def test_weights_that_know_nothing_of_pairs_count_none(tmp_path):
    assert pairs_behind(weights_at(tmp_path / "a.safetensors", {})) == 0
    assert pairs_behind(weights_at(tmp_path / "b.safetensors", {"pairs_total": "many"})) == 0
    assert pairs_behind(resolve("rendered")) > 500_000
