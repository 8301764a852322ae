"""Seeds and pairs: means, spread and bootstrap intervals are those of the numbers."""

import numpy as np
import pytest

from dicl_flow.lab.spread import (
    MEAN_OF_SETS,
    differences,
    pair_errors,
    set_means,
    spread_document,
    spread_grids,
    with_spread,
)
from dicl_flow.lab.variants import DataScore, VariantResult


def run(seed, errors, peaks=None):
    """A result with these EPEs: by data set, a list of those of its pairs."""
    scores = {
        data: DataScore(len(epes), {}, {f"pair{i}": {"epe": epe} for i, epe in enumerate(epes)})
        for data, epes in errors.items()
    }
    return VariantResult("", seed, 8, "cpu", "0", 1, 1.0, {}, scores, peaks or {})


DICL = [run(0, {"held-out": [1.0, 2.0], "sintel-clean": [1.0, 3.0], "chairs:all": [5.0]})]
DICL += [run(1, {"held-out": [1.0, 4.0], "sintel-clean": [2.0, 4.0], "chairs:all": [7.0]})]
DOT = [run(0, {"held-out": [2.0, 3.0], "sintel-clean": [4.5, 4.5], "chairs:all": [4.0]})]


def test_the_mean_of_the_sets_counts_sets_equally():
    found = set_means(pair_errors({"DICL": DICL})["DICL"])
    assert found["held-out"] == [1.5, 2.5]
    assert found["sintel-clean"] == [2.0, 3.0]
    assert found[MEAN_OF_SETS] == [3.5, 5.0]
    assert with_spread(found["sintel-clean"]) == "2.50 ± 0.71"
    assert with_spread([2.0]) == "2.00"


def test_only_what_all_runs_were_scored_on_is_compared():
    fewer = run(0, {"held-out": [1.0, 2.0], "sintel-clean": [1.0]})
    found = pair_errors({"DICL": DICL, "dot product": [fewer]})
    assert {data: error.shape for data, error in found["DICL"].items()} == {
        "held-out": (2, 2),
        "sintel-clean": (2, 1),
    }


def test_differences_are_paired_and_their_intervals_are_those_of_resampled_pairs():
    found = differences(pair_errors({"DICL": DICL, "dot product": DOT}), "DICL")["dot product"]
    assert found["sintel-clean"].mean == pytest.approx(2.0)  # 3 and 1
    # of two pairs, a quarter of the resamples has twice the first, a quarter twice the second
    assert found["sintel-clean"].interval == pytest.approx((1.0, 3.0))
    assert found["chairs:all"].mean == pytest.approx(-2.0)
    assert found["chairs:all"].interval is None
    assert found["held-out"].interval == pytest.approx((0.0, 1.0))
    assert found[MEAN_OF_SETS].mean == pytest.approx(0.0)
    assert found[MEAN_OF_SETS].interval == pytest.approx((-0.5, 0.5))


def test_an_interval_is_that_of_a_normal_mean():
    dice = np.random.default_rng(5)
    values = dice.normal(1.0, 2.0, size=400)
    results = {"DICL": [run(0, {"sintel-clean": [0.0] * 400})]}
    results["dot product"] = [run(0, {"sintel-clean": values.tolist()})]
    low, high = differences(pair_errors(results), "DICL")["dot product"]["sintel-clean"].interval
    assert (low + high) / 2 == pytest.approx(values.mean(), abs=0.02)
    assert (high - low) / 2 == pytest.approx(1.96 * 2 / 20, rel=0.1)


def test_the_tables_and_the_document():
    summary = {"median_d_peak": 0.5, "epe_soft_argmin": 2.0}
    after = {"median_d_peak": 0.25, "epe_soft_argmin": 1.5}
    stages = {"x, before DAP": summary, "x, after DAP": after}
    with_dap = [run(0, {"sintel-clean": [1.0, 1.0]}, {"sintel-clean": stages})]
    without = [run(0, {"sintel-clean": [1.0, 2.0]}, {"sintel-clean": {"x, without DAP": summary}})]
    results = {"DICL": without, "DICL with DAP": with_dap}
    by_set, against, peaks = spread_grids("claims", results)
    assert by_set.rows == [
        ["pairs", "", "2"],
        ["DICL", "1", "1.50"],
        ["DICL with DAP", "1", "1.00"],
    ]
    assert against.rows == [["DICL with DAP", "less DICL", "-0.50 (-1.00 to +0.00)"]]
    assert peaks.rows == [
        ["DICL", "no DAP", "0.500", "2.00"],
        ["DICL with DAP", "before DAP", "0.500", "2.00"],
        ["DICL with DAP", "after DAP", "0.250", "1.50"],
    ]
    document = spread_document("claims", results)
    assert document["errors"]["DICL"] == {"sintel-clean": [1.5]}
    assert document["peaks"]["DICL with DAP"]["sintel-clean"]["after"]["median_d_peak"] == [0.25]
    assert document["differences"]["from"] == "DICL"
    assert spread_grids("hosts", {"VCN": without})[0].title == "By set"  # no reference
