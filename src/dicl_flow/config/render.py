"""What rendered scenes look like and how they move."""

from dataclasses import dataclass
from math import prod, sqrt

from ..errors import InputError

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

    Lengths are in px of the frame, whatever its size but for `motion_reference`. A tuple of six
    lengths is a distribution by its quantiles: half of all draws lie below the first, 75, 90, 95,
    99 and 100 % below the others. "Mostly small" means the cube of a uniform draw. An effect is
    (the share of the scenes that have it, its largest strength).
    """

    motion: float = 1.0
    """Factor of all motion: begin a training below 1."""
    motion_reference: tuple[int, ...] = ()
    """(height, width) of frames with that motion; larger frames have more, smaller ones less,
    as the square root of their pixels. Empty: the same motion in px whatever the frame."""
    tiny_share: float = 0.15
    """Share of scenes with 0.03 to 0.3 of that motion: a still camera, a slow film."""
    large_share: float = 0.2
    """Share of scenes with 1 to `large_factor` times that motion."""
    large_factor: float = 2.5
    still_scenes: float = 0.0
    """Share of scenes in which nothing moves; noise, light and compression still differ."""
    blank_scenes: float = 0.0
    """Share of scenes of one colour, in which nothing moves: there is nothing to match."""
    horizontal_share: float = 0.25
    """Share of scenes in which everything moves sideways, as in stereo pairs and pans."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Training: (height, width) of the frames, a step each in turn, with as many pairs as come
    nearest to the pixels of a batch of `augment.crop`. Empty: that size alone."""
    max_flow: float = 400.0
    """Longer vectors are marked as not valid."""
    visible_only: bool = False
    """Pixels that are hidden in frame 2, or outside of it, are marked as not valid."""

    background_shift: tuple[float, ...] = (2, 9, 20, 28, 37, 60)
    background_rotation: float = 10.0
    """Degrees, mostly small."""
    background_zoom: float = 0.07
    """Natural logarithm of the factor, mostly small."""
    perspective: float = 0.12
    """Largest change of scale from the centre to the edge of the frame, mostly small."""
    forward_share: float = 0.2
    """Share of scenes in which the camera drives into the scene (one in five: out of it)."""
    forward_zoom: float = 0.3
    """Logarithm of the largest factor there."""

    depth_share: float = 0.0
    """Share of scenes with depth: layers are flat and stand in space, ground and walls reach to
    the horizon, the camera travels among them."""
    ground_share: tuple[float, float] = (0.6, 0.3)
    """Share of those with a ground, and with a wall at the side."""
    travel_forward: float = 0.35
    """Largest way forward between the frames, as a share of the distance of the nearest layer."""
    travel_sideways: tuple[float, ...] = (12, 33, 65, 86, 113, 160)
    """What a camera that travels sideways does to the nearest layer, in px."""

    objects: tuple[int, int] = (5, 12)
    """Fewest and most objects in a scene, some of them outside the frame."""
    objects_reference: tuple[int, ...] = ()
    """(height, width) of frames with so many objects; the number grows with the square root of
    the pixels. Empty: as many whatever the frame."""
    num_shapes: int = 480
    """Different outlines to choose from, each kept as an image of `shape_side` px a side."""
    shape_side: int = 192
    object_radius: tuple[float, float] = (0.12, 0.8)
    """Smallest and largest, as a share of the frame's shorter side; small ones prevail."""
    object_stretch: float = 0.6
    """Logarithm of the largest ratio of width to height."""
    margin: float = 0.15
    """How far beyond the frame the centres lie, as a share of its sides."""
    object_shift: tuple[float, ...] = (12, 33, 65, 86, 113, 160)
    """Motion relative to the background."""
    object_rotation: float = 30.0
    object_zoom: float = 0.2
    still_share: float = 0.2
    """Share of objects that move with the background."""
    group_share: float = 0.2
    """Share of objects that move like the one behind them."""
    parallax: float = 0.6
    """How much more than the background the nearest layer follows the camera."""
    deform_share: float = 0.5
    """Share of layers that bend."""
    deform: float = 0.25
    """Largest slope of the bending; at 1 it would fold."""

    texture_scale: tuple[float, float] = (0.6, 1.25)
    """Texture pixels per pixel of the frame."""
    procedural_share: float = 0.1
    """Share of layers with a computed texture although there are photographs."""
    layer_color: float = 0.25
    """Largest change of brightness and colour of a layer's texture."""

    motion_blur: tuple[float, float] = (0.3, 0.7)
    """Strength: the share of the time between the frames that the shutter is open."""
    defocus: tuple[float, float] = (0.2, 1.0)
    """Strength: how much of the blurred picture shows at the depth farthest from the focus."""
    fog: tuple[float, float] = (0.12, 0.7)
    """Strength: the share of fog in front of the background."""
    shadow: tuple[float, float] = (0.3, 0.6)
    """Strength: the share of light that a moving, soft shadow takes."""
    vignette: tuple[float, float] = (0.2, 0.5)
    """Strength: the share of light lost in the corners."""
    color_change: tuple[float, float] = (0.4, 0.2)
    """Strength: the relative change of exposure, colours and gamma from frame 1 to frame 2."""
    noise: tuple[float, float] = (0.5, 0.05)
    """Strength: the standard deviation; 1 is the way from black to white."""
    compression: tuple[float, float] = (0.25, 1.0)
    """Strength: how coarsely 8x8 blocks are quantised; at 1 about as JPEG of quality 20."""

    def __post_init__(self) -> None:
        for key, (low, high) in _RANGES.items():
            values = getattr(self, key)
            for value in values if isinstance(values, tuple) else (values,):
                if not low <= value <= high:
                    raise InputError(f"{key} must lie in [{low:g}, {high:g}], got {value:g}")
        for key in ("motion_reference", "objects_reference"):
            reference = getattr(self, key)
            if reference and (len(reference) != 2 or min(reference) < 1):
                raise InputError(f"{key} must be (height, width), got {list(reference)}")
        for key in _LENGTHS:
            lengths = getattr(self, key)
            if len(lengths) != 6 or list(lengths) != sorted(lengths):
                raise InputError(f"{key} must be six rising lengths, got {list(lengths)}")
        if self.objects[1] < 1:
            raise InputError(f"objects must allow for at least one, got {list(self.objects)}")
        for key in ("objects", "object_radius", "texture_scale"):
            low, high = getattr(self, key)
            if low > high:
                raise InputError(f"{key} must be (smallest, largest), got {[low, high]}")

    def motion_in(self, size: tuple[int, int]) -> float:
        """Factor of all motion in frames of `size` (height, width)."""
        return self.motion * _growth(size, self.motion_reference)

    def objects_in(self, size: tuple[int, int]) -> tuple[int, int]:
        """Fewest and most objects in frames of `size` (height, width)."""
        growth = _growth(size, self.objects_reference)
        fewest, most = (round(growth * number) for number in self.objects)
        return fewest, max(1, most)


def _growth(size: tuple[int, int], reference: tuple[int, ...]) -> float:
    """How much longer the sides of a frame are than those of the reference, if there is one."""
    return sqrt(prod(size) / prod(reference)) if reference else 1.0


_LENGTHS = ("background_shift", "object_shift", "travel_sideways")
_SHARES = (
    "tiny_share",
    "large_share",
    "still_scenes",
    "blank_scenes",
    "depth_share",
    "ground_share",
    "travel_forward",
    "horizontal_share",
    "forward_share",
    "still_share",
    "group_share",
    "deform_share",
    "procedural_share",
    "layer_color",
    *EFFECTS,
)
_RANGES = {
    **dict.fromkeys(_SHARES, (0, 1)),
    "motion": (0, 10),
    "large_factor": (1, 10),
    "max_flow": (1, 10_000),
    **dict.fromkeys(_LENGTHS, (0, 2000)),
    **dict.fromkeys(("background_rotation", "object_rotation"), (0, 180)),
    **dict.fromkeys(("background_zoom", "object_zoom", "forward_zoom"), (0, 1)),
    "perspective": (0, 0.5),
    "objects": (0, 64),
    "num_shapes": (1, 100_000),
    "shape_side": (16, 1024),
    "object_radius": (0.005, 2),
    "object_stretch": (0, 2),
    "margin": (0, 1),
    "parallax": (0, 4),
    "deform": (0, 0.9),
    "texture_scale": (0.1, 4),
}
