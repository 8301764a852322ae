"""The augmentation of training pairs."""

from dataclasses import dataclass

from ..errors import InputError


@dataclass(frozen=True)
class AugmentConfig:
    """The augmentation of training pairs; the default is that of the paper for FlyingChairs.

    The first phase of the paper only crops: `AugmentConfig.crop_only`, or zero for each of
    `color`, `eraser`, `spatial`, `horizontal_flip`, `vertical_flip`. Pairs with sparse ground
    truth always have the same colour change in both frames, no stretch and no vertical flip.
    """

    crop: tuple[int, int] = (256, 384)
    """(height, width) of the result; a smaller image is scaled up first."""
    crop_margin: int = 0
    """How far outside the frame, in px, positions are drawn too; they are moved inside, so crops at
    the border become more frequent. The authors' code has 20 for dense ground truth."""
    color: float = 1.0
    """Probability of a change of colour."""
    brightness: float = 0.4
    """Largest relative change; contrast and saturation likewise."""
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.5 / 3.14
    """Largest change, in turns of the colour wheel."""
    asymmetric_color: float = 0.2
    """Probability that the two frames change differently."""
    noise: float = 0.0
    """Largest standard deviation of pixel noise; 1 is the distance from black to white."""
    eraser: float = 0.5
    """Probability that rectangles of frame 2 are filled with its mean colour."""
    eraser_count: tuple[int, int] = (1, 2)
    """Smallest and largest number of rectangles."""
    eraser_size: tuple[int, int] = (50, 100)
    """Shortest and longest side of a rectangle, in px before scaling."""
    spatial: float = 0.8
    """Probability of a change of size."""
    min_scale: float = -0.2
    """Smallest scale factor, as a power of 2: -1 halves, 1 doubles; `max_scale` likewise."""
    max_scale: float = 1.0
    stretch: float = 0.2
    """Largest additional factor, drawn for each axis separately, as a power of 2."""
    stretch_probability: float = 0.8
    horizontal_flip: float = 0.5
    """Probability that left and right are swapped."""
    vertical_flip: float = 0.1
    """Probability that top and bottom are swapped."""
    motion_shift: float = 0.0
    """Largest additional motion of frame 2 relative to frame 1, in px of the crop per axis."""
    motion_rotation: float = 0.0
    """Largest additional rotation of frame 2 about the centre of the crop, in degrees."""
    motion_scale: float = 0.0
    """Largest additional scaling of frame 2 about the centre of the crop, as a power of 2."""

    def __post_init__(self) -> None:
        if min(self.crop) < 1:
            raise InputError(f"crop must be (height, width) of at least 1, got {self.crop}")
        for key, (low, high) in _AUGMENT_RANGES.items():
            value = getattr(self, key)
            if not low <= value <= high:
                raise InputError(f"{key} must be in [{low:g}, {high:g}], got {value:g}")
        if self.min_scale > self.max_scale:
            raise InputError(
                f"min_scale must not be above max_scale, got {self.min_scale} and {self.max_scale}"
            )
        for key in ("eraser_count", "eraser_size"):
            fewest, most = getattr(self, key)
            if not 1 <= fewest <= most:
                raise InputError(
                    f"{key} must be a range that starts at 1 or more, got {[fewest, most]}"
                )

    @classmethod
    def crop_only(cls, crop: tuple[int, int]) -> "AugmentConfig":
        """Random cropping and nothing else."""
        return cls(crop, color=0.0, eraser=0.0, spatial=0.0, horizontal_flip=0.0, vertical_flip=0.0)


_PROBABILITIES = (
    "color",
    "asymmetric_color",
    "eraser",
    "spatial",
    "stretch_probability",
    "horizontal_flip",
    "vertical_flip",
)
_AUGMENT_RANGES = {
    **dict.fromkeys((*_PROBABILITIES, "brightness", "contrast", "saturation", "noise"), (0, 1)),
    "hue": (0, 0.5),
    **dict.fromkeys(("min_scale", "max_scale"), (-4, 4)),
    **dict.fromkeys(("stretch", "motion_scale"), (0, 2)),
    "crop_margin": (0, 1000),
    "motion_shift": (0, 1000),
    "motion_rotation": (0, 180),
}
