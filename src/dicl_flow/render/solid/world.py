"""Worlds: things placed and set in motion, a camera, light; and where everything is at given times.

World axes: x to the right, y down, z ahead; the ground is at y = 0. Worlds are drawn on the CPU, in
plain Python, one by one; `lay_out` then computes the poses of all bodies of a batch together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ...config import Crowd, Place, RenderConfig, find_place
from ...files import Array
from ...ops import Size
from .things import CUTOUT, GROUND, MAKERS, ROOM, SKY, ZERO, Body, Draws, Thing, Vector

Row = tuple[float, ...]

NEAR = 0.25  # metres: what is nearer is not seen
_FLOATING_HEIGHT = 1.25  # how far outside the frame floating things may be, in heights of it
_AWAY = (1e6, 1e6, -1e6, -1e6)  # the bounds of what is not seen
_CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)

POSE = 33
"""Numbers of a body at one time: to its own axes (9), the camera in them (3), to the axes of the
camera (9), its middle there (3), bending (1), bounds in px (4), bounds of its shadow (4)."""
SKIN = 21
"""Numbers of a body: form, thing, texture, origin (2), texels per unit of each axis (3), colour
(3), gloss, mirror, outline, wave number (2), phase, height (2), flat, texels per metre."""
SCENE = 21
"""Numbers of a scene at one time: camera to world (9), sun (3), focal length, ambient, sun or not,
haze, reflection of the pane, its texture and origin (2), texture of the surroundings."""


@dataclass
class World:
    """One scene in numbers, before any time is chosen."""

    focal: float  # in px
    bodies: list[Row] = field(default_factory=list)  # rows: see `_add_body`
    things: list[Row] = field(default_factory=list)
    """A row per thing: place, heading, velocity, spin (3 each), rate at which it returns."""
    camera: Row = ()
    """Place, tilt, velocity, turn (3 each), distance of what it orbits, bob, its rate and phase,
    rate at which it returns."""
    light: Row = ()
    """Sun (3), ambient, sun or not, haze, pane, its texture and origin (2), surroundings."""


@dataclass(frozen=True)
class Layout:
    """Where everything is: T times of B worlds with K bodies; body 0 is the sky."""

    pose: Tensor  # (T, B, K, POSE)
    skin: Tensor  # (B, K, SKIN)
    scene: Tensor  # (T, B, SCENE)
    count: Tensor  # (B,) int32: the number of bodies

    @property
    def batch(self) -> int:
        """The number of worlds."""
        return len(self.skin)

    def to(self, device: torch.device | str) -> "Layout":
        """Return the same on a device; from the CPU without waiting."""
        parts = (self.pose, self.skin, self.scene, self.count)
        if torch.device(device).type == "cuda":
            parts = tuple(part.pin_memory() for part in parts)  # type: ignore[assignment]
        return Layout(*(part.to(device, non_blocking=True) for part in parts))


class Textures:
    """The numbers of textures to draw from: photographs, then procedural ones."""

    def __init__(self, num_photos: int, num_all: int, procedural_share: float) -> None:
        self.num_photos, self.num_all = num_photos, num_all
        self.share = procedural_share if 0 < num_photos < num_all else float(not num_photos)

    def draw(self, draws: Draws) -> int:
        """Return the number of a texture."""
        if draws.happens(self.share):
            return draws.randrange(self.num_photos, self.num_all)
        return draws.randrange(self.num_photos)


def draw_world(
    config: RenderConfig,
    draws: Draws,
    size: Size,
    textures: Textures,
    kind: str | Place | None = None,
) -> World:
    """Draw one world for frames of `size`; without a `kind`, of any of the configured places."""
    kind = kind or draws.choice(config.world.places)
    place = kind if isinstance(kind, Place) else find_place(kind)
    focal = size[1] * draws.uniform(*(config.world.focal or place.focal))
    return _Builder(config, draws, size, textures, place, focal).build()


class _Builder:
    """Draws one world; what all steps share."""

    def __init__(
        self,
        config: RenderConfig,
        draws: Draws,
        size: Size,
        textures: Textures,
        place: Place,
        focal: float,
    ) -> None:
        self.config, self.draws, self.size, self.textures = config, draws, size, textures
        self.place, self.focal, self.world = place, focal, World(focal)
        self.height = draws.uniform(*place.height)
        self.view = size[1] / focal  # the width of what is seen, at a distance of 1
        self.growth = config.motion_in(size) / config.motion if config.motion else 1.0
        self.pace = self._draw_pace()
        self.movement = draws.pick(place.camera, "stand")
        self.moving = self.movement != "stereo"  # both eyes see the same moment

    def build(self) -> World:
        """Draw surroundings, things, camera and light."""
        self._add_surroundings()
        for crowd in self.place.crowds:
            for _ in range(self.draws.randint(*crowd.count)):
                self._add_thing(crowd)
        del self.world.bodies[self.config.world.bodies + 2 :]  # sky and ground are always there
        self.world.camera = self._draw_camera()
        self.world.light = self._draw_light()
        return self.world

    def _draw_pace(self) -> float:
        config, draws, kind = self.config, self.draws, self.draws.random()
        if draws.happens(config.still_scenes):
            return 0.0
        if kind < config.tiny_share:
            return config.motion * draws.log_uniform(0.03, 0.3)
        if kind > 1 - config.large_share:
            return config.motion * draws.uniform(1, config.large_factor)
        return config.motion

    def _add_surroundings(self) -> None:
        """The sky, and the ground or the room: thing 0, which does not move."""
        draws, place = self.draws, self.place
        self.world.things.append((*ZERO, *ZERO, *ZERO, *ZERO, 0.0))
        self._add_body(Body(SKY, (1, 1, 1), turn=draws.vector(0.3)), self.focal, {})
        if place.room is not None:
            wide, tall, long = (draws.uniform(*side) for side in place.room)
            middle = (0.0, -tall / 2, 0.7 * long)  # the camera is near the back, and looks along it
            self.height = min(self.height, 0.8 * tall)
            body = Body(ROOM, (wide, tall / 2, long), middle)
            self._add_body(body, self.focal / max(wide, 1.5), {})
        elif place.ground:
            self._add_body(Body(GROUND, (1, 1, 1)), self.focal / (4 * self.height), {})

    def _add_thing(self, crowd: Crowd) -> None:
        draws = self.draws
        ahead = draws.log_uniform(*crowd.ahead)
        thing = MAKERS[crowd.thing](draws, self.view * ahead)
        x, y, ahead = self._find_place(crowd, thing, ahead)
        goes = self.moving and draws.happens(crowd.moving)
        heading = draws.choice((0.0, 0.0, math.pi, math.pi / 2, -math.pi / 2))
        heading += draws.mostly_small(0.5) if crowd.aside else draws.uniform(-math.pi, math.pi)
        if crowd.thing in ("house", "rail", "door"):
            heading = draws.mostly_small(0.15)
        velocity, spin = self._draw_motion(crowd, thing, heading, ahead) if goes else (ZERO, ZERO)
        returns = draws.uniform(0.05, 0.2) if thing.floats and draws.happens(0.5) else 0.0
        number = len(self.world.things)
        start = (x - velocity[0] / 2, y - velocity[1] / 2, ahead - velocity[2] / 2)
        turn = ZERO if thing.floats else (0.0, heading, 0.0)
        self.world.things.append((*start, *turn, *velocity, *spin, returns))
        scale = draws.uniform(*self.config.world.thing_scale)
        distance = math.hypot(x, y + self.height, ahead)
        skins: dict[int, Row] = {}
        for body in thing.bodies:
            self._add_body(body, self.focal / distance, skins, number, scale)

    def _find_place(self, crowd: Crowd, thing: Thing, ahead: float) -> tuple[float, float, float]:
        draws, view = self.draws, self.view * ahead
        x = draws.uniform(-0.62, 0.62) * view
        if crowd.aside is not None:
            x = draws.side() * draws.uniform(*crowd.aside)
        if not thing.floats:
            return x, 0.0, ahead
        tall = self.size[0] / self.size[1] * view
        y = -self.height + draws.uniform(-0.5, 0.5) * _FLOATING_HEIGHT * tall
        return x, min(y, -0.1) if self.place.ground or self.place.room else y, ahead

    def _draw_motion(
        self, crowd: Crowd, thing: Thing, heading: float, ahead: float
    ) -> tuple[Vector, Vector]:
        """Velocity and spin of a thing that moves."""
        draws, pace = self.draws, self.pace
        slow = min(pace, 1.5)
        if crowd.thing == "runner":
            motion = draws.uniform(*self.config.world.runner_motion)
            length = motion / 640 * self.view * ahead * min(pace, 1.25)
            angle = draws.mostly_small(math.pi)
            velocity = (draws.side() * length * math.cos(angle), length * math.sin(angle), 0.0)
            return velocity, (0.0, draws.mostly_small(0.3) * slow, 0.0)
        if crowd.speed:
            speed = draws.uniform(0, crowd.speed) * slow
            thing.roll(speed)
            velocity = (speed * math.sin(heading), 0.0, speed * math.cos(heading))
            return velocity, (0.0, draws.mostly_small(0.12) * slow, 0.0)
        pixels = draws.length(self.config.object_shift) * self.growth * pace * crowd.drift
        x, y = draws.direction(0.6 * pixels * ahead / self.focal)
        toward = draws.mostly_small(0.25) * ahead * slow * crowd.drift
        spin = tuple(draws.mostly_small(0.4) * slow for _ in range(3))
        return (x, y, toward), spin  # type: ignore[return-value]

    def _add_body(
        self, body: Body, texels: float, skins: dict[int, Row], thing: int = 0, scale: float = 1.0
    ) -> None:
        """Add a row; `texels` is the number of px per metre at the distance of the thing."""
        draws = self.draws
        if body.skin not in skins:
            skins[body.skin] = self._draw_skin(texels)
        wave = self._draw_wave(body) if body.form == CUTOUT else (0.0,) * 6
        turn: Row = (0.0,) * 9
        if (joint := body.joint) is not None:
            pivot = [scale * value for value in joint.pivot]
            rate = joint.rate * min(self.pace, 1.5) if self.moving else 0.0
            turn = (*joint.axis, *pivot, rate, joint.swing, joint.phase)
        across = 1.0 if body.form in (CUTOUT, SKY, GROUND) else scale
        size = (scale * body.size[0], scale * body.size[1], across * body.size[2])
        place = [scale * value for value in body.place]
        outline = draws.randrange(self.config.num_shapes)
        row = (body.form, *size, *place, *body.turn, thing, *turn, *skins[body.skin])
        self.world.bodies.append((*row, body.gloss, body.mirror, outline, *wave, body.flat))

    def _draw_skin(self, texels: float) -> Row:
        """Texture, origin, texels per metre and colour."""
        draws, reach = self.draws, self.config.layer_color
        all_colors = reach * draws.uniform(-1, 1)
        gain = [math.exp(all_colors + reach / 2 * draws.uniform(-1, 1)) for _ in range(3)]
        density = texels * draws.log_uniform(0.35, 1.2)
        return (self.textures.draw(draws), draws.random(), draws.random(), density, *gain)

    def _draw_wave(self, body: Body) -> Row:
        """Wave number (2), phase, height (2) in units of the body, and its rate in time."""
        draws = self.draws
        number = draws.uniform(1.5, 5)
        wave, height = draws.direction(number), draws.direction(body.bend / number)
        phase = draws.uniform(0, 2 * math.pi)
        rate = draws.uniform(0.2, 1.5) * min(self.pace, 1.0) * self.moving
        return (*wave, phase, *height, rate)

    def _draw_camera(self) -> Row:
        draws, place, movement = self.draws, self.place, self.movement
        slow, pace = min(self.pace, 1.5), min(self.pace, 1.75)
        pitch = draws.gauss(0, place.pitch)
        yaw = draws.gauss(0, place.pitch) if movement != "drive" else draws.gauss(0, 0.02)
        tilt = (pitch, yaw, draws.gauss(0, place.pitch / 3))
        extent = self.config.world.turn * slow
        velocity, bob, orbit = list(ZERO), 0.0, 0.0
        turn = [draws.mostly_small(share * extent) for share in (0.5, 1, 0.5)]
        if movement == "drive":
            ahead = -1.0 if draws.happens(0.12) else 1.0
            speed = ahead * draws.uniform(0, place.speed) * pace
            velocity = [draws.gauss(0, 0.06) * speed, draws.gauss(0, 0.025) * slow, speed]
        elif movement == "walk":
            step = draws.uniform(0, 0.6 * min(place.speed, 0.3)) * slow
            velocity, bob = [draws.gauss(0, 0.3) * step, 0.0, step], draws.uniform(0, 0.05) * slow
        elif movement == "pan":
            turn[1] = draws.uniform(-2, 2) * extent
        elif movement == "orbit":
            orbit = draws.uniform(0.4, 0.9) * place.crowds[0].ahead[1] * 0.5
            turn[1] = draws.uniform(-1, 1) * extent
        elif movement == "stereo":
            turn, baseline = list(ZERO), self._draw_travel(0.6, slow)
            right = _rotation(np.array([tilt]))[0, :, 0]  # the flow is horizontal
            velocity = [float(baseline * part) for part in right]
        else:
            turn = [value * draws.happens(0.3) for value in turn]
        if movement in ("pan", "drive", "orbit") and draws.happens(0.3):
            velocity[0] += self._draw_travel(0.2, pace)
        rate, phase = draws.uniform(0.4, 1.5), draws.uniform(0, 2 * math.pi)
        returns = draws.uniform(0.02, 0.1)
        return (0.0, -self.height, 0.0, *tilt, *velocity, *turn, orbit, bob, rate, phase, returns)

    def _draw_travel(self, share: float, pace: float) -> float:
        """To the left or right; what is at a typical distance moves by a share of its px."""
        length = self.draws.length(self.config.travel_sideways) * self.growth * pace
        near, far = self.place.crowds[0].ahead
        return self.draws.side() * share * length * ((near * far) ** 0.5 * 0.5) / self.focal

    def _draw_light(self) -> Row:
        draws, place, config = self.draws, self.place, self.config.world
        high = draws.uniform(0.45, 1.4)
        x, z = draws.direction(math.cos(high))
        sun = (x, -math.sin(high), z)
        shines = draws.happens(place.sun)
        ambient = draws.uniform(0.35, 0.75) if shines else draws.uniform(0.6, 1.0)
        share, largest = config.reflection
        pane = draws.uniform(0, largest) if draws.happens(share) else 0.0
        haze = draws.uniform(*place.haze)
        number, around_number = self.textures.draw(draws), self.textures.draw(draws)
        origin = draws.random(), draws.random()
        return (*sun, ambient, float(shines), haze, pane, number, *origin, around_number)


def lay_out(worlds: Sequence[World], times: Sequence[float], size: Size) -> Layout:
    """Compute the poses of all bodies at these times, in double precision, as float32."""
    counts = [len(world.bodies) for world in worlds]
    index = np.concatenate([np.full(count, b) for b, count in enumerate(counts)])
    slot = np.concatenate([np.arange(count) for count in counts])
    bodies = np.array([row for world in worlds for row in world.bodies])
    firsts = np.cumsum([0, *(len(world.things) for world in worlds[:-1])])
    things = np.array([row for world in worlds for row in world.things])
    owner = bodies[:, 10].astype(int) + firsts[index]
    lights = np.array([world.light for world in worlds])
    focal = np.array([world.focal for world in worlds])
    cameras = np.array([world.camera for world in worlds])
    pose = np.zeros((len(times), len(worlds), max(counts), POSE))
    pose[..., 25:29] = pose[..., 29:] = _AWAY
    scene = np.zeros((len(times), len(worlds), SCENE))
    for number, time in enumerate(times):
        place, to_world = _camera_at(cameras, time)
        sun = _apply(to_world.transpose(0, 2, 1), lights[:, :3])
        rest = [focal[:, None], lights[:, 3:]]
        scene[number] = np.concatenate([to_world.reshape(-1, 9), sun, *rest], 1)
        rotation, middle = _bodies_at(bodies, things[owner], time)
        camera = [part[index] for part in (place, to_world, lights, focal)]  # of each body
        pose[number, index, slot] = _pose_rows(bodies, rotation, middle, camera, time, size)
    skin, density = np.zeros((len(worlds), max(counts), SKIN)), bodies[:, 23:24]
    parts = [
        bodies[:, :1],  # 0: form
        bodies[:, 10:11],  # 1: thing
        bodies[:, 20:23],  # 2 to 4: texture, origin
        bodies[:, 1:4] * density,  # 5 to 7
        bodies[:, 24:35],  # 8 to 18: colour, gloss, mirror, outline, wave
        bodies[:, 36:37],  # 19: flat
        density,  # 20: texels per metre
    ]
    skin[index, slot] = np.concatenate(parts, 1)
    poses, skins, scenes = (
        torch.from_numpy(part.astype(np.float32)) for part in (pose, skin, scene)
    )
    return Layout(poses, skins, scenes, torch.tensor(counts, dtype=torch.int32))


def _camera_at(cameras: Array, time: float) -> tuple[Array, Array]:
    """(B, 3) places, and (B, 3, 3) from the axes of the camera to those of the world."""
    place, tilt, velocity, turn, rest = np.split(cameras, [3, 6, 9, 12], axis=1)
    orbit, bob, rate, phase, returns = rest.T[..., None]
    passed = np.sin(returns * time) / returns
    step = bob * (np.sin(rate * time + phase) - np.sin(phase))
    shake = np.concatenate([0.3 * step, 0.2 * step, 0.2 * step], 1)
    turned = _rotation(turn * passed + shake)
    to_world = turned @ _rotation(tilt)
    moved = place + velocity * passed + step * np.array([0.6, 1.0, 0.0])
    pivot = orbit * np.array([0.0, 0.0, 1.0])  # ahead of the camera, at its height
    moved = moved + pivot - _apply(turned, pivot)
    return moved, to_world


def _bodies_at(bodies: Array, things: Array, time: float) -> tuple[Array, Array]:
    """(M, 3, 3) rotations and (M, 3) middles of bodies in the world."""
    place, heading, velocity, spin, returns = np.split(things, [3, 6, 9, 12], axis=1)
    rate = np.where(returns > 0, returns, 1.0)
    passed = np.where(returns > 0, np.sin(rate * time) / rate, time)
    of_thing = _rotation(spin * passed) @ _rotation(heading)
    axis, pivot = bodies[:, 11:14], bodies[:, 14:17]
    rate, swing, phase = bodies[:, 17:20].T[..., None]
    angle = np.where(swing != 0, swing * np.sin(rate * time + phase), rate * time)
    joint = _rotation(axis * angle)
    in_thing = pivot + _apply(joint, bodies[:, 4:7] - pivot)
    rotation = of_thing @ joint @ _rotation(bodies[:, 7:10])
    return rotation, _apply(of_thing, in_thing) + place + velocity * passed


def _pose_rows(
    bodies: Array, rotation: Array, middle: Array, camera: Sequence[Array], time: float, size: Size
) -> Array:
    """(M, POSE) in the axes of the camera: its place, its axes, the light and the focal length."""
    place, to_world, light, focal = camera
    form, scale = bodies[:, 0], bodies[:, 1:4]
    to_camera = to_world.transpose(0, 2, 1)
    forward = to_camera @ rotation * scale[:, None]  # (M, 3, 3) from its own axes
    backward = (to_camera @ rotation).transpose(0, 2, 1) / scale[..., None]
    at = np.where((form == SKY)[:, None], 0.0, middle - place)  # the sky is infinitely far
    center = _apply(to_camera, at)
    origin = -_apply(backward, center)
    bend = np.sin(bodies[:, 35] * time + bodies[:, 32])[:, None]
    flat = np.where((form == CUTOUT)[:, None], (1.25, 1.25, 0.0), 1.0)  # it may bend outwards
    corners = _CORNERS * flat[:, None]
    around = np.einsum("mij,mcj->mci", rotation * scale[:, None], corners) + at[:, None]
    everywhere = np.isin(form, (SKY, GROUND, ROOM))
    bounds = _bounds(around, to_camera, focal, size, everywhere)
    # corners of bodies, and where their shadows meet the ground: (M, 16, 3)
    sun = light[:, None, :3]
    height = np.maximum(-(around[..., 1] + place[:, None, 1]), 0) + 0.1  # above the ground
    fallen = around - (height / -sun[..., 1])[..., None] * sun
    shadow = np.concatenate([around, fallen], 1)
    shadows = _bounds(shadow, to_camera, focal, size, np.zeros_like(everywhere))
    shadows[everywhere | (light[:, 4] == 0)] = _AWAY  # nothing that casts a shadow
    return np.concatenate(
        [backward.reshape(-1, 9), origin, forward.reshape(-1, 9), center, bend, bounds, shadows], 1
    )


def _bounds(points: Array, to_camera: Array, focal: Array, size: Size, everywhere: Array) -> Array:
    """(M, 4) left, top, right and bottom in px of points (M, C, 3), with a margin of a pixel."""
    seen = np.einsum("mij,mcj->mci", to_camera, points)
    depth = seen[..., 2:]
    ahead = depth[..., 0] > NEAR
    half = (np.array([size[1], size[0]]) - 1) / 2
    place = seen[..., :2] / np.maximum(depth, NEAR) * focal[:, None, None] + half
    result = np.concatenate([place.min(1) - 1, place.max(1) + 1], 1)
    result[~ahead.any(1)] = _AWAY
    partly = ahead.any(1) & ~ahead.all(1)
    result[partly | everywhere] = (-1, -1, size[1], size[0])
    outside = (result[:, :2] > half * 2).any(1) | (result[:, 2:] < 0).any(1)
    result[outside] = _AWAY
    return result


def _rotation(vectors: Array) -> Array:
    """(N, 3) axis times angle -> (N, 3, 3)."""
    angle = np.linalg.norm(vectors, axis=1)[:, None, None]
    x, y, z = (vectors / np.maximum(angle[..., 0], 1e-12)).T
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).reshape(-1, 3, 3)
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * (cross @ cross)


def _apply(matrices: Array, vectors: Array) -> Array:
    """(N, 3, 3) and (N, 3) -> (N, 3)."""
    return np.einsum("nij,nj->ni", matrices, vectors)
