"""The random draws of a world, and its things, made of simple bodies that share a motion.

A thing stands at the origin of its own axes: x to its right, y down (the ground is at 0), z ahead.
A maker gets the draws and `view`, the width in metres of what the camera sees at its distance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ..shapes import QUANTILES

Vector = tuple[float, float, float]

FORMS = range(8)
BOX, ELLIPSOID, CYLINDER, CONE, CUTOUT, ROOM, GROUND, SKY = FORMS
"""Forms, each in its own coordinates q: see `casting`."""

ZERO: Vector = (0.0, 0.0, 0.0)
_UPRIGHT_TO_SIDE: Vector = (0.0, 0.0, math.pi / 2)  # turns the axis of a cylinder to x
_FASTEST_WHEEL = 0.5  # radians per frame; real wheels turn too fast to be followed


class Draws(Random):
    """A generator with the distributions of the renderer."""

    def log_uniform(self, low: float, high: float) -> float:
        """Log-uniform in [low, high)."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def mostly_small(self, extent: float) -> float:
        """In [-extent, extent], half of the draws within an eighth of it."""
        return extent * self.uniform(-1, 1) ** 3

    def happens(self, share: float) -> bool:
        """True with the probability `share`."""
        return self.random() < share

    def side(self) -> float:
        """-1 or 1."""
        return 1.0 if self.random() < 0.5 else -1.0

    def length(self, quantiles: Sequence[float]) -> float:
        """A length with the given 50, 75, 90, 95, 99 and 100 % quantiles, linear in between."""
        share, ends = self.random(), (0.0, *quantiles)
        step = sum(share >= limit for limit in QUANTILES[1:-1])
        low, high = QUANTILES[step], QUANTILES[step + 1]
        return ends[step] + (ends[step + 1] - ends[step]) * (share - low) / (high - low)

    def pick(self, weights: Mapping[str, float], other: str) -> str:
        """One of the names, each with its probability; `other` with what is left of 1."""
        left = self.random()
        for name, weight in weights.items():
            left -= weight
            if left < 0:
                return name
        return other

    def direction(self, length: float) -> tuple[float, float]:
        """A vector of that length in any direction of a plane."""
        angle = self.uniform(0, 2 * math.pi)
        return length * math.cos(angle), length * math.sin(angle)

    def vector(self, deviation: float) -> Vector:
        """Three normal draws."""
        return self.gauss(0, deviation), self.gauss(0, deviation), self.gauss(0, deviation)

    def sizes(self, low: float, high: float) -> Vector:
        """Three uniform draws."""
        return self.uniform(low, high), self.uniform(low, high), self.uniform(low, high)


@dataclass(slots=True)
class Joint:
    """A turn of a body against its thing: steady (a wheel) or to and fro (a leg)."""

    axis: Vector
    pivot: Vector
    rate: float  # radians per frame; of a swing: of its phase
    swing: float = 0.0  # largest angle of a swing; 0: a steady turn
    phase: float = 0.0


@dataclass(slots=True)
class Body:
    """A simple body of a thing."""

    form: int
    size: Vector  # half of the extent along each axis
    place: Vector = ZERO
    turn: Vector = ZERO  # axis times angle
    skin: int = 0  # bodies of a thing with the same number look the same
    gloss: float = 0.0  # strength of highlights
    mirror: float = 0.0  # share of light that is reflected from the surroundings
    joint: Joint | None = None
    bend: float = 0.0  # largest slope of the bending of a cut-out
    flat: bool = False  # textured from above, like the ground


@dataclass(slots=True)
class Thing:
    """Bodies with one motion."""

    bodies: list[Body]
    floats: bool = False  # not bound to the ground
    wheels: Sequence[Body] = ()

    def roll(self, speed: float) -> None:
        """Turn the wheels for a speed in metres per frame."""
        for wheel in self.wheels:
            rate = max(-_FASTEST_WHEEL, min(_FASTEST_WHEEL, speed / wheel.size[0]))
            wheel.joint = Joint((1.0, 0.0, 0.0), wheel.place, rate)


def _car(draws: Draws, view: float) -> Thing:
    half, height, length = draws.uniform(0.75, 1), draws.uniform(0.3, 0.5), draws.uniform(1.7, 2.6)
    radius, clear = draws.uniform(0.27, 0.36), draws.uniform(0.15, 0.3)
    van = draws.happens(0.25)
    cabin = height * (draws.uniform(1.2, 2.2) if van else draws.uniform(0.7, 1))
    reach = length * (0.95 if van else draws.uniform(0.45, 0.65))
    gloss, glass = draws.uniform(0, 0.5), draws.uniform(0.1, 0.5)
    top, back = -clear - 2 * height, -0.05 * length
    upper = Body(BOX, (0.9 * half, cabin, reach), (0, top - cabin, back), gloss=gloss)
    bodies = [Body(BOX, (half, height, length), (0, top + height, 0), gloss=gloss), upper]
    if van:  # a windscreen
        place = (0.0, top - cabin, reach + back)
        bodies.append(Body(BOX, (0.8 * half, 0.7 * cabin, 0.03), place, skin=1, mirror=glass))
    else:
        upper.skin, upper.mirror = 1, glass
    wheels = [
        Body(CYLINDER, (radius, 0.1, radius), (x * half, -radius, z), _UPRIGHT_TO_SIDE, skin=2)
        for x in (-1, 1)
        for z in (-0.6 * length, 0.6 * length)
    ]
    return Thing(bodies + wheels, wheels=wheels)


def _house(draws: Draws, view: float) -> Thing:
    half, height, length = draws.uniform(1.5, 6), draws.uniform(2, 8), draws.uniform(3, 14)
    bodies = [Body(BOX, (half, height, length), (0, -height, 0))]
    if draws.happens(0.3):  # a roof
        tip = draws.uniform(0.8, 2.5)
        size = (1.3 * half, tip, 1.2 * length)
        bodies.append(Body(CONE, size, (0, -2 * height - tip, 0), skin=1))
    mirror, pane = draws.uniform(0, 0.6), draws.uniform(0.4, 0.8)
    for _ in range(draws.randint(0, 4)):
        y, z = -draws.uniform(0.3, 1.8) * height, draws.uniform(-0.8, 0.8) * length
        for x in (-half, half):
            bodies.append(Body(BOX, (0.08, pane, pane), (x, y, z), skin=2, mirror=mirror))
    return Thing(bodies)


def _tree(draws: Draws, view: float) -> Thing:
    height, radius, crown = draws.uniform(1, 3.5), draws.uniform(0.06, 0.3), draws.uniform(0.8, 2.5)
    bodies = [Body(CYLINDER, (radius, height, radius), (0, -height, 0))]
    middle = (0.0, -2 * height - 0.5 * crown, 0.0)
    kind = draws.random()
    if kind < 0.5:  # leaves on crossing planes
        wind = draws.uniform(0, 0.25)
        for angle in (0.0, math.pi / 2):
            turn = (0.0, angle + draws.uniform(-0.4, 0.4), 0.0)
            size = (crown, crown * draws.uniform(0.7, 1.3), 1.0)
            bodies.append(Body(CUTOUT, size, middle, turn, skin=1, bend=wind))
    elif kind < 0.8:
        for _ in range(draws.randint(1, 3)):
            x, y, z = draws.vector(0.3 * crown)
            size = draws.sizes(crown * 0.5, crown)
            bodies.append(Body(ELLIPSOID, size, (x, middle[1] + y, z), skin=1))
    else:
        size = (crown, 1.5 * crown, crown)
        bodies.append(Body(CONE, size, (0, -2 * height - 1.2 * crown, 0), skin=1))
    return Thing(bodies)


def _pole(draws: Draws, view: float) -> Thing:
    radius, height = draws.log_uniform(0.03, 0.2), draws.uniform(0.8, 3.5)
    bodies = [Body(CYLINDER, (radius, height, radius), (0, -height, 0), gloss=draws.uniform(0, 1))]
    if draws.happens(0.4):  # a lamp
        arm = draws.uniform(0.2, 1)
        bodies.append(Body(BOX, (arm, 0.06, 0.12), (arm, -2 * height, 0), skin=1))
    return Thing(bodies)


def _sign(draws: Draws, view: float) -> Thing:
    height, half = draws.uniform(0.8, 2.5), draws.uniform(0.25, 1)
    post = Body(CYLINDER, (0.05, height, 0.05), (0, -height, 0))
    size = (half, half * draws.uniform(0.5, 1.2), 0.03)
    form = BOX if draws.happens(0.6) else CUTOUT
    board = Body(form, size, (0, -2 * height, -0.08), skin=1)
    return Thing([post, board])


def _rail(draws: Draws, view: float) -> Thing:
    length = draws.uniform(10, 40)
    beam = Body(BOX, (0.06, draws.uniform(0.1, 0.25), length), (0, -0.6, 0), gloss=0.5)
    places = [(0.0, -0.35, length * (2 * i / 7 - 1)) for i in range(8)]
    return Thing([beam, *(Body(BOX, (0.05, 0.35, 0.05), place, skin=1) for place in places)])


def _hill(draws: Draws, view: float) -> Thing:
    radius = draws.log_uniform(2, 16)
    size = (radius, radius * draws.uniform(0.08, 0.35), radius * draws.uniform(0.6, 1.6))
    return Thing([Body(ELLIPSOID, size, flat=True)])


def _rock(draws: Draws, view: float) -> Thing:
    radius = draws.log_uniform(0.15, 1.5)
    size = (radius, radius * draws.uniform(0.4, 1), radius * draws.uniform(0.6, 1.4))
    form = BOX if draws.happens(0.4) else ELLIPSOID
    return Thing([Body(form, size, (0, -0.4 * size[1], 0), draws.vector(0.4))])


def _bush(draws: Draws, view: float) -> Thing:
    radius, wind = draws.uniform(0.3, 1.2), draws.uniform(0, 0.3)
    turns = [(0.0, angle + draws.uniform(-0.5, 0.5), 0.0) for angle in (0, 1, 2)]
    size = (radius, radius * draws.uniform(0.5, 1), 1.0)
    return Thing([Body(CUTOUT, size, (0, -0.7 * size[1], 0), turn, bend=wind) for turn in turns])


def _figure(draws: Draws, view: float) -> Thing:
    tall = draws.uniform(1.2, 1.9)
    hip, shoulder = -0.48 * tall, -0.82 * tall
    rate, phase, swing = draws.uniform(0.3, 0.9), draws.uniform(0, 6.28), draws.uniform(0.2, 0.6)
    bodies = [
        Body(ELLIPSOID, (0.12 * tall, 0.2 * tall, 0.08 * tall), (0, -0.65 * tall, 0)),
        Body(ELLIPSOID, (0.06 * tall, 0.08 * tall, 0.07 * tall), (0, -0.93 * tall, 0), skin=1),
    ]
    for x in (-1, 1):  # legs and arms swing against each other
        limbs = ((hip, 0.05, 0.24, 0.06, 2, 1), (shoulder, 0.03, 0.19, 0.14, 0, -1))
        for top, radius, half, apart, skin, sense in limbs:
            size = (radius * tall, half * tall, radius * tall)
            pivot = (x * apart * tall, top, 0.0)
            place = (pivot[0], top + half * tall, 0.0)
            joint = Joint((1.0, 0.0, 0.0), pivot, rate, x * sense * swing, phase)
            bodies.append(Body(CYLINDER, size, place, skin=skin, joint=joint))
    return Thing(bodies)


def _furniture(draws: Draws, view: float) -> Thing:
    kind = draws.random()
    half, depth = draws.uniform(0.25, 0.9), draws.uniform(0.2, 0.5)
    height = draws.uniform(0.35, 0.85)
    if kind < 0.5:  # a table or, with a back, a chair
        top = Body(BOX, (half, 0.03, depth), (0, -height, 0), gloss=draws.uniform(0, 0.6))
        legs = [
            Body(BOX, (0.03, height / 2, 0.03), (0.9 * x * half, -height / 2, 0.9 * z * depth))
            for x in (-1, 1)
            for z in (-1, 1)
        ]
        back = [Body(BOX, (half, 0.4, 0.03), (0, -height - 0.4, depth), skin=1)]
        return Thing([top, *legs, *(back if draws.happens(0.5) else [])])
    if kind < 0.8:  # a shelf, with things on it
        tall = draws.uniform(0.4, 1.1)
        bodies = [Body(BOX, (half, tall, depth), (0, -tall, 0))]
        for _ in range(draws.randint(1, 4)):
            size, x = draws.sizes(0.04, 0.2), draws.uniform(-0.8, 0.8) * half
            form = draws.choice((BOX, ELLIPSOID, CYLINDER, CONE))
            place = (x, -2 * tall - size[1], draws.uniform(-0.5, 0.5) * depth)
            bodies.append(Body(form, size, place, skin=draws.randint(1, 3), gloss=0.3))
        return Thing(bodies)
    radius = draws.uniform(0.1, 0.3)  # a lamp
    stand = Body(CYLINDER, (0.025, height, 0.025), (0, -height, 0), gloss=0.6)
    shade = Body(CONE, (radius, 0.7 * radius, radius), (0, -2 * height, 0), skin=1)
    return Thing([stand, shade])


def _door(draws: Draws, view: float) -> Thing:
    size = (0.05, 1.0, draws.uniform(0.35, 0.5))
    leaf = Body(BOX, size, (0, -1, 0), mirror=draws.uniform(0, 0.2))
    knob = Body(ELLIPSOID, (0.09, 0.04, 0.04), (0, -1, 0.3), skin=1, gloss=1.0)
    return Thing([leaf, knob])


def _block(draws: Draws, view: float) -> Thing:
    return _floating(draws, view * draws.log_uniform(0.02, 0.13))


def _giant(draws: Draws, view: float) -> Thing:
    return _floating(draws, view * draws.uniform(0.12, 0.3))


def _fold(draws: Draws, view: float) -> Thing:
    radius = view * draws.log_uniform(0.06, 0.28)
    wide, tall, deep = (radius * math.exp(part) for part in draws.vector(0.4))
    return Thing([Body(ELLIPSOID, (wide, tall, deep), turn=draws.vector(1.5))], floats=True)


def _floating(draws: Draws, radius: float) -> Thing:
    """One body, or two that are stuck together."""
    bodies = []
    for number in range(1 + draws.happens(0.3)):
        form = draws.choices((BOX, ELLIPSOID, CYLINDER, CONE), (5, 3, 2, 1))[0]
        long, tall, deep = (radius * math.exp(part) for part in draws.vector(0.45))
        place = draws.vector(0.6 * radius) if number else ZERO
        gloss = draws.uniform(0, 1) if draws.happens(0.4) else 0.0
        mirror = draws.uniform(0, 0.4) if draws.happens(0.2) else 0.0
        turn = draws.vector(1.5)
        bodies.append(Body(form, (long, tall, deep), place, turn, number, gloss, mirror))
    return Thing(bodies, floats=True)


def _paper(draws: Draws, view: float) -> Thing:
    radius = view * draws.log_uniform(0.03, 0.2)
    size = (radius, radius * math.exp(draws.gauss(0, 0.3)), 1.0)
    bend = draws.uniform(0, 0.3) if draws.happens(0.5) else 0.0
    turn = (draws.gauss(0, 0.5), draws.gauss(0, 0.6), draws.uniform(0, 6.28))
    return Thing([Body(CUTOUT, size, turn=turn, bend=bend)], floats=True)


def _runner(draws: Draws, view: float) -> Thing:
    """Something small; it will be fast."""
    radius = view * draws.log_uniform(0.012, 0.1)
    if draws.happens(0.5):
        return _floating(draws, radius)
    long, low = radius, radius * draws.uniform(0.2, 0.45)  # like a car from the side
    lower = Body(BOX, (long, 0.6 * low, 0.4 * long), gloss=0.3)
    upper = Body(BOX, (0.55 * long, 0.5 * low, 0.36 * long), (0, -low, 0), skin=1)
    return Thing([lower, upper], floats=True)


_OUTDOORS = (_car, _house, _tree, _pole, _sign, _rail, _hill, _rock, _bush)
_ANYWHERE = (_figure, _furniture, _door, _block, _giant, _fold, _paper, _runner)
MAKERS = {maker.__name__[1:]: maker for maker in (*_OUTDOORS, *_ANYWHERE)}
"""What makes each kind of thing, by its name in a crowd."""
