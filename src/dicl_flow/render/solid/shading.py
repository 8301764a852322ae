"""The colours of what is seen: textures, light, shadows, reflections, fog, and smooth edges.

Highlights and reflections depend on where the camera is, shadows on what is between a point and the
sun: none of them moves with the surface, and the true flow is that of the surface. In plain torch;
`color_kernels` has the same in one pass.
"""

from math import ceil, floor

import torch
from torch import Tensor

from ...ops import Size
from ..textures import MipAtlas
from .casting import FAR, INFINITE, View, face_of, hit, length, normals, paper, rays, turn
from .things import CUTOUT, ROOM, SKY

OFFSETS = ((-0.125, -0.375), (0.375, -0.125), (0.125, 0.375), (-0.375, 0.125))
"""Where an edge pixel is looked at: averaging these smooths steps in all directions."""
MAX_BLUR = 0.15  # smallest cosine for the footprint of a pixel on a surface that is seen at a slant
SHARPNESS = 24.0  # of highlights
PANE_SCALE = 0.7  # texels per px of the reflection in a pane
SOFT = 1.0  # mip level of reflections


def shade(view: View, textures: MipAtlas, fog: Tensor) -> tuple[Tensor, Tensor]:
    """(N, 3, H, W) colours, and (N, 1, H, W) depth in [0, 1], in fog (B, 4), of all frames."""
    looks = []
    for number, body in enumerate(view.body):
        time, world = divmod(number, view.layout.batch)
        frame = _Frame(view, time, world, textures, fog[world])
        looks.append(frame.look(body, view.distance[number]))
    colors, depths = zip(*looks, strict=True)
    return torch.stack(colors), torch.stack(depths)


def find_edges(surface: Tensor) -> Tensor:
    """(H, W) bool: whether one of the four neighbours is of another surface."""
    edge = torch.zeros_like(surface, dtype=torch.bool)
    across, down = surface[:, 1:] != surface[:, :-1], surface[1:] != surface[:-1]
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    edge[1:] |= down
    edge[:-1] |= down
    return edge


class _Frame:
    """What the colours of one frame depend on."""

    def __init__(self, view: View, time: int, world: int, textures: MipAtlas, fog: Tensor) -> None:
        layout, self.shapes, self.size = view.layout, view.shapes, view.size
        self.pose, self.skin = layout.pose[time, world], layout.skin[world]
        self.pose_rows, self.skin_rows = self.pose[:, :12].T.contiguous(), self.skin.T.contiguous()
        self.scene, self.count = layout.scene[time, world], int(layout.count[world])
        self.textures, self.fog = textures, fog
        self.bounds, self.shadow_bounds = self.pose[:, 25:29].tolist(), self.pose[:, 29:].tolist()
        self.casters = (self.pose[:, 29] < self.pose[:, 31]).nonzero()[:, 0].tolist()  # of shadows

    def look(self, body: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
        """(3, H, W) colours and (1, H, W) depth."""
        size = self.size
        sides = [torch.arange(side, device=body.device, dtype=distance.dtype) for side in size]
        y, x = torch.meshgrid(*sides, indexing="ij")
        pixels = _Pixels(x.flatten(), y.flatten(), size)
        along = rays(self.scene, size).flatten(1)
        color, surface = self._shade(body.flatten().long(), distance.flatten(), along, pixels)
        edge = find_edges(surface.view(size)).flatten().nonzero()[:, 0]
        if len(edge):
            near_x = torch.cat([pixels.x[edge] + to_x for to_x, _ in OFFSETS])
            near_y = torch.cat([pixels.y[edge] + to_y for _, to_y in OFFSETS])
            looks = self._look_at(near_x, near_y)
            color[:, edge] = looks.unflatten(1, (len(OFFSETS), -1)).mean(1)
        depth = 1 - (-distance[None] / self.scene[15]).exp()
        color = color.view(3, *size)
        color = torch.lerp(color, self.fog[1:, None, None], depth * self.fog[0])
        return self._behind_pane(color, pixels), depth

    def _look_at(self, x: Tensor, y: Tensor) -> Tensor:
        """(3, M) colours at positions (M,) in px."""
        height, width = self.size
        focal, pixels = self.scene[12], _Pixels(x, y)
        along = torch.stack([(x - (width - 1) / 2) / focal, (y - (height - 1) / 2) / focal])
        along = torch.cat([along, torch.ones_like(along[:1])])
        body = torch.zeros_like(x, dtype=torch.long)
        distance = torch.full_like(x, INFINITE)
        for number in range(1, self.count):
            inside = pixels.inside(self.bounds[number])
            if not len(inside):
                continue
            pose = self.pose[number]
            to = turn(pose[:9], along[:, inside])
            found = hit(self.skin[number], pose[24], pose[9:12, None], to, self.shapes)
            nearer = found < distance[inside]
            distance[inside[nearer]] = found[nearer]
            body[inside[nearer]] = number
        return self._shade(body, distance, along, pixels)[0]

    def _shade(
        self, body: Tensor, distance: Tensor, along: Tensor, pixels: "_Pixels"
    ) -> tuple[Tensor, Tensor]:
        """(3, M) colours without fog, and (M,) which surface it is, of M points."""
        pose, skin = self.pose_rows.index_select(1, body), self.skin_rows.index_select(1, body)
        form, is_sky = skin[0], body == 0
        reach = torch.where(is_sky, 1.0, distance)
        q = torch.where(is_sky, 0.0, pose[9:12]) + reach * turn(pose[:9], along)
        face = face_of(form, q, skin[19])
        view = along / length(along)
        normal = normals(pose[:9], form, q, view)
        facing = (normal * view).sum(0).abs()
        reflected = view - 2 * (normal * view).sum(0) * normal
        light, shine = self._light(distance * along, normal, reflected, is_sky, pixels)
        color = self._texture(q, body, face, skin, reach, facing) * skin[8:11] * light
        mirrors = ((skin[12] > 0) & ~is_sky).nonzero()[:, 0]
        if len(mirrors):
            image = self._surroundings(reflected[:, mirrors])
            color[:, mirrors] = torch.lerp(color[:, mirrors], image, skin[12, mirrors])
        return color + skin[11] * shine, body * 4 + face

    def _light(
        self, point: Tensor, normal: Tensor, reflected: Tensor, is_sky: Tensor, pixels: "_Pixels"
    ) -> tuple[Tensor, Tensor]:
        """(M,) the light on a surface, and its highlight."""
        sun, ambient = self.scene[9:12, None], self.scene[13]
        toward = (normal * sun).sum(0)
        if not bool(self.scene[14] > 0):
            light = ambient + (1 - ambient) * (0.5 + 0.5 * toward)
            return torch.where(is_sky, 1.0, light), torch.zeros_like(toward)
        lit = (toward > 0) & ~is_sky
        raised = point + normal * (0.01 + 0.002 * point[2])
        shadowed = torch.zeros_like(lit)
        for number in self.casters:
            inside = pixels.inside(self.shadow_bounds[number])
            inside = inside[lit[inside] & ~shadowed[inside]]
            if not len(inside):
                continue
            pose = self.pose[number]
            origin = turn(pose[:9], raised[:, inside] - pose[21:24, None])
            to = turn(pose[:9], sun).expand_as(origin)
            shadowed[inside] = hit(self.skin[number], pose[24], origin, to, self.shapes) < FAR
        lit &= ~shadowed
        light = ambient + (1 - ambient) * toward.clamp_min(0) * lit
        shine = (reflected * sun).sum(0).clamp_min(0) ** SHARPNESS * lit
        return torch.where(is_sky, 1.0, light), shine

    def _texture(
        self, q: Tensor, body: Tensor, face: Tensor, skin: Tensor, reach: Tensor, facing: Tensor
    ) -> Tensor:
        """(3, M) colours of the textures."""
        form = skin[0]
        papers = (form == CUTOUT).nonzero()[:, 0]
        if len(papers):
            of = body[papers]
            q = q.clone()
            q[:2, papers] = paper(self.skin[of].T, self.pose[of, 24], q[:2, papers])
        q = torch.where(form == SKY, q / q.abs().amax(0).clamp_min(1e-6), q)
        x, y, z = q * skin[5:8]
        u, v = torch.where(face == 0, z, x), torch.where(face == 1, z, y)
        wall = torch.where(form == ROOM, face + 3 * (q.gather(0, face[None])[0] > 0), 0)
        number = (skin[2] + wall) % self.textures.num_textures
        footprint = skin[20] * reach / self.scene[12]
        slant = torch.where(form == SKY, 1.0, facing.clamp_min(MAX_BLUR))
        level = (footprint / slant).clamp_min(1e-6).log2()
        height, width = self.textures.size
        return sample_mips(self.textures, number, skin[3] * width + u, skin[4] * height + v, level)

    def _surroundings(self, direction: Tensor) -> Tensor:
        """(3, M) colours that are reflected from directions (3, M) of the camera."""
        x, y, z = turn(self.scene[:9], direction)
        largest = torch.maximum(torch.maximum(x.abs(), y.abs()), z.abs()).clamp_min(1e-6)
        u = torch.where(x.abs() >= largest, z, x) / largest
        v = torch.where(y.abs() >= largest, z, y) / largest
        height, width = self.textures.size
        return self._reflection(self.scene[20], (1 + u) * width / 2, (1 + v) * height / 2)

    def _behind_pane(self, color: Tensor, pixels: "_Pixels") -> Tensor:
        """Add the reflection in a pane before the camera: it stays where it is."""
        if not bool(self.scene[16] > 0):
            return color
        height, width = self.textures.size
        u = self.scene[18] * width + PANE_SCALE * pixels.x
        v = self.scene[19] * height + PANE_SCALE * pixels.y
        image = self._reflection(self.scene[17], u, v)
        return torch.lerp(color, image.view_as(color), self.scene[16])

    def _reflection(self, number: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """(3, M) blurred colours at texels (u, v) of one texture."""
        level = torch.full_like(u, SOFT)
        return sample_mips(self.textures, number.expand_as(u), u, v, level)


class _Pixels:
    """Positions (M,) in px: of all pixels of a frame, or of some points."""

    def __init__(self, x: Tensor, y: Tensor, frame: Size | None = None) -> None:
        self.x, self.y, self.frame = x, y, frame

    def inside(self, bounds: list[float]) -> Tensor:
        """Return the indices of those inside the bounds."""
        left, top, right, bottom = bounds
        if self.frame is None:
            x, y = self.x, self.y
            return ((x >= left) & (x <= right) & (y >= top) & (y <= bottom)).nonzero()[:, 0]
        height, width = self.frame
        rows = torch.arange(max(0, ceil(top)), min(height, floor(bottom) + 1))
        columns = torch.arange(max(0, ceil(left)), min(width, floor(right) + 1))
        return (rows[:, None] * width + columns).flatten().to(self.x.device)


def sample_mips(textures: MipAtlas, number: Tensor, u: Tensor, v: Tensor, level: Tensor) -> Tensor:
    """(3, M) colours in [0, 1] at texels (u, v) of level 0, mirrored at the borders."""
    level = level.clamp(0, textures.num_levels - 1.001)
    coarse = level.floor()
    share = level - coarse
    fine = _sample_level(textures, number, u, v, coarse.long())
    return torch.lerp(fine, _sample_level(textures, number, u, v, coarse.long() + 1), share)


def _sample_level(
    textures: MipAtlas, number: Tensor, u: Tensor, v: Tensor, level: Tensor
) -> Tensor:
    height, width = textures.size
    firsts = torch.tensor(textures.firsts, device=u.device)
    tall, wide = height >> level, width >> level
    shrink = torch.exp2(-level.to(u.dtype))
    left, in_x = _cell(_mirrored(u * shrink - 0.5, wide), wide)
    top, in_y = _cell(_mirrored(v * shrink - 0.5, tall), tall)
    corner = firsts[level] + ((number.long() * tall + top) * wide + left) * 3
    offset = torch.arange(3, device=u.device)[:, None]

    def texel(place: Tensor) -> Tensor:
        return textures.texels[place + offset].to(u.dtype) / 255

    upper = torch.lerp(texel(corner), texel(corner + 3), in_x)
    corner = corner + 3 * wide
    return torch.lerp(upper, torch.lerp(texel(corner), texel(corner + 3), in_x), in_y)


def _mirrored(x: Tensor, side: Tensor) -> Tensor:
    """Positions -> inside [0, side - 1], mirrored at the borders, at most half a texel out."""
    away = (x + 0.5).abs()
    turns = (away / side).floor()
    rest = away - turns * side
    rest = torch.where(turns % 2 > 0.5, side - rest, rest)
    return torch.minimum((rest - 0.5).clamp_min(0), (side - 1).to(x.dtype))


def _cell(x: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
    """Positions in [0, side - 1] -> the cell between two texels, and the share of its right one."""
    left = torch.minimum(x.floor(), (side - 2).to(x.dtype))
    return left.long(), x - left
