"""One level of a network's coarse-to-fine pyramid."""

from dataclasses import dataclass

from ..errors import InputError

STRIDES = (64, 32, 16, 8, 4, 2)  # what the feature pyramid can deliver


@dataclass(frozen=True)
class LevelConfig:
    """One pyramid level: its stride, its search radius and its context net."""

    stride: int
    """Input pixels per cell of this level."""
    radius: int = 3
    """Displacements range from -radius to radius, in cells of this level, on both axes."""
    context: tuple[tuple[int, int], ...] = ()
    """(width, dilation) of each hidden layer of the context net."""

    def __post_init__(self) -> None:
        if self.stride not in STRIDES:
            raise InputError(f"level stride must be one of {STRIDES}, got {self.stride}")
        if self.radius < 1:
            raise InputError(f"level radius must be at least 1, got {self.radius}")
        if any(width < 1 or dilation < 1 for width, dilation in self.context):
            raise InputError(
                f"context layers are (width, dilation) pairs of at least 1, got {self.context}"
            )

    @property
    def num_hypotheses(self) -> int:
        """How many displacements are compared at each pixel."""
        return (2 * self.radius + 1) ** 2

    @property
    def context_scale(self) -> float:
        """Factor of the context net's output before it is added to the flow."""
        return 2 / self.stride
