"""Pure tensor functions, without parameters: sizes, warping, and the readout of scores."""

from collections.abc import Callable
from functools import lru_cache
from math import log, prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]  # (height, width)
WHITE = 1.0  # in normalised units, see docs/conventions.md
_TOLERANCE = 1.25  # times `max_pixels` that a frame may have after rounding
INSIDE = 0.9999  # bilinear weight below which a sample counts as partly outside


def size_of(tensor: Tensor) -> Size:
    """(height, width) of (B, C, H, W)."""
    return tensor.shape[-2], tensor.shape[-1]


def normalize(images: Tensor) -> Tensor:
    """[0, 1] -> [-1, 1], what networks are trained on."""
    return (images - 0.5).mul_(2).clamp_(-1, 1)


def pad_to_multiple(images: Tensor, multiple: int, padding: str = "replicate") -> Tensor:
    """Pad (B, C, H, W) at the right and the bottom until both sides are multiples of `multiple`.

    `padding` is "replicate" (the border) or "white" (as the authors' KITTI weights expect).
    """
    size = size_of(images)
    height, width = size_in_multiples(size, multiple)
    right, bottom = width - size[1], height - size[0]
    if padding == "white":
        return F.pad(images, (0, right, 0, bottom), value=WHITE)
    return F.pad(images, (0, right, 0, bottom), mode="replicate")


def crop(images: Tensor, size: Size) -> Tensor:
    """Undo `pad_to_multiple`: keep the top left (height, width)."""
    return images[..., : size[0], : size[1]]


def size_in_multiples(size: Size, multiple: int, max_pixels: int = 0) -> Size:
    """The next larger multiples of (height, width), or near ones with about `max_pixels`.

    At most a quarter more than `max_pixels`, unless both sides are a single multiple.
    """
    # no ceil, no negative dividend: this is exported as it is, and ONNX rounds towards zero
    height, width = ((side + multiple - 1) // multiple * multiple for side in size)
    if not max_pixels or height * width <= max_pixels:
        return height, width
    scale = min(1.0, sqrt(max_pixels / (size[0] * size[1])))  # nothing is enlarged
    wanted = [side * scale / multiple for side in size]
    counts = [max(round(count), 1) for count in wanted]
    while prod(counts) * multiple**2 > _TOLERANCE * max_pixels and counts != [1, 1]:
        most_stretched = max((0, 1), key=lambda i: (counts[i] > 1, counts[i] / wanted[i]))
        counts[most_stretched] -= 1
    return counts[0] * multiple, counts[1] * multiple


def resize_pixels(images: Tensor, size: Size, mode: str = "bilinear") -> Tensor:
    """Resize images: pixels are areas, and reducing averages; "bicubic" can exceed the range."""
    return F.interpolate(images, size=size, mode=mode, align_corners=False, antialias=True)


def upsample_pixels(tensor: Tensor, size: Size) -> Tensor:
    """Enlarge (B, C, H, W) where pixels are areas: corners are not aligned."""
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=False)


def resize_flow_pixels(flow: Tensor, size: Size) -> Tensor:
    """Resize a flow where pixels are areas, and scale its vectors."""
    x, y = upsample_pixels(flow, size).unbind(1)
    return torch.stack([x * (size[1] / flow.shape[-1]), y * (size[0] / flow.shape[-2])], 1)


def resize(tensor: Tensor, size: Size) -> Tensor:
    """Bilinear resize of (B, C, H, W) to `size` (height, width); corners are aligned."""
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=True)


def resize_by_matrices(tensor: Tensor, size: Size, *, corners: bool = True) -> Tensor:
    """The same as `resize` as two matrix products, never below float32; autocast is off.

    Without `corners` the same as `upsample_pixels`: pixels are areas. On GPUs the gradient of a
    large upsampling is several times faster this way.
    """
    with torch.autocast(tensor.device.type, enabled=False):
        tensor = at_least_float32(tensor)
        rows, columns = (
            _hats(old, new, corners, tensor.dtype, tensor.device)
            for old, new in zip(tensor.shape[-2:], size, strict=True)
        )
        return rows @ (tensor @ columns.T)


def upsample_flow(
    flow: Tensor, size: Size, resize: Callable[[Tensor, Size], Tensor] = resize
) -> Tensor:
    """Resize a flow to `size` and scale its vectors to pixels of that size."""
    x, y = flow.unbind(1)
    scaled = torch.stack([x * (size[1] / flow.shape[-1]), y * (size[0] / flow.shape[-2])], 1)
    return resize(scaled, size)


@lru_cache(maxsize=64)  # training needs two for each level, in every step
@torch.inference_mode(mode=False)  # gradients could not use inference tensors
def _hats(old: int, new: int, corners: bool, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(new, old) weights of linear interpolation between `old` samples at `new` positions."""
    position = torch.linspace(0, old - 1, new, dtype=torch.float64, device=device)
    if not corners:
        centers = torch.arange(new, dtype=torch.float64, device=device) + 0.5
        position = (centers * (old / new) - 0.5).clamp(0, old - 1)
    sample = torch.arange(old, dtype=torch.float64, device=device)
    return (1 - (position[:, None] - sample).abs()).clamp(min=0).to(dtype)


def warp(features: Tensor, flow: Tensor) -> Tensor:
    """Sample (B, C, H, W) at p + flow(p); zero where the sample is partly outside.

    `flow` is (B, 2, H, W), x first, in pixels. The result has the precision of `features`.
    """
    warped, inside = warp_with_mask(features, flow)
    return warped * inside


def warp_with_mask(features: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
    """Sample like `warp`, unmasked; also the (B, 1, H, W) bool mask of samples fully inside."""
    grid = sampling_grid(flow)
    return _sample(features, grid), _sample(torch.ones_like(flow[:, :1]), grid) >= INSIDE


def warp_strictly_inside(features: Tensor, flow: Tensor) -> Tensor:
    """Sample like `warp`; zero where the sample is on the border of the image or outside."""
    grid = sampling_grid(flow)
    return _sample(features, grid) * (grid.abs() < 1).all(-1)[:, None]


def sampling_grid(flow: Tensor) -> Tensor:
    """(B, 2, H, W) flow in pixels -> (B, H, W, 2) positions, with -1 and 1 at pixel centres."""
    height, width = flow.shape[-2:]
    x = torch.arange(width, dtype=flow.dtype, device=flow.device)
    y = torch.arange(height, dtype=flow.dtype, device=flow.device)[:, None]
    grid_x = 2 * (x + flow[:, 0]) / max(width - 1, 1) - 1
    grid_y = 2 * (y + flow[:, 1]) / max(height - 1, 1) - 1
    return torch.stack([grid_x, grid_y], -1)


def sample_clamped(values: Tensor, grid: Tensor) -> Tensor:
    """Sample (B, C, H, W) at a (B, h, w, 2) grid of `sampling_grid`; outside, at the nearest edge.

    `padding_mode="border"` does the same, but MPS lacks it.
    """
    return _sample(values, grid.clamp(-1, 1))


def _sample(values: Tensor, grid: Tensor) -> Tensor:
    """Bilinear samples, zero outside, computed in the higher of both precisions."""
    dtype = torch.promote_types(values.dtype, grid.dtype)
    sampled = F.grid_sample(values.to(dtype), grid.to(dtype), align_corners=True)
    return sampled.to(values.dtype)


def displacement_windows(features: Tensor, radius: int) -> Tensor:
    """View (B, C, H, W) as (B, C, U, V, H, W): entry [u, v] is `features` moved by (u-r, v-r).

    U is horizontal, V vertical; moved by d means that pixel p shows p + d. Zero outside the image.
    The result is a view of one padded copy.
    """
    height, width = features.shape[-2:]
    padded = F.pad(features, [radius] * 4)
    if torch.compiler.is_exporting():  # unfold would fix this height and width in the file
        shifts = range(2 * radius + 1)
        rows = torch.stack([padded[..., v : v + height, :] for v in shifts], 2)
        return torch.stack([rows[..., u : u + width] for u in shifts], 2)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, V, U, H, W)
    return windows.transpose(2, 3)


def length(vectors: Tensor) -> Tensor:
    """(B, C, …) -> (B, …), with gradient 0 at 0. On a CPU, torch's norm takes 20 times as long."""
    squared = vectors.square().sum(1)
    zero = (squared == 0).to(squared.dtype)
    return (squared + zero).sqrt() - zero


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32; leave float32 and float64 as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def displacement_probability(scores: Tensor) -> Tensor:
    """Softmax of (B, U, V, H, W) scores over the U·V displacements."""
    flat = at_least_float32(scores).flatten(1, 2)
    return flat.softmax(1).unflatten(1, scores.shape[1:3])


def expected_displacement(probability: Tensor) -> Tensor:
    """2-D soft-argmax: (B, U, V, H, W) -> (B, 2, H, W), x first, in pixels of this level."""
    dtype, device, (num_u, num_v) = probability.dtype, probability.device, probability.shape[1:3]
    horizontal = torch.arange(-(num_u // 2), num_u // 2 + 1, dtype=dtype, device=device)
    vertical = torch.arange(-(num_v // 2), num_v // 2 + 1, dtype=dtype, device=device)
    x = (probability.sum(2) * horizontal[:, None, None]).sum(1)  # (B, H, W)
    y = (probability.sum(1) * vertical[:, None, None]).sum(1)
    return torch.stack([x, y], 1)


def normalized_entropy(probability: Tensor) -> Tensor:
    """Ambiguity of (B, U, V, H, W): (B, 1, H, W), 0 for a single peak, 1 if all are equal."""
    smallest = torch.finfo(probability.dtype).tiny  # 0 · log 0 is 0
    entropy = -(probability * probability.clamp_min(smallest).log()).sum((1, 2))
    num_hypotheses = probability.shape[1] * probability.shape[2]
    return (entropy / log(num_hypotheses)).unsqueeze(1)


def truncate_scores(scores: Tensor, radius: int) -> Tensor:
    """Make (B, U, V, H, W) scores -inf farther than `radius` from the best one, on either axis."""
    num_u, num_v = scores.shape[1:3]
    peak = scores.flatten(1, 2).argmax(1)[:, None, None]  # (B, 1, 1, H, W)
    u = torch.arange(num_u, device=scores.device)[:, None, None, None]
    v = torch.arange(num_v, device=scores.device)[:, None, None]
    far = ((u - peak // num_v).abs() > radius) | ((v - peak % num_v).abs() > radius)
    return scores.masked_fill(far, -torch.inf)


def landing_places(x: Tensor, y: Tensor, size: Size) -> Tensor:
    """Whole positions -> the number of that pixel, row by row; -1 outside (height, width)."""
    height, width = size
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)  # False for NaN
    return torch.where(inside, y * width + x, -1).long()


def front_sources(place: Tensor, rank: Tensor) -> Tensor:
    """(B, N): the source of the highest rank that lands at each of N pixels; -1: none does.

    `place` (B, K, N) are the pixels at which each of N sources lands, -1 for nowhere, and `rank`
    (B, N) whole numbers from 0 to 2**20. Whole numbers give the same result on each device.
    """
    batch, copies, number = place.shape
    source = torch.arange(number, device=place.device)
    key = (rank.long() * number + source)[:, None].expand(-1, copies, -1)
    nowhere = place.new_full((batch, number + 1), -1)
    highest = nowhere.scatter_reduce(
        1, place.where(place >= 0, number).flatten(1), key.flatten(1), "amax"
    )[:, :number]
    return torch.where(highest >= 0, highest % number, -1)
