"""The beliefs of a network about one pixel: level by level, coarsest first."""

from typing import Any

from ..errors import InputError
from ..files import Array
from ..ops import normalized_entropy
from .volumes import Volumes


def read_beliefs(volumes: Volumes, x: int, y: int, *, projection: bool) -> dict[str, Any]:
    """Return the probabilities of the pixel (x, y) at each level, and its flow, for JSON.

    Rows of a table of probabilities are vertical displacements, columns horizontal ones. Flows
    are in pixels of the frame.
    """
    height, width = volumes.frame_size
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(f"the pixel {x} {y} is outside the {width}x{height} frame")
    levels = [_level(volumes, stride, x, y, projection=projection) for stride in volumes.levels]
    return {"pixel": [x, y], "levels": levels}


def _level(volumes: Volumes, stride: int, x: int, y: int, *, projection: bool) -> dict[str, Any]:
    column, row = volumes.cell(stride, x, y)
    level, size = volumes.levels[stride], volumes.cell_size(stride)

    def vector(flow: Any) -> list[float]:
        found: Array = flow[:, row, column].cpu().numpy() * size
        return found.tolist()

    def stage(probability: Any) -> dict[str, Any]:
        chosen = probability[:, :, row, column].cpu()
        entropy = normalized_entropy(chosen[None, :, :, None, None])
        return {"probability": chosen.T.tolist(), "entropy": entropy.item()}

    return {
        "stride": stride,
        "cell": [column, row],
        "cell_size": size.tolist(),
        "before": stage(level.before),
        "after": stage(level.after) if projection else None,
        "start": vector(level.start),
        "matched": vector(level.matched),
        "refined": vector(level.refined),
    }
