"""The contribution of each level: the error of its flow, by length of the motion."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from ..data import FlowSample
from ..estimation.estimator import FlowEstimator
from ..evaluation import METRICS, Grid, Score, score_flow
from ..pictures.figures import draw_figure
from .volumes import Volumes, read_volumes

ZERO = "zero flow"
BANDS = ("epe", "s0_10", "s10_40", "s40_plus")


@dataclass
class LevelErrors:
    """The errors of one network's levels over many pairs."""

    scores: dict[str, Score] = field(default_factory=dict)
    """Of zero flow, then of the matched and refined flow of each level, coarsest first."""
    no_displacement: dict[int, list[float]] = field(default_factory=dict)
    """By stride, for each pair: the mean probability of the displacement (0, 0)."""

    def add(self, volumes: Volumes, sample: FlowSample) -> None:
        """Add the errors of a pair."""
        self._score(ZERO, np.zeros_like(sample.flow), sample)
        for stride, level in volumes.levels.items():
            self._score(f"stride {stride} matched", volumes.to_frame(level.matched), sample)
            self._score(f"stride {stride} refined", volumes.to_frame(level.refined), sample)
            middle = level.after.shape[0] // 2
            still = float(volumes.seen(level.after[middle, middle]).mean())
            self.no_displacement.setdefault(stride, []).append(still)

    def _score(self, step: str, flow: Any, sample: FlowSample) -> None:
        self.scores[step] = self.scores.get(step, Score({})) + score_flow(flow, sample)

    def errors(self, band: str) -> list[float]:
        """The mean error after each step; NaN if no pixel moves that far."""
        return [score.values.get(band, float("nan")) for score in self.scores.values()]

    def summary(self) -> dict[str, dict[str, float]]:
        """Numbers for JSON."""
        found = {
            step: {band: score.values[band] for band in BANDS if band in score.values}
            for step, score in self.scores.items()
        }
        for stride, still in self.no_displacement.items():
            found[f"stride {stride} matched"]["no_displacement"] = fmean(still)
        return found


def find_level_errors(
    estimators: Mapping[str, FlowEstimator], samples: Iterable[FlowSample]
) -> dict[str, LevelErrors]:
    """Score every level of every network on each pair."""
    found = {name: LevelErrors() for name in estimators}
    for sample in samples:
        for name, estimator in estimators.items():
            found[name].add(read_volumes(estimator, sample.image1, sample.image2), sample)
    return found


def level_grid(name: str, found: LevelErrors) -> Grid:
    """Return the table of a network: the error after each step."""
    headings = ["step", "", *(METRICS[band].heading for band in BANDS), "no displacement"]
    rows = []
    for step, values in found.summary().items():
        stage, _, kind = step.rpartition(" ")
        numbers = [f"{values[band]:.2f}" if band in values else "" for band in BANDS]
        still = f"{values['no_displacement']:.3f}" if "no_displacement" in values else ""
        rows.append([stage, kind, *numbers, still])
    note = "Mean end-point errors in px. No displacement: the probability a level gives to (0, 0)."
    return Grid(f"Contribution of each level: {name}", headings, rows, note)


def draw_levels(found: Mapping[str, LevelErrors]) -> Any:
    """One panel per network: the error after each step, a line per range of motion."""
    figure = draw_figure(5.2 * len(found), 4)
    panels = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for axes, (name, errors) in zip(panels, found.items(), strict=True):
        places = range(len(errors.scores))
        for band in BANDS:
            values = errors.errors(band)
            if not np.isnan(values).all():
                axes.plot(places, values, marker="o", markersize=3, label=METRICS[band].heading)
        labels = [step.replace("stride ", "").replace(" ", "\n") for step in errors.scores]
        axes.set_xticks(places, labels, fontsize=7)
        axes.set(title=name, yscale="log", xlabel="stride of the level")
        axes.grid(visible=True, axis="y", which="both", alpha=0.3)
    panels[0].set_ylabel("mean end-point error (px)")
    panels[0].legend(title="pixels that move (px)")
    return figure
