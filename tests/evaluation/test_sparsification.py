"""Sparsification curves and AUSE are right for orders whose value is known."""

import json

import numpy as np
import pytest
from fake_trees import make_sintel

from dicl_flow.evaluation import pool, score_confidence
from dicl_flow.evaluation.metrics import sparsification_curves

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def error():
    return np.random.default_rng(0).exponential(size=20_000)


def ause(confidence, error):
    return score_confidence(confidence, error).values["ause"]


def test_the_best_order_has_no_area_and_a_blind_one_that_of_the_best(error):
    assert ause(-error, error) == 0
    assert ause(np.exp(-error), error) == 0  # only the order counts
    blind = np.random.default_rng(1).random(len(error))
    oracle = sparsification_curves(score_confidence(-error, error))["oracle"]
    assert ause(blind, error) == pytest.approx(1 - np.mean(oracle), abs=0.02)
    assert ause(error, error) > ause(blind, error) > ause(-error + blind, error) > 0


def test_curves_are_the_mean_error_of_what_is_left(error):
    curves = sparsification_curves(score_confidence(-error, error))
    ordered = np.sort(error)
    for share, value in zip(curves["removed"], curves["error"], strict=True):
        left = len(error) - int(share * len(error))
        assert value == pytest.approx(ordered[:left].mean() / error.mean())
    assert curves["error"][0] == pytest.approx(1)
    assert curves["error"] == curves["oracle"]


def test_pairs_count_alike_and_those_without_error_not_at_all(error):
    good, bad = score_confidence(-error, error), score_confidence(error, 100 * error)
    perfect = score_confidence(np.ones(5), np.zeros(5))
    total = pool([good, bad, perfect])
    assert total.values["ause"] == pytest.approx(bad.values["ause"] / 2)
    assert sparsification_curves(perfect) == {}


def test_eval_reports_and_draws(run, tiny_weights, tmp_path):
    pytest.importorskip("matplotlib")
    root = make_sintel(tmp_path / "Sintel")
    picture, numbers = tmp_path / "curves.png", tmp_path / "numbers.json"
    data = ["-d", f"sintel-clean={root}"]
    outputs = ["--sparsification", picture, "-o", numbers]
    code, out, err = run("eval", *data, "-w", tiny_weights, "--baseline", "dis", *outputs)
    assert (code, err) == (0, "")
    assert "AUSE" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    ours, baseline = json.loads(numbers.read_text())["results"]
    assert 0 < ours["metrics"]["ause"] < 2
    assert len(ours["sparsification"]["error"]) == 50
    assert "ause" not in baseline["metrics"]
    assert baseline["sparsification"] == {}


def test_a_plot_without_confidence_is_refused(run, tmp_path):
    root = make_sintel(tmp_path / "Sintel")
    data = ["-d", f"sintel-clean={root}"]
    for arguments, message in [
        (("--baseline", "dis", "--sparsification", tmp_path / "x.png"), "a baseline has none"),
        (("--sparsification", tmp_path / "x.jpg"), "must end in .png"),
    ]:
        code, _, err = run("eval", *data, *arguments)
        assert code == 2
        assert message in err
