"""What each level contributes equals a direct computation."""

import json

import cv2
import numpy as np
import pytest
import torch
from conftest import SMALL

from dicl_flow.data import FlowSample
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.lab.analyses import ZERO, find_level_errors
from dicl_flow.models import build
from dicl_flow.weights import Weights, encode_weights

pytestmark = pytest.mark.heavy

SIZE = (64, 96)
STEPS = [
    ZERO, "stride 8 matched", "stride 8 refined", "stride 4 matched", "stride 4 refined"
]  # fmt: skip


class Saturated(torch.nn.Module):
    """A projection that is certain of "no displacement"."""

    def forward(self, scores):
        middle = scores.shape[1] // 2
        certain = torch.zeros_like(scores)
        certain[:, middle, middle] = 50.0
        return certain


def network(dead=None):
    """A small network; the level of the stride `dead` does not match."""
    torch.manual_seed(2)
    model = build(SMALL).eval()
    if dead:
        model.levels[str(dead)].projection = Saturated()
    return model


@pytest.fixture
def sample():
    rng = np.random.default_rng(0)
    flow = np.zeros((*SIZE, 2), np.float32)
    flow[:, 48:] = [12, -5]  # 13 px
    image = rng.integers(0, 256, (*SIZE, 3), np.uint8)
    return FlowSample(image, np.roll(image, 3, 1), flow, np.ones(SIZE, bool))


def test_errors_are_those_of_the_flows(sample):
    estimator = FlowEstimator(network(), "cpu", "fp32", "plain")
    (found,) = find_level_errors({"net": estimator}, [sample]).values()
    assert list(found.scores) == STEPS
    first, *_, last = found.summary().values()
    assert first["epe"] == pytest.approx(6.5)
    assert first["s10_40"] == pytest.approx(13)
    flow = estimator(sample.image1, sample.image2).flow
    error = np.linalg.norm(flow - sample.flow, axis=2)
    assert last["epe"] == pytest.approx(error.mean(), rel=1e-4)
    assert last["s0_10"] == pytest.approx(error[:, :48].mean(), rel=1e-4)
    assert not any("s40_plus" in step for step in found.summary().values())


def test_a_dead_level_shows(sample):
    estimators = {
        name: FlowEstimator(network(dead), "cpu", "fp32", "plain")
        for name, dead in (("alive", None), ("dead", 8))
    }
    found = find_level_errors(estimators, [sample, sample])
    summary = found["dead"].summary()
    assert summary["stride 8 matched"]["no_displacement"] > 0.999
    assert summary["stride 8 matched"]["epe"] == pytest.approx(summary[ZERO]["epe"], rel=1e-3)
    assert found["alive"].summary()["stride 8 matched"]["no_displacement"] < 0.5


@pytest.mark.usefixtures("small_scenes")
def test_the_command(run, tmp_path):
    weights = tmp_path / "small.safetensors"
    weights.write_bytes(encode_weights(Weights(SMALL, network().state_dict(), {})))
    scenes = ["--rendered", "procedural", "-n", "2", "--size", "96x64", "--device", "cpu"]
    out = tmp_path / "out"
    code, printed, _ = run("analyze", "levels", "-w", weights, *scenes, "-o", out)
    assert code == 0
    assert "Contribution of each level: small" in printed
    document = json.loads((out / "levels.json").read_text())
    assert document["scenes"] == 2
    assert list(document["found"]["small"]) == STEPS
    assert cv2.imread(str(out / "levels.png")) is not None
    code, printed, _ = run("analyze", "levels", "-w", weights, *scenes, "-o", out, "--json")
    assert code == 0
    assert json.loads(printed)["found"] == document["found"]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--rendered", "procedural", "--data", "pairs=x"], "--rendered excludes"),
        (["--rendered", "missing"], "missing"),
        (["--pair", "a.png", "b.png"], "none of these pairs has a truth"),
    ],
)
def test_wrong_inputs(run, tmp_path, monkeypatch, extra, message):
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.png"):
        cv2.imwrite(name, np.zeros((16, 16, 3), np.uint8))
    code, _, err = run("analyze", "levels", *extra, "-o", tmp_path / "out")
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()
