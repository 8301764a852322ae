"""The kinds of places that solid scenes are set in: what stands there, and how it is filmed.

Lengths are in metres, times in frames, angles in radians; y points down, z ahead. A new kind is a
new entry of `PLACES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import InputError, unknown_name

Range = tuple[float, float]

MOVEMENTS = ("stand", "drive", "walk", "pan", "orbit", "stereo")


@dataclass(frozen=True)
class Crowd:
    """A number of like things of a place."""

    thing: str
    """The name of a maker in `render.solid.things`."""
    count: tuple[int, int]
    aside: Range | None = None
    """Distance from the middle of the way, to the left or to the right; None: anywhere in view."""
    ahead: Range = (4, 50)
    """Distance from the camera; near things are more frequent."""
    moving: float = 0.0
    """Share that moves."""
    speed: float = 0.0
    """Largest, per frame, in the direction that the thing faces."""
    drift: float = 0.0
    """Factor of the motion in px that things without a direction of their own have."""


@dataclass(frozen=True)
class Place:
    """A kind of place."""

    crowds: tuple[Crowd, ...]
    camera: Mapping[str, float]
    """How often the camera moves in which way; the rest of the time it stands."""
    focal: Range = (0.5, 1.15)
    """In widths of the frame: 0.5 is wide, 3 is long."""
    height: Range = (1.1, 2.6)
    """Of the camera above the ground."""
    pitch: float = 0.05
    """Standard deviation; the roll has a third of it."""
    speed: float = 1.5
    """Largest, of a camera that drives."""
    ground: bool = True
    room: tuple[Range, Range, Range] | None = None
    """Half of the width and length, and the height, of a room around the camera: (x, height, z)."""
    haze: Range = (15.0, 60.0)
    """Distance at which fog hides two thirds, where there is fog."""
    sun: float = 0.6
    """Share of scenes with a sun that casts shadows."""

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


_CARS = Crowd("car", (2, 6), aside=(1.5, 9), ahead=(5, 60), moving=0.65, speed=1.6)
_PEOPLE = Crowd("figure", (0, 3), aside=(1, 8), ahead=(4, 25), moving=0.7, speed=0.16)
_POLES = Crowd("pole", (2, 6), aside=(3, 9), ahead=(4, 40))
_SMALL_FAST = Crowd("runner", (1, 3), ahead=(5, 30), moving=1.0, drift=1.0)

PLACES: Mapping[str, Place] = {
    "street": Place(
        crowds=(
            Crowd("house", (3, 6), aside=(6, 18), ahead=(6, 70)),
            _CARS,
            Crowd("tree", (1, 5), aside=(4, 12), ahead=(5, 45)),
            _POLES,
            _PEOPLE,
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
    bodies: int = 120
    """Most bodies of a scene; the last things drawn are left out."""
    thing_scale: tuple[float, float] = (0.8, 1.25)
    """Factor of the size of a thing."""
    focal: tuple[float, ...] = ()
    """(shortest, longest) focal length in widths of the frame; empty: those of the place."""
    turn: float = 0.08
    """Largest turn of the camera between two frames in radians, mostly small."""
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
