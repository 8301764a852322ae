"""Real layers of each kind over all displacements, and the memory that they use."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DENSE, SEPARABLE = "4-D convolution", "VCN, separable"
BATCHED, ONE_BY_ONE = "matching net, batched", "matching net, one by one"


@dataclass(frozen=True)
class VolumeShape:
    """The size of the 5-D feature volume that a layer processes."""

    channels: int
    side: int
    """U = V."""
    height: int
    width: int

    @property
    def pixels(self) -> int:
        """Numbers in one channel of one displacement."""
        return self.height * self.width


def layer_runs(volume: VolumeShape, features: Tensor) -> dict[str, Callable[[], Tensor]]:
    """One real layer of each kind, from K to K channels, on the features of two frames."""
    k, device = volume.channels, features.device
    dense = torch.rand(3, k, k, 3, 3, 3, device=device)  # the first axis: u
    across, along = torch.rand(2, k, k, 3, 3, device=device)
    return {
        DENSE: lambda: _convolve_4d(volume, features, dense),
        SEPARABLE: lambda: _convolve_separably(volume, features, across, along),
        BATCHED: lambda: F.conv2d(_build(volume, features).flatten(0, 1), along, padding=1),
        ONE_BY_ONE: lambda: _one_by_one(volume, features, along),
    }


def _convolve_4d(volume: VolumeShape, features: Tensor, weight: Tensor) -> Tensor:
    """A (3, K, K, 3, 3, 3) kernel over (U, K, V, H, W), as sums of 3-D convolutions."""
    side = volume.side
    stacked = _build(volume, features, (0, 2, 1, 3, 4)).transpose(1, 2)
    result = torch.zeros_like(stacked)
    for u in range(side):
        for offset in range(max(0, 1 - u), min(3, side + 1 - u)):
            neighbour = u + offset - 1
            result[u] += F.conv3d(stacked[neighbour], weight[offset], padding=1)
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
    for index, (u, v) in enumerate(_displacements(volume)):
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
    radius = volume.side // 2
    for u, v in _displacements(volume):
        whole[u + radius, v + radius] = _slice(volume, features, u, v)
    return whole


def _displacements(volume: VolumeShape) -> list[tuple[int, int]]:
    places = range(-(volume.side // 2), volume.side // 2 + 1)
    return [(u, v) for u in places for v in places]


def _slice(volume: VolumeShape, features: Tensor, u: int, v: int) -> Tensor:
    """[features 1, features 2 shifted by (u, v)]: (K, H, W), zero outside."""
    radius = volume.side // 2
    top, left = radius + v, radius + u
    padded = F.pad(features[1], [radius] * 4)
    moved = padded[:, top : top + volume.height, left : left + volume.width]
    return torch.cat([features[0], moved])


def peak_bytes(call: Callable[[], Tensor], device: torch.device) -> int:
    """The peak memory of a call: on CUDA by torch's allocator, elsewhere the sum of its tensors."""
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
