"""New second frames made from real first frames: the flow that made them is their truth.

A first frame is warped forward with an estimated flow that is cleaned before: piecewise smooth,
with its steps at the edges of the picture. Where two surfaces meet, the one in front hides the
other; where nothing lands, the picture around the hole is mirrored into it.
"""

from itertools import combinations, product

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import (
    front_sources,
    landing_places,
    sample_clamped,
    sampling_grid,
    size_of,
    upsample_pixels,
)

_EDGE = 12.0  # how fast neighbours lose weight with the difference of their colours in [0, 1]
_SPACINGS = (4, 2, 1)  # px between the candidates of each round of cleaning
_SAME_SURFACE = 0.7  # px: the flow of neighbours on one surface differs by less
_REPEATS = 4  # of the search for what lands at a pixel
_SCALES = (0.6, 1.5)  # the motion is this many times that of the footage
_FAR_BEHIND = 0.25  # share of the frames in which what moves differently is behind
_MIRRORED = 3.0  # px that a farther pixel may be away, per px of difference in motion, to fill with
_EXACT = 0.05  # px: how well the way back leads to the pixel that it came from


@torch.no_grad()
def new_second_frame(
    image1: Tensor, flow: Tensor, valid: Tensor | None, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a second frame (B, 3, H, W), the flow that made it, and where it shows frame 1.

    `image1` is (B, 3, H, W) in [0, 1], `flow` (B, 2, H, W) an estimate, `valid` (B, H, W) bool
    where it is kept; elsewhere it is guessed from what is around. The motion is made longer or
    shorter at random. The returned flow (B, 2, H, W) is exact where the returned mask (B, H, W) is
    set: there the second frame shows the pixel of the first, not hidden and inside the frame.

    `generator` may be on any device; the same seed gives the same frames.
    """
    motion = clean_flow(flow, valid, image1)
    scale, order = _draw(len(flow), generator, flow)
    motion = motion * scale
    closeness = _closeness(motion, order)
    source = _visible_sources(motion, closeness)
    origin = _origins(motion, source)
    covered = source.unflatten(1, size_of(flow)) >= 0
    seen = sample_clamped(image1, _grid(origin))
    image2 = _fill_holes(seen, covered, _front_values(closeness, source))
    return image2, motion, _shows(motion, origin, covered)


def clean_flow(flow: Tensor, valid: Tensor | None, image: Tensor) -> Tensor:
    """Make a flow piecewise smooth: unknown parts filled, steps at the edges of the image.

    Each round replaces a vector by that of nine around it which is nearest to all the others;
    those of similar colour count more, and mixtures of two motions, where the flow is steep, count
    less. Then the vectors of one surface are averaged.
    """
    known = flow.isfinite().all(1, keepdim=True)
    if valid is not None:
        known = known & valid[:, None]
    cleaned = _fill(flow.where(known, 0), known.to(flow.dtype))
    for spacing in _SPACINGS:
        around = _neighbours(cleaned, spacing)
        weight = _likeness(image, spacing) * _neighbours(_steadiness(cleaned), spacing)[:, 0]
        best = _distances(around, weight).argmin(1)[:, None, None].expand(-1, 2, -1, -1, -1)
        cleaned = around.gather(2, best)[:, :, 0]
    return _smooth_surfaces(cleaned, image)


def _steadiness(flow: Tensor) -> Tensor:
    """(B, 1, H, W) in (0, 1]: how little the flow differs from that of the pixels around."""
    around = _neighbours(flow, 1)
    most = torch.stack([_length(near - flow) for near in around.unbind(2)], 1).amax(1, keepdim=True)
    return 1 / (1 + (most / _SAME_SURFACE) ** 2)


def _distances(around: Tensor, weight: Tensor) -> Tensor:
    """(B, 9, H, W): the weighted distance of each of nine vectors to all of them."""
    total = torch.zeros_like(weight)
    for one, other in combinations(range(weight.shape[1]), 2):
        distance = _length(around[:, :, one] - around[:, :, other])
        total[:, one].addcmul_(weight[:, other], distance)
        total[:, other].addcmul_(weight[:, one], distance)
    return total


def _smooth_surfaces(flow: Tensor, image: Tensor) -> Tensor:
    """Average twice with the neighbours on the same surface."""
    for spacing in (2, 1):
        around = _neighbours(flow, spacing)
        same = _length(around - flow[:, :, None]) < _SAME_SURFACE * spacing
        weight = _likeness(image, spacing) * same  # 1 for the pixel itself
        flow = (around * weight[:, None]).sum(2) / weight.sum(1)[:, None]
    return flow


def _neighbours(values: Tensor, spacing: int) -> Tensor:
    """(B, C, 9, H, W): the pixel itself and the eight around it at a distance of `spacing`."""
    height, width = size_of(values)
    padded = F.pad(values, [spacing] * 4, mode="replicate")
    starts = product((0, spacing, 2 * spacing), repeat=2)
    return torch.stack([padded[..., y : y + height, x : x + width] for y, x in starts], 2)


def _likeness(image: Tensor, spacing: int) -> Tensor:
    """(B, 9, H, W) in (0, 1]: how similar the colours of the neighbours are."""
    difference = (_neighbours(image, spacing) - image[:, :, None]).abs().mean(1)
    return (-_EDGE * difference).exp()


def _fill(values: Tensor, known: Tensor) -> Tensor:
    """Fill what is not known from coarser and coarser averages; zero if nothing is known."""
    if min(size_of(values)) == 1:
        return values
    pooled = F.avg_pool2d(torch.cat([values * known, known], 1), 2, ceil_mode=True)
    total, share = pooled[:, :-1], pooled[:, -1:]
    coarse = _fill(total / share.clamp(min=1e-6), (share > 0).to(values.dtype))
    return values.where(known > 0, upsample_pixels(coarse, size_of(values)))


def _draw(batch: int, generator: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor]:
    """How much longer the motion is, and 1 or -1: whether what moves differently is in front."""
    draws = torch.rand(2, batch, 1, 1, 1, generator=generator, device=generator.device)
    draws = draws.to(like.device, like.dtype)
    least, most = _SCALES
    scale = least * (most / least) ** draws[0]
    return scale, torch.where(draws[1, :, 0] < _FAR_BEHIND, -1.0, 1.0)


def _closeness(motion: Tensor, order: Tensor) -> Tensor:
    """(B, H, W): larger is nearer. Things move differently from the most frequent motion."""
    usual = motion.flatten(2).median(2).values[..., None, None]
    return order * _length(motion - usual)


def _visible_sources(motion: Tensor, closeness: Tensor) -> Tensor:
    """(B, N): which pixel of frame 1 is seen at each pixel of frame 2; -1: none."""
    size = size_of(motion)
    x, y = _pixels(motion)
    end_x, end_y = x + motion[:, 0], y + motion[:, 1]
    places = []
    for near_x in (end_x.floor(), end_x.floor() + 1):
        for near_y in (end_y.floor(), end_y.floor() + 1):
            back = torch.stack([near_x, near_y], 1) - motion  # where in frame 1 this would lie
            belongs = _is_same_surface(motion, back)
            places.append(landing_places(near_x, near_y, size).where(belongs, -1).flatten(1))
    return front_sources(torch.stack(places, 1), _ranks(closeness).flatten(1))


def _is_same_surface(motion: Tensor, position: Tensor) -> Tensor:
    """(B, H, W): whether the pixel nearest to a position has the motion of this one."""
    height, width = size_of(motion)
    x = position[:, 0].round().clamp(0, width - 1)
    y = position[:, 1].round().clamp(0, height - 1)
    nearest = torch.stack([x, y], 1)
    there = torch.stack([_values_at(part, nearest) for part in motion.unbind(1)], 1)
    return _length(there - motion) < _SAME_SURFACE


def _ranks(closeness: Tensor) -> Tensor:
    """Whole numbers from 0 to 2**20, in the order of closeness."""
    least, most = (edge(closeness, (1, 2), keepdim=True) for edge in (torch.amin, torch.amax))
    return ((closeness - least) / (most - least).clamp(min=1e-6) * 2**20).round().long()


def _origins(motion: Tensor, source: Tensor) -> Tensor:
    """(B, 2, H, W): the position in frame 1 that lands at each pixel of frame 2, to 1/100 px.

    Found by repeating p = q - flow(p), which stays on the surface of the visible pixel.
    """
    x, y = _pixels(motion)
    here = torch.stack(torch.broadcast_tensors(x, y))
    front = _front_values(motion, source)
    found = here - front
    for _ in range(_REPEATS):
        there = sample_clamped(motion, _grid(found))
        stays = _length(there - front)[:, None] < 2 * _SAME_SURFACE
        found = here - there.where(stays, front)
    return found


def _front_values(values: Tensor, source: Tensor) -> Tensor:
    """Values (B, H, W) or (B, C, H, W) of the visible pixels; of the first pixel where none is."""
    flat, number = values.flatten(-2), source.clamp(min=0)
    number = number if flat.ndim == 2 else number[:, None].expand_as(flat)
    return flat.gather(-1, number).view_as(values)


def _shows(motion: Tensor, origin: Tensor, covered: Tensor) -> Tensor:
    """(B, H, W): where the motion leads to a pixel whose way back leads here again."""
    x, y = _pixels(motion)
    grid = sampling_grid(motion)
    inside = (grid.abs() <= 1).all(-1)
    whole = sample_clamped(covered[:, None].to(motion.dtype), grid)[:, 0] > 0.999
    here = torch.stack(torch.broadcast_tensors(x, y))
    # the offset, not the position, so that nothing is lost in the sampling
    back = sample_clamped(origin - here, grid)
    return inside & whole & (_length(back + motion) < _EXACT)


def _fill_holes(image: Tensor, covered: Tensor, closeness: Tensor) -> Tensor:
    """Mirror into each hole what is beyond the farthest surface at its edge."""
    x, y = _pixels(image)
    height, width = size_of(image)
    edge = _nearest_covered(covered, closeness)  # (B, 2, H, W)
    mirrored = torch.stack(
        [(2 * edge[:, 0] - x).clamp(0, width - 1), (2 * edge[:, 1] - y).clamp(0, height - 1)], 1
    )
    # what is mirrored must be of the same surface as the edge, else the edge itself is repeated
    step = (_values_at(closeness, mirrored) - _values_at(closeness, edge)).abs()
    is_same = _values_at(covered, mirrored) & (step < 2 * _SAME_SURFACE)
    taken = mirrored.where(is_same[:, None], edge)
    filled = torch.stack([_values_at(channel, taken) for channel in image.unbind(1)], 1)
    return image.where(covered[:, None], filled)


def _nearest_covered(covered: Tensor, closeness: Tensor) -> Tensor:
    """(B, 2, H, W) whole numbers, x and y: the nearest pixel that is not a hole.

    What appears belongs to what was behind, so nearer surfaces count as farther away. Each round
    asks pixels at half the distance of the round before.
    """
    x, y = (part.expand_as(covered).float() for part in _pixels(covered))
    least = closeness.flatten(1).amin(1)[:, None, None]
    penalty = (_MIRRORED * (closeness - least)).where(covered, torch.inf)
    best, found = penalty, torch.stack([x, y], 1)
    step = 1 << (max(size_of(covered)) - 1).bit_length()
    while step := step // 2:
        for across, down in product((-step, 0, step), repeat=2):
            asked = landing_places(x + across, y + down, size_of(covered)).flatten(1)
            number = asked.clamp(min=0)[:, None].expand(-1, 2, -1)
            candidate = found.flatten(2).gather(2, number).view_as(found)
            away = torch.hypot(candidate[:, 0] - x, candidate[:, 1] - y)
            cost = _values_at(penalty, candidate) + away
            cost = cost.where((asked >= 0).view_as(covered), torch.inf)
            nearer = cost < best
            best = cost.where(nearer, best)
            found = candidate.where(nearer[:, None], found)
    return found.long()


def _values_at(values: Tensor, position: Tensor) -> Tensor:
    """Look up (B, H, W) at whole positions (B, 2, H, W) inside the frame."""
    number = (position[:, 1] * values.shape[-1] + position[:, 0]).long()
    return values.flatten(1).gather(1, number.flatten(1)).view_as(number)


def _length(vectors: Tensor) -> Tensor:
    return torch.hypot(vectors[:, 0], vectors[:, 1])


def _grid(position: Tensor) -> Tensor:
    """Positions (B, 2, H, W) in px -> what grid_sample takes."""
    height, width = size_of(position)
    x = 2 * position[:, 0] / max(width - 1, 1) - 1
    y = 2 * position[:, 1] / max(height - 1, 1) - 1
    return torch.stack([x, y], -1)


def _pixels(like: Tensor) -> tuple[Tensor, Tensor]:
    """Columns (W,) and rows (H, 1)."""
    height, width = size_of(like)
    x = torch.arange(width, device=like.device)
    return x, torch.arange(height, device=like.device)[:, None]
