"""A chain of flows from the reference to the present frame: extended, and chosen for each point."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..ops import size_of
from .reliability import TrackCalibration, read_flow_at
from .tracks import Positions

_LONGEST = torch.iinfo(torch.int16).max
_NEARBY = 4.0
"""px: with a smaller expected error, a point is not lost, however small the frame."""
_NEAR = 2.0
"""Candidates agree if they are closer than this times the sum of their expected errors."""
_FINEST = 0.05  # px: a smaller expected error does not give a candidate more weight


def extend(
    before: Positions, packed: Tensor, interval: int, calibration: TrackCalibration
) -> Positions:
    """Follow points by a flow over `interval` frames: a packed estimate of both ways.

    A point stays hidden on a chain once it is: what covers it is followed from then on. One whose
    expected error is large counts as hidden too: nobody knows where it is.
    """
    flow = read_flow_at(packed, before.points, interval)
    error = calibration.expected_error(flow.cues)
    # What covers a hidden point may move otherwise, by about as much as it moves.
    doubt = flow.vectors.norm(dim=1).where(~before.visible, 0)
    total = calibration.add(before.error, error, doubt)
    sure = calibration.visibility(flow.cues) >= calibration.sure
    found = total < max(_NEARBY, calibration.lost * min(size_of(packed)))
    visible = before.visible & flow.inside & sure & found
    intervals = torch.full_like(total, min(interval, _LONGEST), dtype=torch.int16)
    return Positions(before.points + flow.vectors, total, visible, intervals)


def choose(candidates: Sequence[Positions]) -> Positions:
    """Of K candidates for P points, for each point the one with the lowest expected error.

    Only visible candidates count if there are any; otherwise the point is hidden. The position is
    the mean of the candidates that agree with the chosen one, weighted by their expected errors.
    """
    points, error, visible, interval = (
        torch.stack(parts) for parts in zip(*candidates, strict=True)
    )
    counts = visible | ~visible.any(0)  # (K, P)
    best = error.masked_fill(~counts, torch.inf).argmin(0)[None]  # (1, P)
    chosen = points.gather(0, best[..., None].expand(-1, -1, 2))  # (1, P, 2)
    least, shown, spans = (part.gather(0, best)[0] for part in (error, visible, interval))
    agree = (points - chosen).norm(dim=2) <= _NEAR * (error + least)
    weight = (counts & agree) / error.clamp(min=_FINEST).square()
    # differences are summed: they keep the precision that large coordinates would lose
    moved = ((points - chosen) * weight[..., None]).sum(0) / weight.sum(0)[:, None]
    return Positions(chosen[0] + moved, least, shown, spans)
