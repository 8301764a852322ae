"""One level of a network's coarse-to-fine pyramid."""

from dataclasses import dataclass

from ..errors import InputError

STRIDES = (64, 32, 16, 8, 4, 2)  # what the feature pyramid can deliver
MOST_RADIUS, MOST_CHANNELS = 64, 4096  # far above what is of use: a file could ask for anything


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
        if not 1 <= self.radius <= MOST_RADIUS:
            raise InputError(f"level radius must be 1 to {MOST_RADIUS}, got {self.radius}")
        if not all(1 <= number <= MOST_CHANNELS for layer in self.context for number in layer):
            raise InputError(
                f"context layers are (width, dilation) pairs of 1 to {MOST_CHANNELS}, got "
                f"{self.context}"
            )

    @property
    def num_hypotheses(self) -> int:
        """How many displacements are compared at each pixel."""
        return (2 * self.radius + 1) ** 2

    @property
    def context_scale(self) -> float:
        """Factor of the context net's output before it is added to the flow."""
        return 2 / self.stride
