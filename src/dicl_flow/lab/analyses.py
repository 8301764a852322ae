"""Analyses of a network as numbers and figures: levels, d_peak, one pixel, kernels of DAP."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
import torch

from ..data import FlowPair, FlowSample, read_frames, read_sample
from ..data.sample import check_inside
from ..errors import InputError
from ..estimation.estimator import FlowEstimator
from ..evaluation import Grid, Score, score_flow
from ..evaluation.metrics import METRICS
from ..files import Array
from ..models.dicl import DiclLevel
from ..models.matching import DisplacementProjection
from ..ops import normalized_entropy
from ..pictures.figures import draw_figure
from .volumes import Volumes, has_projection, peak_distance, read_volumes, soft_argmax, winner

ZERO = "zero flow"
BANDS = ("epe", "s0_10", "s10_40", "s40_plus")
_BINS = 1000  # the paper's bins of 0.001
_DRAWN_BINS = 50
_READINGS = {"winner_takes_all": winner, "soft_argmin": soft_argmax}
_PATCH = 48  # px shown around the pixel
_NEAR, _FAR = 1.5, 3.0  # in displacements: the eight neighbours; farther than half a window


def _stages(name: str, estimator: FlowEstimator) -> list[tuple[str, str]]:
    """Each stage of a level's probabilities, as `LevelVolume` names it, and its label."""
    if not has_projection(estimator):
        return [("before", f"{name}, without DAP")]
    return [("before", f"{name}, before DAP"), ("after", f"{name}, after DAP")]


@dataclass
class LevelErrors:
    """The errors of one network's levels over many pairs."""

    scores: dict[str, Score] = field(default_factory=dict)
    """Of zero flow, then of the matched and refined flow of each level, coarsest first."""
    no_displacement: dict[int, list[float]] = field(default_factory=dict)
    """By stride, for each pair: the mean probability of the displacement (0, 0)."""

    def add(self, volumes: Volumes, sample: FlowSample) -> None:
        """Add the errors of a pair."""
        _add(self.scores, ZERO, np.zeros_like(sample.flow), sample)
        for stride, level in volumes.levels.items():
            for kind in ("matched", "refined"):
                flow = volumes.to_frame(getattr(level, kind))
                _add(self.scores, f"stride {stride} {kind}", flow, sample)
            middle = level.after.shape[0] // 2
            still = float(volumes.seen(level.after[middle, middle]).mean())
            self.no_displacement.setdefault(stride, []).append(still)

    def summary(self) -> dict[str, dict[str, float]]:
        """Numbers for JSON."""
        steps = {
            step: {band: score.values[band] for band in BANDS if band in score.values}
            for step, score in self.scores.items()
        }
        for stride, still in self.no_displacement.items():
            steps[f"stride {stride} matched"]["no_displacement"] = fmean(still)
        return steps


def _add(scores: dict[str, Score], name: str, flow: Array, sample: FlowSample) -> None:
    scores[name] = scores.get(name, Score({})) + score_flow(flow, sample)


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
        places, summary = range(len(errors.scores)), errors.summary()
        for band in BANDS:  # NaN if no pixel moves that far
            values = [step.get(band, float("nan")) for step in summary.values()]
            if not np.isnan(values).all():
                axes.plot(places, values, marker="o", markersize=3, label=METRICS[band].heading)
        labels = [step.replace("stride ", "").replace(" ", "\n") for step in errors.scores]
        axes.set_xticks(places, labels, fontsize=7)
        axes.set(title=name, yscale="log", xlabel="stride of the level")
        axes.grid(visible=True, axis="y", which="both", alpha=0.3)
    panels[0].set_ylabel("mean end-point error (px)")
    panels[0].legend(title="pixels that move (px)")
    return figure


@dataclass
class Peaks:
    """d_peak of the finest level over many pixels, and the errors of two ways to read a flow."""

    histogram: Array = field(default_factory=lambda: np.zeros(_BINS, np.int64))
    scores: dict[str, Score] = field(default_factory=dict)
    """Of the flow before the context net, by readout; empty without ground truth."""

    @property
    def share(self) -> Array:
        """Of the pixels, in percent, by bin."""
        return 100 * self.histogram / max(self.histogram.sum(), 1)

    @property
    def median(self) -> float:
        """The median of d_peak, to half a bin."""
        below = np.cumsum(self.histogram)
        return (int(np.searchsorted(below, below[-1] / 2)) + 0.5) / _BINS

    def add(self, volumes: Volumes, stage: str, sample: FlowSample | None) -> None:
        """Add a pair; `stage` is "before" or "after" the projection."""
        *_, finest = volumes.levels.values()
        probability = getattr(finest, stage)
        peaks = volumes.seen(peak_distance(probability)).flatten()
        index = (peaks * _BINS).long().clamp(0, _BINS - 1)
        self.histogram += torch.bincount(index, minlength=_BINS).cpu().numpy()
        if sample is not None:
            for name, read in _READINGS.items():
                flow = volumes.to_frame(read(probability) + finest.start)
                _add(self.scores, name, flow, sample)

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
    edges, highest = np.linspace(0, 1, _DRAWN_BINS + 1), []
    for number, (name, peaks) in enumerate(found.items()):
        label, color = f"{name}: median {peaks.median:.2f}", f"C{number}"
        share = peaks.share.reshape(_DRAWN_BINS, -1).sum(1)
        axes.stairs(share, edges, color=color, linewidth=1.5, label=label)
        axes.stairs(share, edges, color=color, fill=True, alpha=0.12)
        axes.axvline(peaks.median, color=color, linestyle="--", linewidth=1)
        highest.append(np.partition(share, -2)[-2])
    width = 1 / _DRAWN_BINS
    axes.set(xlim=(0, 1), xlabel="$d_{peak}$", ylabel=f"share of the pixels (%), bins of {width:g}")
    axes.set_ylim(0, 1.15 * max(highest))  # one bin at the end may be higher and hide the rest
    axes.legend()
    return figure


@dataclass(frozen=True)
class PixelMap:
    """The probabilities of one pixel at one level."""

    stride: int
    probability: Array  # (U, V)
    truth: tuple[float, float] | None
    """The true displacement (u, v) at this level, given the coarser flow."""

    @property
    def displacement(self) -> tuple[int, int]:
        """The most probable displacement (u, v)."""
        u, v = np.unravel_index(self.probability.argmax(), self.probability.shape)
        radius = len(self.probability) // 2
        return int(u) - radius, int(v) - radius

    def summary(self) -> dict[str, Any]:
        """Numbers for JSON."""
        second, first = np.sort(self.probability, axis=None)[-2:]
        numbers = {"highest": float(first), "d_peak": float(first - second)}
        return {"displacement": self.displacement, **numbers, "true_displacement": self.truth}

    def __str__(self) -> str:
        second, first = np.sort(self.probability, axis=None)[-2:]
        u, v = self.displacement
        text = f"most probable ({u}, {v}) with {first:.2f}, next best {second:.2f}"
        return text if self.truth is None else text + "; right ({:.2f}, {:.2f})".format(*self.truth)


def read_pixel(
    estimators: Mapping[str, FlowEstimator], pair: FlowPair, x: int, y: int
) -> dict[str, list[PixelMap]]:
    """By network and stage: the maps of frame 1's pixel (x, y), coarsest level first."""
    frames = read_frames(pair)
    check_inside(x, y, frames[0].shape[:2])
    truth = None
    if pair.truth is not None:
        sample = read_sample(pair)
        truth = sample.flow[y, x] if sample.valid[y, x] else None
    found: dict[str, list[PixelMap]] = {}
    for name, estimator in estimators.items():
        volumes = read_volumes(estimator, *frames)
        for stage, label in _stages(name, estimator):
            found[label] = []
            for stride, level in volumes.levels.items():
                column, row = volumes.cell(stride, x, y)
                probability = getattr(level, stage)[:, :, row, column].cpu().numpy()
                right = None
                if truth is not None:
                    start = level.start[:, row, column].cpu().numpy()
                    u, v = truth / volumes.cell_size(stride) - start
                    right = (float(u), float(v))
                found[label].append(PixelMap(stride, probability, right))
    return found


def draw_pixel(found: Mapping[str, list[PixelMap]], pair: FlowPair, x: int, y: int) -> Any:
    """A row per network and stage, a column per level; yellow lines mark the truth."""
    levels = max(map(len, found.values()))
    figure = draw_figure(2.1 * (levels + 1), 2.5 * len(found))  # titles may have two lines
    axes = figure.subplots(len(found), levels + 1, squeeze=False)
    left, top = max(0, x - _PATCH), max(0, y - _PATCH)
    patch = read_frames(pair)[0][top : y + _PATCH + 1, left : x + _PATCH + 1]
    extent = (left - 0.5, left + patch.shape[1] - 0.5, top + patch.shape[0] - 0.5, top - 0.5)
    for row, (name, maps) in zip(axes, found.items(), strict=True):
        row[0].imshow(patch, extent=extent)
        row[0].plot(x, y, "+", color="yellow", markersize=12)
        row[0].set(title=f"pixel {x}, {y}", xticks=[], yticks=[], ylabel=name)
        for panel, pixel_map in zip(row[1:], maps, strict=False):
            _draw_map(panel, pixel_map)
        for panel in row[1 + len(maps) :]:
            panel.axis("off")
    return figure


def _draw_map(panel: Any, pixel_map: PixelMap) -> None:
    radius = len(pixel_map.probability) // 2
    extent = (-radius - 0.5, radius + 0.5, radius + 0.5, -radius - 0.5)
    brightest = max(0.2, pixel_map.probability.max())  # even probabilities look dark, not bright
    picture = pixel_map.probability.T  # v down
    panel.imshow(picture, cmap="gray", vmin=0, vmax=brightest, extent=extent)
    title = f"stride {pixel_map.stride}: max {pixel_map.probability.max():.2f}"
    if pixel_map.truth is not None and np.abs(pixel_map.truth).max() > radius + 0.5:
        title += "\ntruth out of reach"
    elif pixel_map.truth is not None:
        panel.axvline(pixel_map.truth[0], color="yellow", linewidth=0.8)
        panel.axhline(pixel_map.truth[1], color="yellow", linewidth=0.8)
    panel.set_title(title, fontsize=9)
    ticks = range(-radius, radius + 1, radius)
    panel.set(xticks=ticks, yticks=ticks, xlim=extent[:2], ylim=extent[2:])


def describe_pixel(volumes: Volumes, x: int, y: int, *, projection: bool) -> dict[str, Any]:
    """The probabilities of the pixel (x, y) at each level, [v][u], and its flows, for JSON.

    Flows are in pixels of the frame.
    """
    check_inside(x, y, volumes.frame_size)
    levels = []
    for stride, level in volumes.levels.items():
        (column, row), size = volumes.cell(stride, x, y), volumes.cell_size(stride)
        described: dict[str, Any] = {"stride": stride, "cell": [column, row]}
        described |= {"cell_size": size.tolist(), "before": None, "after": None}
        for stage in ("before", "after") if projection else ("before",):
            chosen = getattr(level, stage)[:, :, row, column].cpu()
            entropy = normalized_entropy(chosen[None, :, :, None, None]).item()
            described[stage] = {"probability": chosen.T.tolist(), "entropy": entropy}
        for kind in ("start", "matched", "refined"):
            flow = getattr(level, kind)[:, row, column].cpu().numpy()
            described[kind] = (flow * size).tolist()
        levels.append(described)
    return {"pixel": [x, y], "levels": levels}


def projection_kernels(name: str, estimator: FlowEstimator) -> dict[int, Array]:
    """By stride: (U, V, U, V), the weight of each input displacement for each output one."""
    if not has_projection(estimator):
        raise InputError(f"{name} has no DAP layer; there are no kernels to show")
    kernels = {}
    for stride, level in estimator.model.levels.items():
        assert isinstance(level, DiclLevel)
        assert isinstance(level.projection, DisplacementProjection)
        weight = level.projection.weight.detach().cpu().numpy()[..., 0, 0]  # (out, in)
        side = round(len(weight) ** 0.5)
        kernels[int(stride)] = weight.reshape(side, side, side, side)
    return kernels


def weight_by_distance(kernel: Array) -> dict[float, float]:
    """The mean weight of inputs at each distance from the kernel's own displacement."""
    distance = _distances(kernel)
    return {float(d): float(kernel[distance == d].mean()) for d in np.unique(distance)}


def summarize_kernel(kernel: Array) -> dict[str, float]:
    """The paper's claim as numbers: positive near a kernel's own displacement, negative far."""
    distance = _distances(kernel)
    groups = {
        "own": kernel[distance == 0],
        "near": kernel[(distance > 0) & (distance < _NEAR)],
        "far": kernel[distance > _FAR],  # none in a small window
    }
    values = {f"{name}_mean": float(w.mean()) for name, w in groups.items() if w.size}
    values["near_positive_share"] = float((groups["near"] > 0).mean())
    if groups["far"].size:
        values["far_negative_share"] = float((groups["far"] < 0).mean())
    return values


def draw_kernels(name: str, kernels: Mapping[int, Array]) -> Any:
    """All kernels of each level, each at the position of its displacement; white is high."""
    columns = 3
    rows = -(-(len(kernels) + 1) // columns)
    figure = draw_figure(4 * columns, 3.9 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, (stride, kernel) in zip(axes, kernels.items(), strict=False):
        _draw_level(figure, panel, stride, kernel)
        points = {d: w for d, w in weight_by_distance(kernel).items() if d > 0}
        axes[len(kernels)].plot([*points], [*points.values()], ".-", label=f"stride {stride}")
    distances, *unused = axes[len(kernels) :]
    distances.axhline(0, color="black", linewidth=0.8)
    distances.set(xlabel="distance from the kernel's own displacement", ylabel="mean weight")
    distances.set_title("near and far (own weight left out)")
    distances.legend(fontsize="small")
    for panel in unused:
        panel.axis("off")
    figure.suptitle(f"DAP kernels of {name}")
    return figure


def _draw_level(figure: Any, panel: Any, stride: int, kernel: Array) -> None:
    side = len(kernel)
    framed = np.pad(kernel, [(0, 0), (0, 0), (0, 1), (0, 1)], constant_values=np.nan)
    sheet = framed.transpose(1, 3, 0, 2).reshape((side * (side + 1),) * 2)[:-1, :-1]  # v down
    others = kernel[_distances(kernel) > 0]
    # without its own weight, which would dim the rest
    extent = float(np.percentile(np.abs(others), 99)) or 1.0
    picture = panel.imshow(sheet, cmap="gray", vmin=-extent, vmax=extent)
    ticks = (np.arange(side) * (side + 1) + side // 2, np.arange(side) - side // 2)
    panel.set_xticks(*ticks)
    panel.set_yticks(*ticks)
    panel.set(title=f"stride {stride}", xlabel="u", ylabel="v")
    panel.set_facecolor("tab:blue")
    figure.colorbar(picture, ax=panel, shrink=0.7)


def _distances(kernel: Array) -> Array:
    """(U, V, U, V): how far the input displacement is from the output's."""
    place = np.arange(len(kernel))
    difference = place[:, None] - place
    return np.hypot(difference[:, None, :, None], difference[None, :, None, :])
