"""What an estimator does with frames on this machine, and why: for the people who ask."""

from dataclasses import replace
from math import prod

import torch

from .compute import Choice
from .confidence import UNCALIBRATED
from .estimator import FlowEstimator
from .feeding import Feeding, Size


def explain_frame(estimator: FlowEstimator, size: Size) -> Choice:
    """Whether frames of (height, width) are computed whole, scaled down or in tiles."""
    tile = estimator.tile(torch.empty(1, 3, *size, device="meta"))
    large, feedings = estimator.plan.is_large(size), estimator.plan.passes(size).feedings
    if tile != size:
        piece = (min(tile[0], size[0]), min(tile[1], size[1]))
        first = f"seen as {_text(feedings[0].seen(size))}, then " if large else ""
        reason = "the memory does not suffice for the whole"
        return Choice(f"{first}in tiles of {_text(piece)}", reason)
    if not large and estimator.quality.scales == (1.0,):
        return _explain_one_pass(feedings[-1], size)
    sizes = ", then as ".join(_text(feeding.seen(size)) for feeding in feedings)
    reason = f"quality {estimator.quality.name!r}"
    if large:
        reason = f"full size of a frame with more than {feedings[0].max_pixels} px, " + reason
    return Choice(f"whole, seen as {sizes}", reason)


def _explain_one_pass(feeding: Feeding, size: Size) -> Choice:
    resized, seen = feeding.resized(size), feeding.seen(size)
    reason = f"the network takes multiples of {feeding.multiple} px"
    if seen == size:
        return Choice("whole", reason)
    if resized == size:
        return Choice(f"whole, padded to {_text(seen)}", reason)
    how = f"{_text(seen)}, {_share(seen, size)}"
    if prod(seen) < prod(size):
        reason = f"max_pixels: these weights take about {feeding.max_pixels} px at most"
        return Choice(f"scaled down to {how}", reason)
    return Choice(f"whole, resized to {how}", reason)


def computed(estimator: FlowEstimator, size: Size) -> dict[str, str]:
    """What to report of every estimate of frames of (height, width): its size, in which pixels."""
    resized = replace(estimator.plan.last, scale=1.0).resized(size)
    return {
        "computed": explain_frame(estimator, size).value,
        "computed_size": _text(resized),
        "confidence": _explain_confidence(estimator, resized, size),
    }


def _explain_confidence(estimator: FlowEstimator, seen: Size, size: Size) -> str:
    calibration = estimator.calibration
    if calibration is None:
        return f"uncalibrated: {UNCALIBRATED}"
    if seen == size:
        return calibration.meaning
    across, down = (calibration.threshold * size[i] / seen[i] for i in (1, 0))
    return f"{calibration.meaning} of {_text(seen)}: {across:.2f}x{down:.2f} px of the frame"


def _share(seen: Size, size: Size) -> str:
    """How large one size is, measured by the other."""
    height, width = (f"{seen[i] / size[i]:.2f}" for i in range(2))
    if height == width:
        return f"{width} of the size"
    return f"{width} of the width and {height} of the height"


def _text(size: Size) -> str:
    return f"{size[1]}x{size[0]}"
