"""How distinct the best match is: the paper's d_peak before and after DAP, and the errors."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..data import FlowPair, FlowSample, read_frames, read_sample
from ..estimation.estimator import FlowEstimator
from ..evaluation import Score, score_flow
from ..files import Array
from ..pictures.figures import draw_figure
from .volumes import (
    LevelVolume,
    Volumes,
    has_projection,
    peak_distance,
    read_volumes,
    soft_argmax,
    winner,
)

_BINS = 1000  # the paper's bins of 0.001
_READINGS = {"winner_takes_all": winner, "soft_argmin": soft_argmax}


@dataclass
class Peaks:
    """d_peak of the finest level over many pixels, and the errors of two ways to read a flow."""

    histogram: Array = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    scores: dict[str, Score] = field(default_factory=dict)
    """Of the flow before the context net, by readout; empty without ground truth."""

    @property
    def median(self) -> float:
        """The median of d_peak, to half a bin."""
        below = np.cumsum(self.histogram)
        return (int(np.searchsorted(below, below[-1] / 2)) + 0.5) / _BINS

    def add(self, volumes: Volumes, stage: str, sample: FlowSample | None) -> None:
        """Add a pair; `stage` is "before" or "after" the projection."""
        finest: LevelVolume = next(reversed(volumes.levels.values()))
        probability = getattr(finest, stage)
        peaks = volumes.seen(peak_distance(probability)).flatten()
        index = (peaks * _BINS).long().clamp(0, _BINS - 1)
        self.histogram += torch.bincount(index, minlength=_BINS).cpu().numpy()
        if sample is not None:
            for name, read in _READINGS.items():
                flow = volumes.to_frame(read(probability) + finest.start)
                self.scores[name] = self.scores.get(name, Score({})) + score_flow(flow, sample)

    def summary(self) -> dict[str, float]:
        """Numbers for tables."""
        return {
            "median_d_peak": self.median,
            "pixels": int(self.histogram.sum()),
            **{f"epe_{name}": score.values["epe"] for name, score in self.scores.items()},
        }


def find_peaks(
    estimators: Mapping[str, FlowEstimator], pairs: Iterable[FlowPair]
) -> dict[str, Peaks]:
    """Collect d_peak over all pairs: before and after DAP, or once for a network without DAP."""
    found: dict[str, Peaks] = {}
    for pair in pairs:
        frames = read_frames(pair)
        sample = read_sample(pair) if pair.truth else None
        for name, estimator in estimators.items():
            volumes = read_volumes(estimator, *frames)
            for stage, label in _stages(name, estimator):
                found.setdefault(label, Peaks()).add(volumes, stage, sample)
    return found


def draw_peaks(found: Mapping[str, Peaks]) -> Any:
    """The paper's histogram of d_peak over pixels, with the medians as lines."""
    figure = draw_figure(6.4, 4)
    axes = figure.subplots()
    places = (np.arange(_BINS) + 0.5) / _BINS
    for number, (name, peaks) in enumerate(found.items()):
        share = 100 * peaks.histogram / max(peaks.histogram.sum(), 1)
        label = f"{name}: median {peaks.median:.2f}"
        axes.fill_between(places, share, step="mid", alpha=0.45, color=f"C{number}", label=label)
        axes.axvline(peaks.median, color=f"C{number}", linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), xlabel="$d_{peak}$", ylabel="share of the pixels (%), bins of 0.001")
    axes.set_ylim(0, 1.15 * max(_high(peaks) for peaks in found.values()))
    axes.legend()
    return figure


def _stages(name: str, estimator: FlowEstimator) -> list[tuple[str, str]]:
    if not has_projection(estimator):
        return [("before", f"{name}, without DAP")]
    return [("before", f"{name}, before DAP"), ("after", f"{name}, after DAP")]


def _high(peaks: Peaks) -> float:
    """The height of the histogram without its few highest bins, which would hide the rest."""
    return float(np.percentile(100 * peaks.histogram / max(peaks.histogram.sum(), 1), 99.5))
