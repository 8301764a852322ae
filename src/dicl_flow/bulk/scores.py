"""The scores of a flow: measured on the device, described on the host."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from math import atan2, degrees, hypot, isfinite, isqrt
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..estimation.confidence import find_occlusion
from ..estimation.result import unpack
from ..files import Array
from ..video.flows import CUT, small_grey, small_size, small_unexplained

LENGTHS = ("mean", "median", "p95", "max")
TYPES: dict[str, type] = {
    **dict.fromkeys(("key", "clip", "frame1", "frame2"), str),
    "time": float,
    **dict.fromkeys(("width", "height"), int),
    **dict.fromkeys([f"{name}_length" for name in LENGTHS], float),
    **dict.fromkeys([f"{name}_share" for name in LENGTHS], float),
    **dict.fromkeys(("direction", "moving_share", "density"), float),
    **dict.fromkeys(("confidence", "sharpness", "occluded", "explained"), float),
    "scene_cut": bool,
    **dict.fromkeys(("status", "weights"), str),
}
"""The columns of the table of flows."""
_MOVING = 0.5  # px, as in the statistics of a video
_SHARES = (0.5, 0.95)  # of which the median and the percentile are the places
_SAMPLES = 2**16  # lengths that are sorted, at least, if a frame has more: a GPU sorts slowly
_FINER = 4  # how much finer than the small flow the pixels are that it is the mean of
_NUMBERS = 11  # in front of the small flow


def measure(answer: Tensor, min_confidence: float = 0.0) -> Tensor:
    """Packed estimate (1, 4 or 8, H, W) -> the numbers and the small flow for `describe`.

    One tensor, because a recording has one output, and without waiting for the device.
    """
    forward, *backward = unpack(answer)
    values, confidence = answer[0, :4], answer[0, 2]  # flow, confidence, sharpness
    small, length = _small(values[:2]), torch.hypot(values[0], values[1])
    pixels = length.numel()
    count = length.new_full((1,), pixels)
    if min_confidence > 0:
        known = confidence >= min_confidence
        quantiles = _known_quantiles(length, known)
        count, length = known.sum()[None], length * known
        values = torch.cat([values[:2] * known, values[2:]])
    else:
        quantiles = _quantiles(length)
    occluded = length.new_full((1,), torch.nan)
    if backward:
        occluded = find_occlusion(forward.flow, backward[0].flow).float().mean()[None]
    sums = values.sum((1, 2))
    lengths = torch.stack([length.sum(), (length > _MOVING).sum()])
    means = torch.cat([lengths[:1], sums[:2], lengths[1:]]) / count
    others = [length.amax()[None], count / pixels, sums[2:] / pixels, occluded]
    return torch.cat([means, quantiles, *others, small.flatten()])


def _small(flow: Tensor) -> Tensor:
    """(2, H, W) -> the small flow by which cuts are found; of large frames, of every n-th pixel."""
    height, width = small_size(*flow.shape[1:])
    step = max(1, min(flow.shape[1] // height, flow.shape[2] // width) // _FINER)
    return F.interpolate(_every(step, flow)[None], (height, width), mode="area")


def _quantiles(length: Tensor) -> Tensor:
    """Median and 95th percentile of lengths; of large frames, at every n-th pixel."""
    ordered = _sampled(length).flatten().sort().values
    found = []
    for share in _SHARES:
        low, part = divmod((ordered.numel() - 1) * share, 1)
        two = ordered[int(low) : int(low) + 2]
        found.append(torch.lerp(two[:1], two[-1:], part))
    return torch.cat(found)


def _known_quantiles(length: Tensor, known: Tensor) -> Tensor:
    """The same of known lengths only; how many there are is not known on the host."""
    known = _sampled(known)
    last = (known.sum() - 1).clamp(min=0)
    ordered = _sampled(length).masked_fill(~known, torch.inf).flatten().sort().values
    place = torch.stack([last * share for share in _SHARES])
    low = place.floor().long()
    high = (low + 1).clamp(max=ordered.numel() - 1)
    below, above = ordered[low], ordered[high]
    part = place - low
    return torch.where(part > 0, below + (above - below) * part, below)


def _sampled(values: Tensor) -> Tensor:
    return _every(max(1, isqrt(values.numel() // _SAMPLES)), values)


def _every(step: int, values: Tensor) -> Tensor:
    """Every `step`-th pixel in both directions, from half a step on."""
    return values[..., step // 2 :: step, step // 2 :: step]


class SmallFrames:
    """Makes the small frames by which cuts are found, in other threads.

    OpenCV takes up to 3 ms for 1920x1080, as long as a GPU for its flow. Consecutive pairs share a
    frame, which is made once.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._last: tuple[Array, Future[Array]] | None = None

    def begin(self, images: tuple[Array, Array]) -> "tuple[Future[Array], Future[Array]]":
        """Return the small frames of a pair, which are being made."""
        return self._begin(images[0]), self._begin(images[1])

    def _begin(self, image: Array) -> "Future[Array]":
        if self._last is None or self._last[0] is not image:
            self._last = image, self._pool.submit(small_grey, image)
        return self._last[1]


def describe(numbers: Array, first: Array, second: Array, size: tuple[int, int]) -> dict[str, Any]:
    """Measured numbers, and small frames of (height, width) `size` -> entries of the table.

    All entries of a flow that do not name it.
    """
    height, width = size
    mean, x, y, moving, median, p95, longest, density, *scores = map(float, numbers[:_NUMBERS])
    entries: dict[str, Any] = {"width": width, "height": height}
    if density:
        diagonal = hypot(width, height)
        for name, value in zip(LENGTHS, (mean, median, p95, longest), strict=True):
            entries[f"{name}_length"], entries[f"{name}_share"] = value, value / diagonal
        entries |= {"direction": degrees(atan2(y, x)), "moving_share": moving}
    vectors = np.moveaxis(numbers[_NUMBERS:].reshape(2, *first.shape), 0, 2)
    explained = 1 - small_unexplained(first, second, vectors, size)
    names = ("density", "confidence", "sharpness", "occluded")
    entries |= dict(zip(names, (density, *scores), strict=True))
    entries |= {"explained": explained, "scene_cut": 1 - explained > CUT}
    return {name: _rounded(value) for name, value in entries.items()}


def _rounded(value: Any) -> Any:
    """Seven digits, which float32 has; None where there is no number."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.7g}") if isfinite(value) else None


def to_grid(answer: Tensor, grid: int, min_confidence: float = 0.0) -> Tensor:
    """Packed estimate (1, K, H, W) -> flow (2, h, w), the mean of known vectors of squares."""
    flow, known = answer[:, :2], answer[:, 2:3] >= min_confidence
    if grid == 1:
        return flow[0].masked_fill(~known[0], torch.nan)
    how: dict[str, Any] = {"ceil_mode": True, "count_include_pad": False}
    pool: Callable[..., Tensor] = F.avg_pool2d
    share = pool(known.float(), grid, **how)
    return (pool(flow * known, grid, **how) / share)[0]  # unknown, if all of a square is
