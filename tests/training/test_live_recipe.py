"""Training for quality "live" changes its own parts, and adds them to the initial weights."""

import copy
from dataclasses import replace

import pytest
import torch
from conftest import SMALL
from networks import randomize_norms_and_biases
from small_training import CONFIG, CPU, RandomSource

from dicl_flow.config import CUES, LIVE, Calibration, Quality
from dicl_flow.errors import InputError
from dicl_flow.models import build, own_keys, with_radii
from dicl_flow.models.radii import freeze_all_but_own
from dicl_flow.training import RunFolder, Trainer, read_recipe, train
from dicl_flow.training.recipe import find_start
from dicl_flow.weights import Weights, encode_weights, load_model, read_weights

pytestmark = pytest.mark.heavy

LEVELS = tuple(replace(level, radius=2) for level in SMALL.levels)
WIDE = replace(SMALL, levels=LEVELS, matcher="dot")  # matchers are not trained
RADII = ((8, 1), (4, 1))
NARROW = replace(SMALL, levels=tuple(replace(level, radius=1) for level in SMALL.levels))
LIVE_CONFIG = replace(CONFIG, model=WIDE, quality="live", needs_weights=True, steps=4)


@pytest.fixture
def initial(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "initial.safetensors"
    old = Calibration(0.5, *[0.1] * len(CUES))
    weights = Weights(WIDE, randomize_norms_and_biases(build(WIDE)).state_dict(), {"recipe": "a"})
    path.write_bytes(encode_weights(weights.calibrated(LIVE, old).calibrated(Quality("best"), old)))
    return path


def test_gradients_and_statistics_reach_the_own_parts_alone(initial):
    trainer = Trainer(LIVE_CONFIG, CPU, initial)
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    trainer.train_step(RandomSource().batches(2, 0, CPU), 0.0)
    after, own = trainer.model.state_dict(), own_keys(before, RADII)
    changed = [key for key in before if not torch.equal(before[key], after[key])]
    assert changed == own
    assert {key.split(".")[2] for key in own} == {"projection", "context"}
    gradients = [k for k, p in trainer.model.named_parameters() if p.grad is not None]
    assert gradients == [key for key in own if key in gradients]
    assert set(gradients) == {k for k, _ in trainer.model.named_parameters()} & set(own)
    assert trainer.levels[-1].scores.shape[1:3] == (3, 3)


def test_the_result_is_the_initial_weights_with_these_parts(initial, tmp_path):
    folder = RunFolder(tmp_path / "run")
    train(LIVE_CONFIG, RandomSource(), folder, CPU, initial=initial, quiet=True)
    start, found = read_weights(initial), read_weights(folder.weights)
    assert found.tensors.keys() == start.tensors.keys()
    assert all(torch.equal(found.tensors[key], start.tensors[key]) for key in start.tensors)
    assert found.live.radii == RADII
    assert found.quality_calibrations.keys() == {"best"}  # that of "live" is of other parts
    assert found.about["recipe"] == "a"
    assert "recipe small, steps 4" in found.about["parts of quality live"]
    cut_out, trained = (load_model(weights, LIVE).state_dict() for weights in (start, found))
    changed = [key for key in cut_out if not torch.equal(cut_out[key], trained[key])]
    assert changed == own_keys(cut_out, RADII)


def test_an_interrupted_run_continues_to_the_same_result(initial, tmp_path):
    whole, parts = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "parts")
    train(LIVE_CONFIG, RandomSource(), whole, CPU, initial=initial, quiet=True)

    class Interrupted(RandomSource):
        def batches(self, size, start_step, processes):
            for number, batch in enumerate(super().batches(size, start_step, processes)):
                if number == 2:
                    raise InterruptedError
                yield batch

    with pytest.raises(InterruptedError):
        train(LIVE_CONFIG, Interrupted(), parts, CPU, initial=initial, quiet=True)
    train(LIVE_CONFIG, RandomSource(), parts, CPU, resume=True, quiet=True)
    assert whole.weights.read_bytes() == parts.weights.read_bytes()


def test_it_starts_from_trained_weights_with_the_same_levels(initial, tmp_path):
    with pytest.raises(InputError, match="to trained weights"):
        find_start(LIVE_CONFIG, tmp_path, "random")
    with pytest.raises(InputError, match="start from trained weights"):
        find_start(LIVE_CONFIG, tmp_path)
    wider = replace(WIDE, levels=(*WIDE.levels, replace(WIDE.levels[1], stride=2)))
    weights = (0.4, 0.8, 0.8)
    loss = replace(LIVE_CONFIG.loss, refined=weights, matched=weights)
    with pytest.raises(InputError, match="has other levels than the recipe"):
        Trainer(replace(LIVE_CONFIG, model=wider, loss=loss), CPU, initial)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": NARROW}, "no smaller radius than this network"),
        ({"needs_weights": False}, "needs initial weights"),
        ({"quality": "lvie"}, "did you mean 'live'"),
        ({"optimizer": replace(CONFIG.optimizer, frozen=("context",))}, "frozen does not go"),
    ],
)
def test_settings_that_contradict_it_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        replace(LIVE_CONFIG, **changes)


def test_the_recipe_trains_the_levels_of_the_quality():
    config = read_recipe("live", [])
    assert config.radii == config.model.smaller(LIVE.radii) == LIVE.radii
    assert config.needs_weights


def test_fused_layers_give_the_same_gradients():
    """What is frozen is computed without gradients by the same kernels."""
    from dicl_flow.accelerated.training import accelerate

    torch.manual_seed(0)
    config = replace(SMALL, levels=(replace(SMALL.levels[1], radius=2),))
    device = "cuda" if torch.cuda.is_available() else "cpu"  # Triton's interpreter
    plain = with_radii(randomize_norms_and_biases(build(config)), RADII).to(device)
    images = (2 * torch.rand(2, 2, 3, 16, 16) - 1).to(device).unbind(0)
    found = []
    for network in (plain, accelerate(copy.deepcopy(plain))):
        freeze_all_but_own(network.train(), RADII)
        finest = network(*images)[-1]
        (finest.refined.square().mean() + finest.matched.mean()).backward()
        parameters = network.named_parameters()
        found.append({key: p.grad for key, p in parameters if p.grad is not None})
    assert found[0].keys() == found[1].keys()
    for key, gradient in found[0].items():
        torch.testing.assert_close(found[1][key], gradient, rtol=1e-2, atol=2e-3)
