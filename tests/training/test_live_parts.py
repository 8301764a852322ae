"""The trial of trained parts trains each search radius once, and scores with and without them."""

import json
import sys
from dataclasses import replace

import fake_trees
import pytest
import torch
from conftest import SMALL
from networks import randomize_norms_and_biases

from benchmarks import live_parts
from dicl_flow.models import build
from dicl_flow.weights import Weights, encode_weights, read_weights

pytestmark = pytest.mark.heavy

SET = "Middlebury"
WIDE = replace(SMALL, levels=tuple(replace(level, radius=2) for level in SMALL.levels))
LEVELS = (
    "model.levels=[{ stride = 8, radius = 2, context = [[8, 1]] }, "
    "{ stride = 4, radius = 2, context = [[8, 1], [8, 2]] }]"
)
CHANGES = (
    *(LEVELS, "loss.refined=[0.5, 1.0]", "loss.matched=[0.4, 0.8]", "batch=2"),
    *("render.sizes=[[32, 32]]", "augment.crop=[32, 32]", "optimizer.precision=fp32"),
)


@pytest.fixture
def arguments(tmp_path):
    torch.manual_seed(0)
    weights = Weights(WIDE, randomize_norms_and_biases(build(WIDE)).state_dict())
    (tmp_path / "w.safetensors").write_bytes(encode_weights(weights))
    fake_trees.MAKERS["middlebury"](tmp_path / "sets" / "Middlebury")
    words = [tmp_path / "sets", "-o", tmp_path / "trial", "-w", tmp_path / "w.safetensors"]
    words += ["--photos", "procedural", "--device", "cpu", "--only", SET, "--steps", 1]
    return [*map(str, words), *(word for change in CHANGES for word in ("--set", change))]


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["live_parts.py", *words])
    live_parts.main()


def test_a_trial_continues_and_its_parts_make_weights(arguments, tmp_path, monkeypatch, capsys):
    chosen = [word for text in ("33333", "33331") for word in ("--combination", text)]
    run(monkeypatch, *arguments, *chosen)
    document = json.loads((tmp_path / "trial" / "scores.json").read_text())
    assert document["trainings"]["33331"]["radii"] == [[4, 1]]
    assert document["methods"]["33333"].keys() == {"cut out"}
    cut_out, trained = (document["methods"]["33331"][key] for key in ("cut out", "trained"))
    assert cut_out["scores"][SET].keys() == trained["scores"][SET].keys()
    assert cut_out["epe"] != trained["epe"]

    monkeypatch.setattr(live_parts, "train", lambda *_, **__: pytest.fail("trained again"))
    run(monkeypatch, *arguments, "--combination", "33331x0.5")
    assert "| 33331x0.5 | " in capsys.readouterr().out
    run(monkeypatch, *arguments[1:5], "--complete", "33331")
    found = read_weights(tmp_path / "trial" / "live-33331.safetensors")
    assert found.live.radii == ((4, 1),)
    assert found.about["parts of quality live"].startswith("1 steps, 0 minutes, ")
    assert found.tensors.keys() == read_weights(tmp_path / "w.safetensors").tensors.keys()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--steps", "2"], "is of other settings; use another folder"),
        (["--complete", "33221"], "has no trained parts for 33221"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    arguments, tmp_path, monkeypatch, capsys, more, message
):
    run(monkeypatch, *arguments, "--combination", "33333")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, *arguments, *more)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
