"""The training loss: which flows of which levels count, and how much."""

from dataclasses import dataclass, replace
from typing import Any

from ..errors import InputError, unknown_name

LOSSES = ("averaged", "multi-scale", "summed")
FROM_HOST: Any = None  # a default that the record of the host replaces (config/hosts.py)


@dataclass(frozen=True)
class LossConfig:
    """Weights of the flows of all levels, coarsest first; empty: that kind of flow is not trained.

    `refined`, `matched` and `kind` default to those of the host; `TrainConfig` fills them in.
    """

    refined: tuple[float, ...] = FROM_HOST
    """For the flow after the context net."""
    matched: tuple[float, ...] = FROM_HOST
    """For the flow read off the scores."""
    kind: str = FROM_HOST
    """averaged: that of DICL-Flow, at full size, each level within its reach, mean of all terms;
    multi-scale: that of PWC-Net, at the size of each level, in units of 20 px, sum over pixels;
    summed: that of VCN, at full size, sum of all terms.
    A kind other than the host's needs `refined` and `matched`."""
    matching: tuple[float, ...] = ()
    """For the cross-entropy of the scores, which is added to the rest and is not in the paper.
    Only the host "dicl" has such scores; other hosts train without. A level of weight 0 costs
    nothing."""
    matching_weight: tuple[float, float] = (0.3, 0.03)
    """Factor of that cross-entropy at the start and at the end of the run, linear in between."""
    exponent: float = 1.0
    """averaged: the power to which end-point errors are raised; below 1, large ones count less."""

    def __post_init__(self) -> None:
        if self.kind is not FROM_HOST and self.kind not in LOSSES:
            raise unknown_name("loss.kind", self.kind, LOSSES)
        if not 0.1 <= self.exponent <= 1:
            raise InputError(f"loss.exponent must be in [0.1, 1], got {self.exponent:g}")
        for key in ("matching", "matching_weight"):
            if any(weight < 0 for weight in getattr(self, key)):
                raise InputError(f"loss.{key} must not be negative, got {getattr(self, key)}")
        if self.refined == () == self.matched:
            raise InputError("loss.refined and loss.matched are both empty; nothing would train")

    def filled_in(self, own: "LossConfig") -> "LossConfig":
        """Return this loss with the defaults replaced by the host's `own`."""
        weights = {key: getattr(self, key) for key in ("refined", "matched")}
        if self.kind not in (FROM_HOST, own.kind) and FROM_HOST in weights.values():
            raise InputError(
                f"loss.kind {self.kind!r} is not the host's own, {own.kind!r}, and the host's "
                f"weights do not suit it: give loss.refined and loss.matched as well"
            )
        chosen = {**weights, "kind": self.kind}
        defaults = {key: getattr(own, key) for key, value in chosen.items() if value is FROM_HOST}
        return replace(self, **defaults)
