"""A network that searches less far: the same weights, evaluated at fewer displacements.

The matching net sees one displacement at a time, so a level can leave some out. What sees all of
them at once, the projection, loses the rows and columns of those left out. The context net sees a
different entropy and a coarser match. Both can be trained for it: they are the level's *own parts*.
"""

import copy
from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from ..config import Radii
from .dicl import DiclFlow, DiclLevel
from .matching import DisplacementProjection
from .network import FlowNetwork

_OWN = ("projection", "context")


def with_radii(network: FlowNetwork, radii: Radii) -> FlowNetwork:
    """The same network, its levels searching no farther than `radii`; itself if none does.

    Features, matching nets and the other levels are shared with `network`; own parts are copies.
    """
    smaller = dict(network.config.smaller(radii))
    if not smaller:
        return network
    levels = (
        _with_radius(cast(DiclLevel, level), smaller[int(stride)])
        if int(stride) in smaller
        else level
        for stride, level in network.levels.items()
    )
    result = DiclFlow(network.config.with_radii(radii), network.features, *levels)
    return result.train(network.training)


def own_keys(keys: Iterable[str], radii: Radii) -> list[str]:
    """Those of a state dict's keys that belong to the own parts of the levels of `radii`."""
    starts = tuple(f"levels.{stride}.{part}." for stride, _ in radii for part in _OWN)
    return [key for key in keys if key.startswith(starts)]


def freeze_all_but_own(network: nn.Module, radii: Radii) -> None:
    """Train the own parts of the levels of `radii`; all else stays fixed, with its statistics."""
    for name, module in network.named_modules():
        own = own_keys([f"{name}."], radii)
        if name and not any(True for _ in module.children()):
            module.train(bool(own)).requires_grad_(bool(own))


def _with_radius(level: DiclLevel, radius: int) -> DiclLevel:
    matcher, projection = copy.copy(level.matcher), level.projection
    if isinstance(projection, DisplacementProjection):
        projection = _cut_out(projection, level.matcher.radius, radius)
    matcher.radius = radius
    return DiclLevel(matcher, projection, copy.deepcopy(level.context))


def _cut_out(projection: DisplacementProjection, radius: int, smaller: int) -> nn.Module:
    """The rows and columns of the displacements that are left."""
    side, kept = 2 * radius + 1, slice(radius - smaller, radius + smaller + 1)
    weight: Tensor = projection.weight.detach()
    square = weight.reshape(side, side, side, side)[kept, kept, kept, kept]
    result = DisplacementProjection(smaller)
    result.weight = nn.Parameter(square.reshape(result.weight.shape).clone())
    return result
