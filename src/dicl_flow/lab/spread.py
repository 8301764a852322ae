"""Variants of several seeds compared: spread over the seeds, intervals by bootstrap over the pairs.

The error of a set is the mean over its pairs of each pair's EPE, as in `benchmarks/yardstick.py`.
"""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..data import data_set
from ..evaluation import Grid
from ..files import Array
from .variants import HELD_OUT, VariantResult

MEAN_OF_SETS = "mean of the sets"
REFERENCES = {"claims": "DICL", "metrics": "DICL", "projection": "DICL without DAP"}
"""By study: the variant that the others are compared with."""
_RESAMPLES = 10_000
Results: TypeAlias = Mapping[str, Sequence[VariantResult]]  # by variant: one per seed
Errors: TypeAlias = Mapping[str, Mapping[str, Array]]
"""By variant and data set: the EPE of each pair, (seeds, pairs)."""


class Difference(NamedTuple):
    """How much larger an error is than the reference's, and its interval of 95 %."""

    mean: float
    interval: tuple[float, float] | None
    """None: the set has one pair."""


def label(data: str) -> str:
    """The short name of a data set in headings: FlyingChairs (val) -> Chairs."""
    if data in (HELD_OUT, MEAN_OF_SETS):
        return data
    return data_set(data).label.split(" (")[0].removeprefix("Flying")


def pair_errors(results: Results) -> Errors:
    """Of the data sets and pairs that every run was scored on."""
    runs = [run for runs in results.values() for run in runs]
    shared: dict[str, list[str]] = {}
    for data, score in runs[0].scores.items():
        scored = [set(run.scores[data].pairs) if data in run.scores else set() for run in runs]
        shared[data] = [name for name in score.pairs if all(name in names for names in scored)]
    return {
        variant: {
            data: np.array([[run.scores[data].pairs[n]["epe"] for n in names] for run in runs])
            for data, names in shared.items()
            if names
        }
        for variant, runs in results.items()
    }


def set_means(errors: Mapping[str, Array]) -> dict[str, list[float]]:
    """Of one variant, by data set: the error with each seed; last, the mean of the real sets."""
    found = {data: error.mean(1).tolist() for data, error in errors.items()}
    real = [means for data, means in found.items() if data != HELD_OUT]
    if len(real) > 1:
        found[MEAN_OF_SETS] = [mean(by_set) for by_set in zip(*real, strict=True)]
    return found


def differences(errors: Errors, reference: str) -> dict[str, dict[str, Difference]]:
    """How other variants differ from the reference, by variant and data set.

    Errors are means over the seeds. Pairs are drawn again with replacement, within each set, the
    same ones for both variants; a set of one pair stays as it is.
    """
    dice = np.random.default_rng(0)
    counts = {data: error.shape[1] for data, error in errors[reference].items()}
    drawn = {data: dice.integers(n, size=(_RESAMPLES, n)) for data, n in counts.items()}
    found: dict[str, dict[str, Difference]] = {}
    for variant, sets in errors.items():
        if variant == reference:
            continue
        apart = {d: error.mean(0) - errors[reference][d].mean(0) for d, error in sets.items()}
        means = {data: float(each.mean()) for data, each in apart.items()}
        again = {data: each[drawn[data]].mean(1) for data, each in apart.items()}
        found[variant] = {
            data: Difference(means[data], _interval(again[data]) if counts[data] > 1 else None)
            for data in apart
        }
        real = [data for data in apart if data != HELD_OUT]
        if len(real) > 1:
            overall = np.mean([again[data] for data in real], axis=0)
            total = Difference(mean(means[data] for data in real), _interval(overall))
            found[variant][MEAN_OF_SETS] = total
    return found


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def spread_grids(study: str, results: Results) -> list[Grid]:
    """The errors by real set, the differences from the study's reference, and d_peak, if known."""
    errors, reference = pair_errors(results), REFERENCES.get(study)
    grids = [_set_grid(errors)] if any(set(sets) - {HELD_OUT} for sets in errors.values()) else []
    if grids and reference in errors and len(errors) > 1:
        grids.append(_difference_grid(errors, str(reference)))
    if any(run.peaks for runs in results.values() for run in runs):
        grids.append(_peak_grid(results))
    return grids


def spread_document(study: str, results: Results) -> dict[str, Any]:
    """The numbers of these tables."""
    errors, reference = pair_errors(results), REFERENCES.get(study)
    document: dict[str, Any] = {"errors": {v: set_means(sets) for v, sets in errors.items()}}
    if reference in errors:
        found = differences(errors, str(reference))
        by_set = {
            variant: {data: difference._asdict() for data, difference in sets.items()}
            for variant, sets in found.items()
        }
        document["differences"] = {"from": reference, "variants": by_set}
    document["peaks"] = {v: _peak_values(runs) for v, runs in results.items() if runs[0].peaks}
    return document


def with_spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation, or a single value."""
    numbers = [values[0]] if len(values) < 2 else [mean(values), stdev(values)]
    return " ± ".join(f"{number:.{digits}f}" for number in numbers)


def _set_grid(errors: Errors) -> Grid:
    means = {variant: set_means(sets) for variant, sets in errors.items()}
    columns = list(next(iter(means.values())))
    counts = {data: error.shape[1] for data, error in next(iter(errors.values())).items()}
    pairs = [str(counts.get(data, _num_real(counts))) for data in columns]
    rows = [["pairs", "", *pairs]]
    for variant, sets in means.items():
        rows.append([variant, str(len(sets[columns[0]])), *(with_spread(sets[d]) for d in columns)])
    note = "EPE in px, the mean over the pairs of a set; ±: standard deviation over the seeds."
    return Grid("By set", ["variant", "seeds", *map(label, columns)], rows, note)


def _num_real(counts: Mapping[str, int]) -> int:
    return sum(count for data, count in counts.items() if data != HELD_OUT)


def _difference_grid(errors: Errors, reference: str) -> Grid:
    found = differences(errors, reference)
    columns = list(next(iter(found.values())))
    rows = [
        [variant, f"less {reference}", *(_cell(sets[data]) for data in columns)]
        for variant, sets in found.items()
    ]
    note = (
        "Difference of the EPE, in px, above 0: worse. In brackets: 95 % of the bootstraps over "
        "the pairs of each set, of the mean over the seeds; none for a single pair."
    )
    return Grid(f"Against {reference}", ["variant", "", *map(label, columns)], rows, note)


def _cell(difference: Difference) -> str:
    text = f"{difference.mean:+.2f}"
    if difference.interval is None:
        return text
    low, high = difference.interval
    return f"{text} ({low:+.2f} to {high:+.2f})"


def _peak_values(runs: Sequence[VariantResult]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """By data set, and "before" and "after" DAP: each number, a value per seed."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for run in runs:
        for data, stages in run.peaks.items():
            names = ["before", "after"] if len(stages) > 1 else ["before"]
            for name, summary in zip(names, stages.values(), strict=True):
                stage = found.setdefault(data, {}).setdefault(name, {})
                for key, value in summary.items():
                    stage.setdefault(key, []).append(value)
    return found


def _peak_grid(results: Results) -> Grid:
    values = {variant: _peak_values(runs) for variant, runs in results.items()}
    data_sets = list(dict.fromkeys(data for sets in values.values() for data in sets))
    headings = [f"{label(data)}: {what}" for data in data_sets for what in ("d_peak", "EPE")]
    rows = []
    for variant, sets in values.items():
        stages = dict.fromkeys(stage for found in sets.values() for stage in found)
        for stage in stages:
            cells = [
                with_spread(sets.get(data, {}).get(stage, {}).get(key, []), digits)
                if sets.get(data, {}).get(stage, {}).get(key)
                else ""
                for data in data_sets
                for key, digits in (("median_d_peak", 3), ("epe_soft_argmin", 2))
            ]
            rows.append([variant, f"{stage} DAP" if len(stages) > 1 else "no DAP", *cells])
    note = (
        "Median of d_peak at the finest level, and EPE of the expected displacement there, before "
        "the context net. The paper: 0.57 without DAP, 0.63 with it."
    )
    return Grid("d_peak", ["variant", "", *headings], rows, note)
