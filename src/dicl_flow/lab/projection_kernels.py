"""The kernels of the displacement-aware projection: which displacements support each other."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InputError
from ..estimation.estimator import FlowEstimator
from ..files import Array
from ..matching import DisplacementProjection
from ..models.dicl import DiclLevel
from ..pictures.figures import draw_figure
from .volumes import has_projection

_NEAR, _FAR = 1.5, 3.0  # in displacements: the eight neighbours; farther than half a window


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
    """The paper's claim as numbers: positive near a kernel's own displacement, negative far.

    A small window has no far displacements.
    """
    distance = _distances(kernel)
    groups = {
        "own": kernel[distance == 0],
        "near": kernel[(distance > 0) & (distance < _NEAR)],
        "far": kernel[distance > _FAR],
    }
    known = {name: weights for name, weights in groups.items() if weights.size}
    values = {f"{name}_mean": float(weights.mean()) for name, weights in known.items()}
    values["near_positive_share"] = float((groups["near"] > 0).mean())
    if "far" in known:
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
    _draw_distances(axes[len(kernels)], kernels)
    for panel in axes[len(kernels) + 1 :]:
        panel.axis("off")
    figure.suptitle(f"DAP kernels of {name}")
    return figure


def _draw_level(figure: Any, panel: Any, stride: int, kernel: Array) -> None:
    side = len(kernel)
    sheet = np.full((side * (side + 1) - 1,) * 2, np.nan)
    for u in range(side):
        for v in range(side):
            top, left = v * (side + 1), u * (side + 1)
            sheet[top : top + side, left : left + side] = kernel[u, v].T  # v down, u right
    others = kernel[_distances(kernel) > 0]
    extent = (
        float(np.percentile(np.abs(others), 99)) or 1.0
    )  # without its own weight, which would dim the rest
    picture = panel.imshow(sheet, cmap="gray", vmin=-extent, vmax=extent)
    middle = np.arange(side) * (side + 1) + side // 2
    labels = np.arange(side) - side // 2
    panel.set_xticks(middle, labels)
    panel.set_yticks(middle, labels)
    panel.set(title=f"stride {stride}", xlabel="u", ylabel="v")
    panel.set_facecolor("tab:blue")
    figure.colorbar(picture, ax=panel, shrink=0.7)


def _draw_distances(panel: Any, kernels: Mapping[int, Array]) -> None:
    for stride, kernel in kernels.items():
        points = {d: w for d, w in weight_by_distance(kernel).items() if d > 0}
        panel.plot([*points], [*points.values()], ".-", label=f"stride {stride}")
    panel.axhline(0, color="black", linewidth=0.8)
    panel.set(
        xlabel="distance from the kernel's own displacement",
        ylabel="mean weight",
        title="near and far (own weight left out)",
    )
    panel.legend(fontsize="small")


def _distances(kernel: Array) -> Array:
    """(U, V, U, V): how far the input displacement is from the output's."""
    place = np.arange(len(kernel))
    difference = place[:, None] - place
    return np.hypot(difference[:, None, :, None], difference[None, :, None, :])
