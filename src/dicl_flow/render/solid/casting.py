"""Casts rays at bodies: what is seen where, where it goes, and what hides it. In plain torch.

Each form is simple in its own coordinates q: a box is |q| <= 1 on all axes, an ellipsoid |q| <= 1,
a cylinder stands along y, a cone has its tip at y = -1, a cut-out lies in the plane z = 0 inside an
outline, a room is a box seen from inside, the ground is y = 0, the sky a direction. A point seen at
one time keeps its q (on a cut-out that bends: its place on the paper), so its flow follows from the
poses of its body. `ray_kernels` has the same in one pass.
"""

from collections.abc import Iterator
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ...ops import Size
from .things import BOX, CONE, CUTOUT, CYLINDER, ELLIPSOID, GROUND, ROOM, SKY
from .world import NEAR, Layout

FAR = 500.0  # metres: where the ground ends
INFINITE = 1e6  # the distance of the sky
TINY = 1e-9
ROUNDS = 12  # of the inversion of a bending: the error falls by at least 0.3 in each
HIDDEN = 0.005  # relative: what is nearer by more than this hides a point


def rays(scene: Tensor, size: Size) -> Tensor:
    """(SCENE,) -> (3, H, W) directions through all pixels, 1 along the axis of the camera."""
    y, x = (
        (torch.arange(side, device=scene.device, dtype=scene.dtype) - (side - 1) / 2) / scene[12]
        for side in size
    )
    x, y = x.expand(size), y[:, None].expand(size)
    return torch.stack([x, y, torch.ones_like(x)])


def _trace(
    pose: Tensor, skin: Tensor, count: int, directions: Tensor, shapes: Tensor
) -> tuple[Tensor, Tensor]:
    """(H, W) the numbers of the bodies that directions (3, H, W) hit first, and distances."""
    height, width = directions.shape[1:]
    body = torch.zeros(height, width, dtype=torch.int16, device=pose.device)
    distance = torch.full((height, width), INFINITE, dtype=pose.dtype, device=pose.device)
    for number, (left, top, right, bottom) in enumerate(pose[1:count, 25:29].tolist(), 1):
        rows = slice(max(0, int(top)), min(height, int(bottom) + 2))
        columns = slice(max(0, int(left)), min(width, int(right) + 2))
        if left > right or rows.start >= rows.stop or columns.start >= columns.stop:
            continue
        origin = pose[number, 9:12, None, None]
        along = turn(pose[number, :9], directions[:, rows, columns])
        found = hit(skin[number], pose[number, 24], origin, along, shapes)
        nearest = distance[rows, columns]
        nearer = found < nearest
        body[rows, columns].masked_fill_(nearer, number)
        nearest[nearer] = found[nearer]
    return body, distance


def turn(matrix: Tensor, vectors: Tensor) -> Tensor:
    """(9,), or (9, ...) for each vector, and (3, ...) -> (3, ...), in full precision."""
    x, y, z = vectors
    rows = matrix.reshape(3, 3, *(matrix.shape[1:] or [1] * x.ndim))
    return rows[:, 0] * x + rows[:, 1] * y + rows[:, 2] * z


def length(vectors: Tensor) -> Tensor:
    """(3, ...) -> (...)."""
    x, y, z = vectors
    return (x * x + y * y + z * z).sqrt()


def hit(skin: Tensor, bend: Tensor, origin: Tensor, along: Tensor, shapes: Tensor) -> Tensor:
    """Distance of the nearest hit beyond `NEAR`, in lengths of `along`; infinite: none.

    `origin` and `along` are (3, ...) in the coordinates of the body.
    """
    form = int(skin[0])
    if form in (BOX, ROOM):
        found = _hit_box(origin, along, inside=form == ROOM)
    elif form in (ELLIPSOID, CYLINDER, CONE):
        found = _hit_round(form, origin, along)
    else:
        axis = 1 if form == GROUND else 2
        found = -origin[axis] / _nonzero(along[axis])
        if form == GROUND:
            found = torch.where(found < FAR, found, torch.inf)
        elif form == CUTOUT:
            inside = _in_outline(skin, bend, (origin + found * along)[:2], shapes)
            found = torch.where(inside, found, torch.inf)
    return torch.where(found > NEAR, found, torch.inf)


def _nonzero(values: Tensor) -> Tensor:
    return torch.where(values.abs() < TINY, TINY, values)


def _hit_box(origin: Tensor, along: Tensor, *, inside: bool) -> Tensor:
    inverse = 1 / _nonzero(along)
    one, other = (-1 - origin) * inverse, (1 - origin) * inverse
    enter = torch.minimum(one, other).amax(0)
    leave = torch.maximum(one, other).amin(0)
    return torch.where(enter < leave, leave if inside else enter, torch.inf)


def _hit_round(form: int, origin: Tensor, along: Tensor) -> Tensor:
    """The nearest root of a quadratic equation, or of the flat end."""
    x, y, z = origin
    to_x, to_y, to_z = along
    a, b, c = to_x * to_x + to_z * to_z, x * to_x + z * to_z, x * x + z * z
    if form == ELLIPSOID:
        a, b, c = a + to_y * to_y, b + y * to_y, c + y * y - 1
    elif form == CYLINDER:
        c = c - 1
    else:
        a, b, c = a - to_y * to_y / 4, b - to_y * (1 + y) / 4, c - (1 + y) * (1 + y) / 4
    inner = b * b - a * c
    root, safe = inner.clamp_min(0).sqrt(), _nonzero(a)
    one, other = (-b - root) / safe, (-b + root) / safe
    found = torch.where(inner > 0, torch.minimum(one, other), torch.inf)
    if form == ELLIPSOID:
        return found
    found = torch.where((y + found * to_y).abs() <= 1, found, torch.inf)
    if form == CONE:  # the other root may be on the cone where the first is on its mirror image
        second = torch.where(inner > 0, torch.maximum(one, other), torch.inf)
        second = torch.where((y + second * to_y).abs() <= 1, second, torch.inf)
        found = torch.minimum(torch.where(found > NEAR, found, torch.inf), second)
    for end in (1.0,) if form == CONE else (-1.0, 1.0):
        lid = (end - y) / _nonzero(to_y)
        on_lid = (x + lid * to_x).square() + (z + lid * to_z).square() <= 1
        found = torch.minimum(found, torch.where(on_lid & (lid > NEAR), lid, torch.inf))
    return found


def _in_outline(skin: Tensor, bend: Tensor, place: Tensor, shapes: Tensor) -> Tensor:
    """Whether points (2, ...) of the plane of a cut-out are inside its outline."""
    x, y = paper(skin, bend, place)
    grid = torch.stack([x, y], -1).reshape(1, 1, -1, 2).clamp(-1, 1)
    grid = torch.where(grid.isfinite(), grid, 1.0)
    outline = shapes[int(skin[13])][None].to(grid.dtype)
    inside = F.grid_sample(outline, grid, padding_mode="border", align_corners=True)
    return (inside > 0).view(x.shape)


def paper(skin: Tensor, bend: Tensor, place: Tensor) -> Tensor:
    """(2, ...) points of the plane -> places on the paper that bends in it."""
    wave = bend * (skin[14] * place[0] + skin[15] * place[1] + skin[16]).sin()
    return torch.stack([place[0] + skin[17] * wave, place[1] + skin[18] * wave])


def off_paper(skin: Tensor, bend: Tensor, place: Tensor) -> Tensor:
    """Invert `paper`; the skin may be one of each point: (SKIN, ...)."""
    found = place
    for _ in range(ROUNDS):
        found = place + found - paper(skin, bend, found)
    return found


def move(layout: Layout, world: int, body: Tensor, q: Tensor, start: int, end: int) -> Tensor:
    """(3, ...) where points of bodies (...) seen at time `start` are at `end`, for the camera."""
    body, skins = body.long(), layout.skin[world]
    before, after = (layout.pose[time, world].T for time in (start, end))
    bends = (skins[:, 0] == CUTOUT)[body]
    if bool(bends.any()):
        papers = body[bends]
        skin = skins.T[:, papers]
        place = paper(skin, before[24, papers], q[:2, bends])
        q = q.clone()
        q[:2, bends] = off_paper(skin, after[24, papers], place)
    pose = after[12:24].contiguous().index_select(1, body.flatten()).unflatten(1, body.shape)
    return turn(pose[:9], q) + pose[9:]


def project(moved: Tensor, focal: Tensor, size: Size) -> Tensor:
    """(3, ...) -> (2, ...) in px; far outside if behind the camera."""
    height, width = size
    middle = moved.new_tensor([(width - 1) / 2, (height - 1) / 2])
    place = moved[:2] / moved[2].clamp_min(NEAR) * focal + middle.view(2, *[1] * (moved.ndim - 1))
    return torch.where(moved[2] > NEAR, place, 1e5)


def hidden(
    layout: Layout, world: int, time: int, body: Tensor, moved: Tensor, shapes: Tensor
) -> Tensor:
    """(...) bool: whether something nearer hides points (3, ...) of the camera at `time`."""
    distance = torch.where(body == 0, INFINITE, moved[2]).clamp_min(NEAR)
    along = moved / moved[2].clamp_min(NEAR)
    result = moved[2] <= NEAR
    poses, skins = layout.pose[time, world], layout.skin[world]
    for number in range(1, int(layout.count[world])):
        pose = poses[number]
        origin = pose[9:12].view(3, *[1] * (moved.ndim - 1))
        found = hit(skins[number], pose[24], origin, turn(pose[:9], along), shapes)
        result = result | (found < distance * (1 - HIDDEN)) & (found < distance - 0.02)
    return result


def is_outside(place: Tensor, size: Size) -> Tensor:
    """(2, ...) in px -> (...) bool."""
    x, y = place
    return (x < -0.5) | (x > size[1] - 0.5) | (y < -0.5) | (y > size[0] - 0.5)


def normals(matrix: Tensor, form: Tensor, q: Tensor, along: Tensor) -> Tensor:
    """(3, ...) unit normals for the camera, against rays; `matrix` (9, ...) turns to body axes."""
    x, y, z = q
    axis = face_of(form, q)
    straight = torch.stack([(axis == number).to(q.dtype) for number in range(3)])
    side = torch.stack([2 * x, torch.where(form == CONE, -(1 + y) / 2, 0), 2 * z])
    leaning = ((form == CYLINDER) | (form == CONE)) & (axis != 1)
    bowed = (form == ELLIPSOID) | (form == SKY)
    local = torch.where(bowed, q, torch.where(leaning, side, straight))  # of any length
    normal = (matrix.unflatten(0, (3, 3)) * local[:, None]).sum(0)  # by the transposed inverse
    normal = normal / length(normal).clamp_min(1e-12)
    return torch.where((normal * along).sum(0) > 0, -normal, normal)


def face_of(form: Tensor, q: Tensor, flat: Tensor | None = None) -> Tensor:
    """(...) the axis, 0 to 2, that a surface looks along: the plane its texture lies in."""
    x, y, z = q.abs()
    axis = torch.where((x >= y) & (x >= z), 0, torch.where(y >= z, 1, 2))
    upright = torch.where(x >= z, 0, 2)
    radius = (x * x + z * z).sqrt()
    on_lid = (y > 0.9999) & (radius < 0.9999)
    on_base = (1 + q[1]) / 2 - radius > 1e-3
    axis = torch.where(form == CYLINDER, torch.where(on_lid, 1, upright), axis)
    axis = torch.where(form == CONE, torch.where(on_base, 1, upright), axis)
    axis = torch.where(form == GROUND, 1, torch.where(form == CUTOUT, 2, axis))
    return axis if flat is None else torch.where(flat > 0, 1, axis)


class View:
    """What is seen of worlds at the times of a layout: N = T·B frames, the first time first."""

    body: Tensor  # (N, H, W) int16
    distance: Tensor  # (N, H, W) along the axis of the camera, in metres

    def __init__(self, layout: Layout, shapes: Tensor, size: Size) -> None:
        self.layout, self.shapes, self.size = layout, shapes, size
        frames = [
            _trace(pose[b], layout.skin[b], int(layout.count[b]), rays(scene[b], size), shapes)
            for pose, scene in zip(layout.pose, layout.scene, strict=True)
            for b in range(layout.batch)
        ]
        self.body, self.distance = (torch.stack(parts) for parts in zip(*frames, strict=True))

    @cached_property
    def points(self) -> Tensor:
        """(N, 3, H, W) what is seen, in the coordinates of its body."""
        frames = []
        for number, body in enumerate(self.body):
            time, world = divmod(number, self.layout.batch)
            rows = self.layout.pose[time, world, :, :12].T.contiguous()
            pose = rows.index_select(1, body.long().flatten()).view(12, *self.size)
            reach = torch.where(body == 0, 1.0, self.distance[number])
            along = turn(pose[:9], rays(self.layout.scene[time, world], self.size))
            frames.append(torch.where(body == 0, 0.0, pose[9:12]) + reach * along)
        return torch.stack(frames)

    @cached_property
    def layer(self) -> Tensor:
        """(N, H, W) uint8: the thing that is seen."""
        things = self.layout.skin[..., 1].repeat(len(self.layout.pose), 1)  # (N, K)
        body = self.body.long()
        return things.gather(1, body.flatten(1)).view(body.shape).to(torch.uint8)

    def flow(self, start: int, end: int) -> Tensor:
        """(B, 2, H, W) from one time to another, by their numbers."""
        q = self.points
        y, x = (torch.arange(side, device=q.device, dtype=q.dtype) for side in self.size)
        here = torch.stack([x.expand(self.size), y[:, None].expand(self.size)])
        return torch.stack([place - here for *_, place in self._moved(start, end)])

    def occluded(self, start: int = 0, end: int = 1) -> Tensor:
        """(B, H, W) bool: seen at one time, hidden or outside the frame at the other."""
        found = []
        for world, body, moved, place in self._moved(start, end):
            unseen = hidden(self.layout, world, end, body, moved, self.shapes)
            found.append(is_outside(place, self.size) | unseen)
        return torch.stack(found)

    def _moved(self, start: int, end: int) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Yield each world, the bodies seen at `start`, where their points are at `end`, in px."""
        for world in range(self.layout.batch):
            frame = start * self.layout.batch + world
            body = self.body[frame]
            moved = move(self.layout, world, body, self.points[frame], start, end)
            focal = self.layout.scene[end, world, 12]
            yield world, body, moved, project(moved, focal, self.size)
