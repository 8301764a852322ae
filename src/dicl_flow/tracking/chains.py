"""A chain of flows from the reference to the present frame: extended, and chosen for each point."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .reliability import TrackCalibration, read_flow_at
from .tracks import Positions

VISIBLE = 0.8
"""The probability from which a flow says that a point is visible.

Above one half: several flows lead to each frame, and one that says so is enough.
"""
_ALIKE = 1.4  # 2: errors of the flows of a chain are independent, 1: they are the same
_LONGEST = torch.iinfo(torch.int16).max


def extend(
    before: Positions, packed: Tensor, interval: int, calibration: TrackCalibration
) -> Positions:
    """Follow points by a flow over `interval` frames: a packed estimate of both ways.

    A point stays hidden on a chain once it is: what covers it is followed from then on.
    """
    flow = read_flow_at(packed, before.points, interval)
    error = calibration.expected_error(flow.cues)
    # What covers a hidden point may move otherwise, by about as much as it moves.
    doubt = flow.vectors.norm(dim=1).where(~before.visible, 0)
    # The errors of the flows of a chain are partly alike: n flows err n^0.7 times as much as one.
    # Measured with chains of single frames in rendered clips; independent ones would err n^0.5.
    powers = (part.pow(_ALIKE) for part in (before.error, error, doubt))
    total = sum(powers, torch.zeros_like(error)).pow(1 / _ALIKE)
    visible = before.visible & flow.inside & (calibration.visibility(flow.cues) >= VISIBLE)
    intervals = torch.full_like(total, min(interval, _LONGEST), dtype=torch.int16)
    return Positions(before.points + flow.vectors, total, visible, intervals)


def choose(candidates: Sequence[Positions]) -> Positions:
    """Of K candidates for P points, for each point the one with the lowest expected error.

    Only visible candidates count if there are any; otherwise the point is hidden.
    """
    points, error, visible, interval = (
        torch.stack(parts) for parts in zip(*candidates, strict=True)
    )
    out = visible.any(0) & ~visible  # (K, P)
    best = error.masked_fill(out, torch.inf).argmin(0)[None]  # (1, P)
    chosen = (part.gather(0, best)[0] for part in (error, visible, interval))
    return Positions(points.gather(0, best[..., None].expand(-1, -1, 2))[0], *chosen)
