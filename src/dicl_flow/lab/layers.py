"""The cost of one layer over all displacements: the paper's table 1, and measurements.

A volume has K channels, U x V displacements and h x w pixels. A 4-D convolution mixes all of them;
VCN's separable one mixes (u, v), then (h, w); the matching net applies the same 2-D convolution to
one displacement at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..evaluation import Grid
from ..ops import displacement_windows
from ..pictures.figures import draw_figure
from .speed import median_seconds

DENSE, SEPARABLE = "4-D convolution", "VCN, separable"
BATCHED, ONE_BY_ONE = "matching net, batched", "matching net, one by one"
WHY = (
    "The paper counts a layer of the matching net from K channels to 1 (9K weights), of the other "
    "two from K to K; hence its 9K : 2K : 1. Layers of equal width compare as 9 : 2 : 1."
)


@dataclass(frozen=True)
class VolumeShape:
    """The size of the 5-D feature volume that a layer processes."""

    channels: int
    side: int  # U = V
    height: int
    width: int

    def __str__(self) -> str:
        displacements = f"{self.side}x{self.side} displacements"
        return f"K = {self.channels}, {displacements}, {self.width}x{self.height} pixels"


@dataclass(frozen=True)
class LayerCost:
    """One way to process the volume."""

    name: str
    kernel: str  # the shape of its weights in the paper's table
    paper_parameters: int  # as the paper counts them: the matching net's with one output channel
    parameters: int  # of a layer from K to K channels
    multiply_adds: int  # of that layer, over all displacements
    paper_memory: int  # numbers held at the same time, according to the paper
    measured_bytes: int = 0  # `peak_bytes` of a real layer
    seconds: float = 0.0


def layer_costs(volume: VolumeShape) -> list[LayerCost]:
    """The formulas of table 1, and those for layers of equal width."""
    channels, displacements = volume.channels, volume.side**2
    whole = channels * displacements * volume.height * volume.width
    dense, separable, plane = 81 * channels**2, 18 * channels**2, 9 * channels**2
    work = channels * whole
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
    k = volume.channels
    features = torch.rand(2, k // 2, volume.height, volume.width, device=device)
    dense = torch.rand(3, k, k, 3, 3, 3, device=device)  # the first axis: u
    across, along = torch.rand(2, k, k, 3, 3, device=device)
    runs: dict[str, Callable[[], Tensor]] = {
        DENSE: lambda: _convolve_4d(volume, features, dense),
        SEPARABLE: lambda: _convolve_separably(volume, features, across, along),
        BATCHED: lambda: F.conv2d(_build(volume, features).flatten(0, 1), along, padding=1),
        ONE_BY_ONE: lambda: _one_by_one(volume, features, along),
    }
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
    paper, measured = [], []
    for cost in costs:
        ratio = cost.paper_parameters / last.paper_parameters
        memory = f"{cost.paper_memory / last.paper_memory:g}"
        paper.append([cost.name, cost.kernel, f"{cost.paper_parameters:,}", f"{ratio:g}", memory])
        numbers = [f"{cost.parameters:,}", f"{cost.parameters / last.parameters:g}"]
        numbers += [f"{cost.multiply_adds / 1e9:.3g}", f"{cost.measured_bytes / 2**20:.3g}"]
        measured.append([cost.name, "K to K", *numbers, f"{cost.seconds:.2g}"])
    first = ["layer", "kernel", "parameters", "ratio"]
    return [
        Grid(f"As the paper counts, {volume}", [*first, "memory ratio"], paper),
        Grid("Of equal width, measured", [*first, "G multiply-adds", "MiB", "s"], measured, WHY),
    ]


def draw_layers(volume: VolumeShape, costs: Sequence[LayerCost]) -> Any:
    """Parameters, arithmetic and memory of each kind of layer, K to K; logarithmic bars."""
    figure = draw_figure(11, 3.2)
    panels = figure.subplots(1, 3, sharey=True)
    columns: dict[str, list[float]] = {
        "parameters": [cost.parameters for cost in costs],
        "multiply-adds": [cost.multiply_adds for cost in costs],
        "memory at the peak (MiB)": [cost.measured_bytes / 2**20 for cost in costs],
    }
    for panel, (title, values) in zip(panels, columns.items(), strict=True):
        bars = panel.barh([cost.name for cost in costs], values, color=["C3", "C1", "C0", "C2"])
        panel.bar_label(bars, [_short(value) for value in values], padding=3)
        panel.set(xscale="log", title=title)
        panel.xaxis.set_ticks([], minor=True)
        panel.set_xticks([])
        panel.margins(x=0.35)
    panels[0].invert_yaxis()
    figure.suptitle(f"One layer, K to K: {volume}; bars are logarithmic")
    return figure


def _short(value: float) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {letter}"
    return f"{value:.3g}"


def _convolve_4d(volume: VolumeShape, features: Tensor, weight: Tensor) -> Tensor:
    """A (3, K, K, 3, 3, 3) kernel over (U, K, V, H, W), as sums of 3-D convolutions."""
    stacked = _build(volume, features, (0, 2, 1, 3, 4)).transpose(1, 2)
    result = torch.zeros_like(stacked)
    for u in range(volume.side):
        for offset in range(max(0, 1 - u), min(3, volume.side + 1 - u)):
            result[u] += F.conv3d(stacked[u + offset - 1], weight[offset], padding=1)
    return result


def _convolve_separably(
    volume: VolumeShape, features: Tensor, across: Tensor, along: Tensor
) -> Tensor:
    """3x3 over (u, v) at each pixel, then 3x3 over (h, w) at each displacement."""
    pixels = _build(volume, features, (3, 4, 2, 0, 1)).permute(3, 4, 2, 0, 1).flatten(0, 1)
    mixed = F.conv2d(pixels, across, padding=1)  # (H·W, K, U, V)
    del pixels  # free it: a layer keeps its input and output only
    mixed = mixed.unflatten(0, (volume.height, volume.width))
    slices = mixed.permute(3, 4, 2, 0, 1).flatten(0, 1)  # (U·V, K, H, W)
    del mixed
    return F.conv2d(slices, along, padding=1)


def _one_by_one(volume: VolumeShape, features: Tensor, weight: Tensor) -> Tensor:
    """One displacement at a time, of which one score per pixel is kept."""
    scores = features.new_empty(volume.side**2, volume.height, volume.width)
    for index, (u, v) in enumerate(product(range(volume.side), repeat=2)):
        layer = F.conv2d(_slice(volume, features, u, v)[None], weight, padding=1)
        scores[index] = layer[0].mean(0)
    return scores


def _build(
    volume: VolumeShape, features: Tensor, order: tuple[int, ...] = (0, 1, 2, 3, 4)
) -> Tensor:
    """The whole volume, (U, V, K, H, W), with its axes in memory in the given `order`."""
    shape = (volume.side, volume.side, volume.channels, volume.height, volume.width)
    memory = features.new_empty([shape[axis] for axis in order])
    whole = memory.permute([order.index(axis) for axis in range(5)])
    for u, v in product(range(volume.side), repeat=2):
        whole[u, v] = _slice(volume, features, u, v)
    return whole


def _slice(volume: VolumeShape, features: Tensor, u: int, v: int) -> Tensor:
    """[features 1, features 2 moved by (u - r, v - r)]: (K, H, W), zero outside."""
    moved = displacement_windows(features[1:], volume.side // 2)[0, :, u, v]
    return torch.cat([features[0], moved])


def peak_bytes(call: Callable[[], Tensor], device: torch.device) -> int:
    """The peak memory of a call: of torch's allocator on CUDA, elsewhere of its tensors alone."""
    if device.type != "cuda":
        with LiveBytes() as live:
            call()
        return live.peak
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors created inside of it that exist at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the tensors that exist after it."""
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                self._sizes.setdefault(StorageWeakRef(storage), storage.nbytes())
        self._sizes = {ref: size for ref, size in self._sizes.items() if not ref.expired()}
        self.peak = max(self.peak, sum(self._sizes.values()))
        return result
