"""The cost of one layer over all displacements: the paper's table 1, and measurements.

A volume has K channels, U x V displacements and h x w pixels. A 4-D convolution mixes all of them;
VCN's separable one mixes (u, v), then (h, w); the matching net applies the same 2-D convolution to
one displacement at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..evaluation import Grid
from ..pictures.figures import draw_figure
from .clock import median_seconds
from .layer_runs import BATCHED, DENSE, ONE_BY_ONE, SEPARABLE, VolumeShape, layer_runs, peak_bytes

WHY = (
    "The paper counts a layer of the matching net from K channels to 1 (9K weights), of the other "
    "two from K to K; hence its 9K : 2K : 1. Layers of equal width compare as 9 : 2 : 1."
)


@dataclass(frozen=True)
class LayerCost:
    """One way to process the volume."""

    name: str
    kernel: str
    """The shape of its weights in the paper's table."""
    paper_parameters: int
    """As the paper counts them: the matching net's with one output channel."""
    parameters: int
    """Of a layer from K to K channels."""
    multiply_adds: int
    """Of that layer, over all displacements."""
    paper_memory: int
    """Numbers held at the same time, according to the paper."""
    measured_bytes: int = 0
    """Peak memory of a real layer, with input and output: on CUDA measured by torch's allocator,
    elsewhere the sum of the tensors, without the workspace of a convolution."""
    seconds: float = 0.0


def layer_costs(volume: VolumeShape) -> list[LayerCost]:
    """The formulas of table 1, and those for layers of equal width."""
    channels, displacements = volume.channels, volume.side**2
    whole = channels * displacements * volume.pixels
    square = channels**2
    work = square * displacements * volume.pixels
    dense, separable, plane = 81 * square, 18 * square, 9 * square
    return [
        LayerCost(DENSE, "(K, K, 3, 3, 3, 3)", dense, dense, 81 * work, whole),
        LayerCost(SEPARABLE, "(2, K, K, 3, 3)", separable, separable, 18 * work, whole),
        LayerCost(BATCHED, "(K, 3, 3)", 9 * channels, plane, 9 * work, whole),
        LayerCost(ONE_BY_ONE, "(K, 3, 3)", 9 * channels, plane, 9 * work, whole // displacements),
    ]


def measure_layers(volume: VolumeShape, device: torch.device) -> list[LayerCost]:
    """Measure memory and time of a real layer of each kind, K to K, without gradients.

    The input is the features of both frames, K/2 channels each. The memory is what a layer needs in
    addition: its output and, if it needs one, the volume.
    """
    half = volume.channels // 2
    features = torch.rand(2, half, volume.height, volume.width, device=device)
    runs = layer_runs(volume, features)
    measured = []
    for cost in layer_costs(volume):
        with torch.inference_mode():
            peak = peak_bytes(runs[cost.name], device)
            seconds = median_seconds(runs[cost.name], device, 3)
        measured.append(replace(cost, measured_bytes=peak, seconds=seconds))
    return measured


def layer_grids(volume: VolumeShape, costs: Sequence[LayerCost]) -> list[Grid]:
    """The paper's table 1, and the same for layers of equal width, measured."""
    last = costs[-1]
    paper = [
        [
            cost.name,
            cost.kernel,
            f"{cost.paper_parameters:,}",
            f"{cost.paper_parameters / last.paper_parameters:g}",
            f"{cost.paper_memory / last.paper_memory:g}",
        ]
        for cost in costs
    ]
    measured = [
        [
            cost.name,
            "K to K",
            f"{cost.parameters:,}",
            f"{cost.parameters / last.parameters:g}",
            f"{cost.multiply_adds / 1e9:.3g}",
            f"{cost.measured_bytes / 2**20:.3g}",
            f"{cost.seconds:.2g}",
        ]
        for cost in costs
    ]
    first = ["layer", "kernel", "parameters", "ratio"]
    return [
        Grid(f"As the paper counts, {_title(volume)}", [*first, "memory ratio"], paper),
        Grid("Of equal width, measured", [*first, "G multiply-adds", "MiB", "s"], measured, WHY),
    ]


def _title(volume: VolumeShape) -> str:
    return (
        f"K = {volume.channels}, {volume.side}x{volume.side} displacements, "
        f"{volume.width}x{volume.height} pixels"
    )


def draw_layers(volume: VolumeShape, costs: Sequence[LayerCost]) -> Any:
    """Parameters, arithmetic and memory of each kind of layer, K to K; logarithmic bars."""
    figure = draw_figure(11, 3.2)
    panels = figure.subplots(1, 3, sharey=True)
    names = [cost.name for cost in costs]
    columns: dict[str, list[float]] = {
        "parameters": [cost.parameters for cost in costs],
        "multiply-adds": [cost.multiply_adds for cost in costs],
        "memory at the peak (MiB)": [cost.measured_bytes / 2**20 for cost in costs],
    }
    for panel, (title, values) in zip(panels, columns.items(), strict=True):
        bars = panel.barh(names, values, color=["C3", "C1", "C0", "C2"])
        panel.bar_label(bars, [_short(value) for value in values], padding=3)
        panel.set(xscale="log", title=title)
        panel.xaxis.set_ticks([], minor=True)
        panel.set_xticks([])
        panel.margins(x=0.35)
    panels[0].invert_yaxis()
    figure.suptitle(f"One layer, K to K: {_title(volume)}; bars are logarithmic")
    return figure


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"
