"""One pixel: the probability of each displacement at each level, and the true displacement."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..data import FlowPair, read_frames, read_sample
from ..errors import InputError
from ..estimation.estimator import FlowEstimator
from ..files import Array
from ..pictures.figures import draw_figure
from .volumes import Volumes, has_projection, read_volumes

_PATCH = 48  # px shown around the pixel


@dataclass(frozen=True)
class PixelMap:
    """The probabilities of one pixel at one level."""

    stride: int
    probability: Array
    """(U, V)."""
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
        return {
            "displacement": self.displacement,
            "highest": float(first),
            "d_peak": float(first - second),
            "true_displacement": self.truth,
        }

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
    height, width = frames[0].shape[:2]
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(f"the pixel {x} {y} is outside the {width}x{height} frame")
    truth = None
    if pair.truth is not None:
        sample = read_sample(pair)
        truth = sample.flow[y, x] if sample.valid[y, x] else None
    found: dict[str, list[PixelMap]] = {}
    for name, estimator in estimators.items():
        volumes = read_volumes(estimator, *frames)
        stages = ("before", "after") if has_projection(estimator) else ("before",)
        for stage in stages:
            label = f"{name}, {stage} DAP" if len(stages) > 1 else f"{name}, without DAP"
            found[label] = [
                _pixel_map(volumes, stride, stage, (x, y), truth) for stride in volumes.levels
            ]
    return found


def _pixel_map(
    volumes: Volumes, stride: int, stage: str, pixel: tuple[int, int], truth: Array | None
) -> PixelMap:
    volume = volumes.levels[stride]
    column, row = volumes.cell(stride, *pixel)
    probability = getattr(volume, stage)[:, :, row, column].cpu().numpy()
    if truth is None:
        return PixelMap(stride, probability, None)
    start = volume.start[:, row, column].cpu().numpy()
    u, v = truth / volumes.cell_size(stride) - start
    return PixelMap(stride, probability, (float(u), float(v)))


def draw_pixel(found: Mapping[str, list[PixelMap]], pair: FlowPair, x: int, y: int) -> Any:
    """A row per network and stage, a column per level; yellow lines mark the truth."""
    levels = max(map(len, found.values()))
    figure = draw_figure(2.1 * (levels + 1), 2.3 * len(found))
    axes = figure.subplots(len(found), levels + 1, squeeze=False)
    for row, (name, maps) in zip(axes, found.items(), strict=True):
        _draw_patch(row[0], pair, x, y)
        row[0].set_ylabel(name)
        for panel, pixel_map in zip(row[1:], maps, strict=False):
            _draw_map(panel, pixel_map)
        for panel in row[1 + len(maps) :]:
            panel.axis("off")
    return figure


def _draw_patch(panel: Any, pair: FlowPair, x: int, y: int) -> None:
    image = read_frames(pair)[0]
    left, top = max(0, x - _PATCH), max(0, y - _PATCH)
    patch = image[top : y + _PATCH + 1, left : x + _PATCH + 1]
    extent = (left - 0.5, left + patch.shape[1] - 0.5, top + patch.shape[0] - 0.5, top - 0.5)
    panel.imshow(patch, extent=extent)
    panel.plot(x, y, "+", color="yellow", markersize=12)
    panel.set(title=f"pixel {x}, {y}", xticks=[], yticks=[])


def _draw_map(panel: Any, pixel_map: PixelMap) -> None:
    radius = len(pixel_map.probability) // 2
    extent = (-radius - 0.5, radius + 0.5, radius + 0.5, -radius - 0.5)
    brightest = max(0.2, pixel_map.probability.max())  # even probabilities look dark, not bright
    picture = pixel_map.probability.T  # v down
    panel.imshow(picture, cmap="gray", vmin=0, vmax=brightest, extent=extent)
    title = f"stride {pixel_map.stride}: max {pixel_map.probability.max():.2f}"
    if pixel_map.truth is not None:
        u, v = pixel_map.truth
        if max(abs(u), abs(v)) <= radius + 0.5:
            panel.axvline(u, color="yellow", linewidth=0.8)
            panel.axhline(v, color="yellow", linewidth=0.8)
        else:
            title += "\ntruth out of reach"
    panel.set_title(title, fontsize=9)
    panel.set(xticks=range(-radius, radius + 1, radius), yticks=range(-radius, radius + 1, radius))
    panel.set_xlim(-radius - 0.5, radius + 0.5)
    panel.set_ylim(radius + 0.5, -radius - 0.5)
