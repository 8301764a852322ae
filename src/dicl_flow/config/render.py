"""The settings of rendered scenes: how they look and move, and the places of solid scenes.

In places lengths are in metres, times in frames, angles in radians; y points down, z ahead. A new
kind of place is a new entry of `PLACES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod, sqrt

from ..errors import InputError, unknown_name
from .strict import check_ranges

Range = tuple[float, float]

MOVEMENTS = ("stand", "drive", "walk", "pan", "orbit", "stereo")


@dataclass(frozen=True)
class Crowd:
    """A number of like things of a place."""

    thing: str  # the name of a maker in `render.solid.things`
    count: tuple[int, int]
    aside: Range | None = None  # distance from the middle of the way; None: anywhere in view
    ahead: Range = (4, 50)  # distance from the camera; near things are more frequent
    moving: float = 0.0  # share that moves
    speed: float = 0.0  # largest, per frame, in the direction that the thing faces
    drift: float = 0.0
    """Factor of the motion in px that things without a direction of their own have."""


@dataclass(frozen=True)
class Place:
    """A kind of place."""

    crowds: tuple[Crowd, ...]
    camera: Mapping[str, float]
    """How often the camera moves in which way; the rest of the time it stands."""
    focal: Range = (0.5, 1.15)  # in widths of the frame: 0.5 is wide, 3 is long
    height: Range = (1.1, 2.6)  # of the camera above the ground
    pitch: float = 0.05  # standard deviation; the roll has a third of it
    speed: float = 1.5  # largest, of a camera that drives
    ground: bool = True
    room: tuple[Range, Range, Range] | None = None  # half of its width, its height, half its length
    haze: Range = (15.0, 60.0)  # distance at which fog hides two thirds, where there is fog
    sun: float = 0.6  # share of scenes with a sun that casts shadows

    def __post_init__(self) -> None:
        if not self.crowds:
            raise InputError("a place needs at least one crowd of things, got none")
        for movement in self.camera:
            if movement not in MOVEMENTS:
                raise unknown_name("movement of the camera", movement, MOVEMENTS)
        for crowd in self.crowds:
            low, high = crowd.count
            if not 0 <= low <= high:
                raise InputError(f"{crowd.thing}: count must be (fewest, most), got {crowd.count}")


_SMALL_FAST = Crowd("runner", (1, 3), ahead=(5, 30), moving=1.0, drift=1.0)

PLACES: Mapping[str, Place] = {
    "street": Place(
        crowds=(
            Crowd("house", (3, 6), aside=(6, 18), ahead=(6, 70)),
            Crowd("car", (2, 6), aside=(1.5, 9), ahead=(5, 60), moving=0.65, speed=1.6),
            Crowd("tree", (1, 5), aside=(4, 12), ahead=(5, 45)),
            Crowd("pole", (2, 6), aside=(3, 9), ahead=(4, 40)),
            Crowd("figure", (0, 3), aside=(1, 8), ahead=(4, 25), moving=0.7, speed=0.16),
            Crowd("sign", (1, 3), aside=(3, 8), ahead=(5, 35)),
            _SMALL_FAST,
        ),
        camera={"drive": 0.65, "walk": 0.12, "stereo": 0.1, "pan": 0.05},
    ),
    "motorway": Place(
        crowds=(
            Crowd("car", (5, 10), aside=(1, 9), ahead=(6, 60), moving=0.95, speed=2.0),
            Crowd("rail", (1, 2), aside=(4, 9), ahead=(10, 40)),
            Crowd("tree", (3, 8), aside=(8, 25), ahead=(10, 60)),
            Crowd("sign", (1, 3), aside=(5, 10), ahead=(8, 60)),
            Crowd("hill", (0, 3), aside=(20, 60), ahead=(40, 120)),
        ),
        camera={"drive": 0.85, "stereo": 0.05},
        speed=2.0,
        haze=(30, 120),
    ),
    "room": Place(
        crowds=(
            Crowd("furniture", (4, 9), ahead=(1.5, 7)),
            Crowd("figure", (0, 2), ahead=(2, 6), moving=0.6, speed=0.1),
            Crowd("block", (4, 10), ahead=(1.0, 6), moving=0.4, drift=0.7),
            Crowd("paper", (1, 5), ahead=(1.2, 6), moving=0.5, drift=0.7),
        ),
        camera={"walk": 0.35, "orbit": 0.25, "pan": 0.15, "stereo": 0.15},
        height=(0.8, 1.8),
        pitch=0.12,
        speed=0.2,
        ground=False,
        room=((2.0, 5.0), (2.3, 3.5), (3.0, 8.0)),
        haze=(10, 40),
        sun=0.4,
    ),
    "corridor": Place(
        crowds=(
            Crowd("door", (2, 6), aside=(1.1, 1.3), ahead=(2, 20)),
            Crowd("figure", (0, 3), aside=(0.2, 0.9), ahead=(2, 14), moving=0.8, speed=0.12),
            Crowd("block", (1, 4), aside=(0.3, 1), ahead=(2, 14), moving=0.3, drift=0.6),
            Crowd("pole", (0, 4), aside=(0.9, 1.2), ahead=(2, 18)),
        ),
        camera={"walk": 0.5, "drive": 0.3, "pan": 0.05, "stereo": 0.05},
        height=(0.9, 1.8),
        speed=0.35,
        ground=False,
        room=((1.3, 2.2), (2.3, 3.2), (14.0, 40.0)),
        haze=(10, 40),
        sun=0.3,
    ),
    "landscape": Place(
        crowds=(
            Crowd("hill", (4, 10), ahead=(4, 90)),
            Crowd("tree", (3, 10), ahead=(5, 60)),
            Crowd("rock", (3, 8), ahead=(3, 30)),
            Crowd("bush", (2, 8), ahead=(3, 25)),
            Crowd("figure", (0, 2), ahead=(4, 20), moving=0.7, speed=0.18),
            _SMALL_FAST,
        ),
        camera={"walk": 0.3, "drive": 0.25, "orbit": 0.15, "pan": 0.15, "stereo": 0.05},
        focal=(0.5, 2.0),
        height=(1.2, 6.0),
        pitch=0.08,
        speed=0.8,
        haze=(25, 120),
        sun=0.7,
    ),
    "floating": Place(
        crowds=(
            Crowd("block", (12, 22), ahead=(2.5, 30), moving=0.65, drift=1.0),
            Crowd("paper", (4, 9), ahead=(2.5, 25), moving=0.65, drift=1.0),
            Crowd("giant", (2, 3), ahead=(14, 40), moving=0.3, drift=0.3),
            _SMALL_FAST,
        ),
        camera={"drive": 0.3, "pan": 0.2, "orbit": 0.15, "stereo": 0.2},
        height=(2.0, 9.0),
        pitch=0.2,
        speed=0.8,
        haze=(12, 60),
    ),
}


@dataclass(frozen=True)
class WorldConfig:
    """Which places solid scenes are set in, and what holds for all of them."""

    places: tuple[str, ...] = tuple(PLACES)
    """Kinds of places, equally frequent; named twice, twice as frequent."""
    bodies: int = 120  # most bodies of a scene; the last things drawn are left out
    thing_scale: tuple[float, float] = (0.8, 1.25)  # factor of the size of a thing
    focal: tuple[float, ...] = ()
    """(shortest, longest) focal length in widths of the frame; empty: those of the place."""
    turn: float = 0.08  # largest turn of the camera between two frames in radians, mostly small
    runner_motion: tuple[float, float] = (15.0, 80.0)
    """Motion of small fast things in px of a frame 640 px wide."""
    reflection: tuple[float, float] = (0.08, 0.35)
    """Share of scenes seen through a pane, and the largest share of light that it reflects."""

    def __post_init__(self) -> None:
        if not self.places:
            raise InputError(f"world.places is empty; name at least one of {', '.join(PLACES)}")
        for name in self.places:
            find_place(name)
        if not 1 <= self.bodies <= 250:
            raise InputError(f"world.bodies must be in [1, 250], got {self.bodies}")
        if self.focal and (len(self.focal) != 2 or not 0.1 <= self.focal[0] <= self.focal[1] <= 20):
            raise InputError(
                f"world.focal must be (shortest, longest) from 0.1 to 20 widths of the frame, "
                f"got {list(self.focal)}"
            )
        for key in ("thing_scale", "runner_motion"):
            low, high = getattr(self, key)
            if not 0 < low <= high:
                raise InputError(f"world.{key} must be positive and increase, got {[low, high]}")
        if not 0 <= self.turn <= 1:
            raise InputError(f"world.turn must be in [0, 1], got {self.turn}")
        if not all(0 <= value <= 1 for value in self.reflection):
            raise InputError(f"world.reflection must be in [0, 1], got {list(self.reflection)}")


def find_place(name: str) -> Place:
    """Return the kind of place of that name."""
    if name not in PLACES:
        raise unknown_name("kind of place", name, PLACES)
    return PLACES[name]


@dataclass(frozen=True)
class RenderConfig:
    """Distributions of the scenes; the default covers video, driving, stereo and tiny motion.

    Lengths are in px of the frame, independent of its size unless `motion_reference` is set. Six
    lengths are the quantiles of a distribution: half of all draws lie below the first, 75, 90, 95,
    99 and 100 % below the others. "Mostly small" means the cube of a uniform draw. An effect is
    (share of the scenes that have it, largest strength).
    """

    motion: float = 1.0  # factor of all motion; below 1 it is easier to learn from at first
    motion_reference: tuple[int, ...] = ()
    """(height, width) of frames with this motion; in others it is scaled by the square root of the
    number of pixels. Empty: the same motion in px in all frames."""
    tiny_share: float = 0.15
    """Share of scenes with 0.03 to 0.3 times the motion: still cameras, slow video."""
    large_share: float = 0.2  # share of scenes with 1 to `large_factor` times the motion
    large_factor: float = 2.5
    still_scenes: float = 0.0
    """Share of scenes without motion; noise, light and compression still change."""
    blank_scenes: float = 0.0
    """Share of scenes of a single colour, without motion: there is nothing to match."""
    horizontal_share: float = 0.25
    """Share of scenes with horizontal motion only, as in stereo pairs and pans."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Training: (height, width) of the frames, one size per step; a batch has about as many pixels
    as one of `augment.crop`. Empty: only that size."""
    max_flow: float = 400.0  # longer vectors are marked as invalid
    occluded_weight: float = 1.0
    """Weight of occluded pixels, including those that leave the frame: that share of them, drawn at
    random, is valid."""
    solid_share: float = 0.0
    """Share of the batches that are solid scenes: bodies in space, seen by a moving camera. They
    take turns with batches of layers."""
    world: WorldConfig = field(default_factory=WorldConfig)  # the solid scenes
    augmented: bool = False
    """Training: rendered pairs get the colour changes, the eraser and the flips of `augment`."""

    background_shift: tuple[float, ...] = (2, 9, 20, 28, 37, 60)
    background_rotation: float = 10.0  # degrees, mostly small
    background_zoom: float = 0.07  # natural logarithm of the factor, mostly small
    perspective: float = 0.12
    """Largest change of scale from the centre to the edge of the frame, mostly small."""
    forward_share: float = 0.2
    """Share of scenes in which the camera moves forward (in one of five: backward)."""
    forward_zoom: float = 0.3  # logarithm of the largest zoom factor in such scenes

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
    """Smallest and largest, as a share of the frame's shorter side; uniform in the logarithm."""
    object_stretch: float = 0.6  # logarithm of the largest ratio of width to height
    margin: float = 0.15
    """How far outside the frame centres of objects may lie, as a share of its sides."""
    object_shift: tuple[float, ...] = (12, 33, 65, 86, 113, 160)
    """Motion relative to the background."""
    object_rotation: float = 30.0
    object_zoom: float = 0.2
    still_share: float = 0.2  # share of objects that move with the background
    group_share: float = 0.2  # share of objects that move like the object behind them
    parallax: float = 0.6
    """How much more than the background the nearest layer moves with the camera."""
    deform_share: float = 0.5  # share of layers that bend
    deform: float = 0.25  # largest slope of the deformation; at 1 the layer would fold

    texture_scale: tuple[float, float] = (0.6, 1.25)  # texture pixels per pixel of the frame
    procedural_share: float = 0.1
    """Share of layers with a procedural texture where there are photographs as well."""
    layer_color: float = 0.25  # largest change of brightness and colour of a layer's texture

    motion_blur: tuple[float, float] = (0.3, 0.7)
    """Strength: the share of the time between the frames that the shutter is open."""
    defocus: tuple[float, float] = (0.2, 1.0)
    """Strength: the share of the blurred picture at the depth farthest from the focus."""
    fog: tuple[float, float] = (0.12, 0.7)  # strength: the share of fog in front of the background
    shadow: tuple[float, float] = (0.3, 0.6)
    """Strength: the share of light that a soft moving shadow removes."""
    vignette: tuple[float, float] = (0.2, 0.5)  # strength: the share of light lost in the corners
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


EFFECTS = tuple(setting.name for setting in fields(RenderConfig))[-8:]  # from motion blur on
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
