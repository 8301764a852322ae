"""Images of any size for a network that wants multiples, and its answers back at that size."""

from math import prod, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

WHITE = 1.0  # in normalised units, see docs/conventions.md
_MUCH = 1.25  # how many times `max_pixels` a frame may have after rounding


def pad_to_multiple(images: Tensor, multiple: int, padding: str = "replicate") -> Tensor:
    """Fill (B, C, H, W) at the right and the bottom until both sides divide by `multiple`.

    `padding` is "replicate" (repeat the border) or "white" (as the authors' KITTI weights
    expect).
    """
    size = (images.shape[-2], images.shape[-1])
    height, width = size_in_multiples(size, multiple)
    right, bottom = width - size[1], height - size[0]
    if padding == "white":
        return F.pad(images, (0, right, 0, bottom), value=WHITE)
    return F.pad(images, (0, right, 0, bottom), mode="replicate")


def crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Undo `pad_to_multiple`: keep the top left (height, width)."""
    return images[..., : size[0], : size[1]]


def size_in_multiples(size: tuple[int, int], multiple: int, max_pixels: int = 0) -> tuple[int, int]:
    """The next larger multiples of (height, width), or near ones of about `max_pixels`.

    At most a quarter more, unless it is one multiple a side.
    """
    # no ceil, no negative dividend: this is exported as it stands, and ONNX divides towards zero
    height, width = ((side + multiple - 1) // multiple * multiple for side in size)
    if not max_pixels or height * width <= max_pixels:
        return height, width
    scale = min(1.0, sqrt(max_pixels / (size[0] * size[1])))  # nothing is enlarged
    wanted = [side * scale / multiple for side in size]
    counts = [max(round(count), 1) for count in wanted]
    while prod(counts) * multiple**2 > _MUCH * max_pixels and counts != [1, 1]:
        most = max((0, 1), key=lambda i: (counts[i] > 1, counts[i] / wanted[i]))  # stretched
        counts[most] -= 1
    return counts[0] * multiple, counts[1] * multiple


def resize_pixels(images: Tensor, size: tuple[int, int], mode: str = "bilinear") -> Tensor:
    """Resize pictures: pixels are areas, and what is made smaller is averaged.

    `mode` is "bilinear" or "bicubic", which is sharper and can go beyond the range of values.
    """
    return F.interpolate(images, size=size, mode=mode, align_corners=False, antialias=True)


def upsample_pixels(tensor: Tensor, size: tuple[int, int]) -> Tensor:
    """Enlarge (B, C, H, W), pixels being areas: corners do not stay corners."""
    return F.interpolate(tensor, size=size, mode="bilinear", align_corners=False)


def resize_flow_pixels(flow: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize a flow as `resize_pixels` does pictures, its vectors with it."""
    x, y = upsample_pixels(flow, size).unbind(1)
    return torch.stack([x * (size[1] / flow.shape[-1]), y * (size[0] / flow.shape[-2])], 1)
