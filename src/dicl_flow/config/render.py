"""The settings of rendered scenes: how they look and how they move."""

from dataclasses import dataclass, field, replace
from math import prod, sqrt

from ..errors import InputError
from .places import WorldConfig
from .strict import check_ranges

EFFECTS = (
    "motion_blur",
    "defocus",
    "fog",
    "shadow",
    "vignette",
    "color_change",
    "noise",
    "compression",
)


@dataclass(frozen=True)
class RenderConfig:
    """Distributions of the scenes; the default covers video, driving, stereo and tiny motion.

    Lengths are in px of the frame, independent of its size unless `motion_reference` is set. Six
    lengths are the quantiles of a distribution: half of all draws lie below the first, 75, 90, 95,
    99 and 100 % below the others. "Mostly small" means the cube of a uniform draw. An effect is
    (share of the scenes that have it, largest strength).
    """

    motion: float = 1.0
    """Factor of all motion; below 1 it is easier to learn from at first."""
    motion_reference: tuple[int, ...] = ()
    """(height, width) of frames with this motion; in others it is scaled by the square root of the
    number of pixels. Empty: the same motion in px in all frames."""
    tiny_share: float = 0.15
    """Share of scenes with 0.03 to 0.3 times the motion: still cameras, slow video."""
    large_share: float = 0.2
    """Share of scenes with 1 to `large_factor` times the motion."""
    large_factor: float = 2.5
    still_scenes: float = 0.0
    """Share of scenes without motion; noise, light and compression still change."""
    blank_scenes: float = 0.0
    """Share of scenes of a single colour, without motion: there is nothing to match."""
    horizontal_share: float = 0.25
    """Share of scenes with horizontal motion only, as in stereo pairs and pans."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Training: (height, width) of the frames, one size per step. The number of pairs is
    chosen so that a batch has about as many pixels as one of `augment.crop`. Empty: only that
    size."""
    max_flow: float = 400.0
    """Longer vectors are marked as invalid."""
    visible_only: bool = False
    """Mark occluded pixels, including those that leave the frame, as invalid."""
    solid_share: float = 0.0
    """Share of the batches that are solid scenes: bodies in space, seen by a moving camera. They
    take turns with batches of layers."""
    world: WorldConfig = field(default_factory=WorldConfig)
    """The solid scenes."""
    augmented: bool = False
    """Training: rendered pairs get the colour changes, the eraser and the flips of `augment`."""

    background_shift: tuple[float, ...] = (2, 9, 20, 28, 37, 60)
    background_rotation: float = 10.0
    """Degrees, mostly small."""
    background_zoom: float = 0.07
    """Natural logarithm of the factor, mostly small."""
    perspective: float = 0.12
    """Largest change of scale from the centre to the edge of the frame, mostly small."""
    forward_share: float = 0.2
    """Share of scenes in which the camera moves forward (in one of five: backward)."""
    forward_zoom: float = 0.3
    """Logarithm of the largest zoom factor in such scenes."""

    depth_share: float = 0.0
    """Share of scenes with depth: layers are planes in space, ground and walls reach to the
    horizon, and the camera moves between them."""
    ground_share: tuple[float, float] = (0.6, 0.3)
    """Share of these scenes with a ground, and with a wall at the side."""
    travel_forward: float = 0.35
    """Largest forward motion between the frames, relative to the distance of the nearest layer."""
    travel_sideways: tuple[float, ...] = (12, 33, 65, 86, 113, 160)
    """Motion of the nearest layer, in px, when the camera moves sideways."""

    objects: tuple[int, int] = (5, 12)
    """Smallest and largest number of objects in a scene, some of them outside the frame."""
    objects_reference: tuple[int, ...] = ()
    """(height, width) of frames with this number of objects; in other frames it is scaled by the
    square root of the number of pixels. Empty: the same number in all frames."""
    num_shapes: int = 480
    """Number of different outlines, each stored as an image of `shape_side` x `shape_side` px."""
    shape_side: int = 192
    object_radius: tuple[float, float] = (0.12, 0.8)
    """Smallest and largest radius, as a share of the shorter side of the frame; uniform in the
    logarithm."""
    object_stretch: float = 0.6
    """Logarithm of the largest ratio of width to height."""
    margin: float = 0.15
    """How far outside the frame centres of objects may lie, as a share of its sides."""
    object_shift: tuple[float, ...] = (12, 33, 65, 86, 113, 160)
    """Motion relative to the background."""
    object_rotation: float = 30.0
    object_zoom: float = 0.2
    still_share: float = 0.2
    """Share of objects that move with the background."""
    group_share: float = 0.2
    """Share of objects that move like the object behind them."""
    parallax: float = 0.6
    """How much more than the background the nearest layer moves with the camera."""
    deform_share: float = 0.5
    """Share of layers that bend."""
    deform: float = 0.25
    """Largest slope of the deformation; at 1 the layer would fold."""

    texture_scale: tuple[float, float] = (0.6, 1.25)
    """Texture pixels per pixel of the frame."""
    procedural_share: float = 0.1
    """Share of layers with a procedural texture where there are photographs as well."""
    layer_color: float = 0.25
    """Largest change of brightness and colour of a layer's texture."""

    motion_blur: tuple[float, float] = (0.3, 0.7)
    """Strength: the share of the time between the frames that the shutter is open."""
    defocus: tuple[float, float] = (0.2, 1.0)
    """Strength: the share of the blurred picture at the depth farthest from the focus."""
    fog: tuple[float, float] = (0.12, 0.7)
    """Strength: the share of fog in front of the background."""
    shadow: tuple[float, float] = (0.3, 0.6)
    """Strength: the share of light that a soft moving shadow removes."""
    vignette: tuple[float, float] = (0.2, 0.5)
    """Strength: the share of light lost in the corners."""
    color_change: tuple[float, float] = (0.4, 0.2)
    """Strength: the relative change of exposure, colours and gamma from frame 1 to frame 2."""
    noise: tuple[float, float] = (0.5, 0.05)
    """Strength: the standard deviation; 1 is the distance from black to white."""
    compression: tuple[float, float] = (0.25, 1.0)
    """Strength: how coarsely 8x8 blocks are quantised; at 1 about as JPEG of quality 20."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        for key in ("motion_reference", "objects_reference"):
            reference = getattr(self, key)
            if reference and (len(reference) != 2 or min(reference) < 1):
                raise InputError(f"{key} must be (height, width), got {list(reference)}")
        for key in _LENGTHS:
            lengths = getattr(self, key)
            if len(lengths) != 6 or list(lengths) != sorted(lengths):
                raise InputError(f"{key} must be six increasing lengths, got {list(lengths)}")
        if self.objects[1] < 1:
            raise InputError(f"objects must allow at least one, got {list(self.objects)}")
        for key in ("objects", "object_radius", "texture_scale"):
            low, high = getattr(self, key)
            if low > high:
                raise InputError(f"{key} must be (smallest, largest), got {[low, high]}")

    def only(self, place: str) -> "RenderConfig":
        """Return the settings for solid scenes in one kind of place."""
        return replace(self, solid_share=1.0, world=replace(self.world, places=(place,)))

    def motion_in(self, size: tuple[int, int]) -> float:
        """Factor of all motion in frames of `size` (height, width)."""
        return self.motion * _growth(size, self.motion_reference)

    def objects_in(self, size: tuple[int, int]) -> tuple[int, int]:
        """Smallest and largest number of objects in frames of `size` (height, width)."""
        growth = _growth(size, self.objects_reference)
        fewest, most = (round(growth * number) for number in self.objects)
        return fewest, max(1, most)


def _growth(size: tuple[int, int], reference: tuple[int, ...]) -> float:
    """How much larger a frame is than the reference, if there is one, per side."""
    return sqrt(prod(size) / prod(reference)) if reference else 1.0


_LENGTHS = ("background_shift", "object_shift", "travel_sideways")
_RANGES = {  # of what is not in [0, 1]
    **dict.fromkeys(("motion_reference", "objects_reference", "sizes", "world")),
    "motion": (0, 10),
    "large_factor": (1, 10),
    "max_flow": (1, 10_000),
    **dict.fromkeys(_LENGTHS, (0, 2000)),
    **dict.fromkeys(("background_rotation", "object_rotation"), (0, 180)),
    "perspective": (0, 0.5),
    "objects": (0, 64),
    "num_shapes": (1, 100_000),
    "shape_side": (16, 1024),
    "object_radius": (0.005, 2),
    "object_stretch": (0, 2),
    "parallax": (0, 4),
    "deform": (0, 0.9),
    "texture_scale": (0.1, 4),
}
