"""Pictures of the flows of a video, drawn on the device if that is faster."""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import ceil, isqrt

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, unknown_name
from ..estimation.warping import warp
from ..files import Array
from ..pictures.visualize import OUT_OF_RANGE, color_wheel, confidence_to_grey, draw_arrows, tint
from .flows import FrameFlow
from .threads import arriving


def flow_colors(flow: Tensor, maximum: float | Tensor) -> Tensor:
    """(2, H, W) -> (H, W, 3) uint8: the picture of `visualize.flow_to_rgb`, on the device.

    Computed in float32, so some values differ by one.
    """
    known = flow.abs().amax(0) < 1e9  # false for NaN as well
    x, y = torch.where(known, flow, 0).unbind(0)
    saturation = torch.hypot(x, y) / maximum
    corners, slopes = _wheel(flow.device)  # (3, 55) each
    position = (torch.atan2(-y, -x) / torch.pi + 1) * ((corners.shape[1] - 1) / 2)
    below = position.long().flatten().expand(3, -1)
    hue = corners.gather(1, below) + slopes.gather(1, below) * (position % 1).flatten()
    hue = hue.unflatten(1, x.shape)
    color = torch.where(saturation <= 1, 1 - saturation * (1 - hue), hue * OUT_OF_RANGE)
    return torch.where(known, 255 * color, 0).to(torch.uint8).permute(1, 2, 0).contiguous()


@lru_cache(maxsize=4)
@torch.inference_mode(mode=False)
def _wheel(device: torch.device) -> tuple[Tensor, Tensor]:
    """Colours, and the differences to the next colours, by channel."""
    wheel = torch.from_numpy(color_wheel().T.copy())
    slopes = wheel.roll(-1, 1) - wheel
    return wheel.float().to(device), slopes.float().to(device)


def _overlay(flow: FrameFlow, maximum: Tensor) -> Array:
    return tint(flow.images[0], flow_colors(flow.flow, maximum).cpu().numpy())


def _arrows(flow: FrameFlow, maximum: Tensor) -> Array:
    return draw_arrows(flow.images[0], flow.result.flow, maximum=float(maximum))


def _grey(values: Array) -> Array:
    return np.dstack([confidence_to_grey(values)] * 3)


def _difference(flow: FrameFlow) -> Tensor:
    """Difference of frame 1 and frame 2 warped by the flow; black where the flow leads outside."""
    first, second = (
        torch.from_numpy(image).to(flow.flow.device).permute(2, 0, 1)[None].float()
        for image in flow.images
    )
    inside = torch.ones_like(second[:, :1])
    warped, inside = warp(torch.cat([second, inside], 1), flow.flow[None]).split([3, 1], 1)
    difference = (warped - first).abs() * (inside > 0.999)
    return difference[0].byte().permute(1, 2, 0).contiguous()


PANELS: dict[str, Callable[[FrameFlow, Tensor], Array | Tensor]] = {
    "frame": lambda flow, maximum: flow.images[0],
    "wheel": lambda flow, maximum: flow_colors(flow.flow, maximum),
    "overlay": _overlay,
    "arrows": _arrows,
    "difference": lambda flow, maximum: _difference(flow),
    "confidence": lambda flow, maximum: _grey(flow.result.confidence),
    # white where a pixel of frame 1 is hidden in frame 2
    "occlusion": lambda flow, maximum: _grey(np.asarray(flow.result.occlusion)),
}


def parse_panels(text: str) -> tuple[str, ...]:
    """Read "frame,wheel": names of `PANELS`, in the order in which they are shown."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in PANELS:
            raise unknown_name("`show`", name, PANELS)
    if len(set(names)) < len(names):
        raise InputError(f"`show` names a picture twice: {text}")
    return names


def draw(panels: Sequence[str], flow: FrameFlow, maximum: Tensor) -> Callable[[], Array]:
    """Draw all panels; return a function that waits for them and puts them on one picture."""
    drawn = [PANELS[name](flow, maximum) for name in panels]
    return partial(_sheet, [arriving(one) if isinstance(one, Tensor) else one for one in drawn])


def _sheet(drawn: Sequence[Array | Callable[[], Array]]) -> Array:
    """(H, W, 3): two side by side, four as 2x2."""
    pictures = [picture() if callable(picture) else picture for picture in drawn]
    if len(pictures) == 1:
        return pictures[0].copy()  # what arrived from a device lies in memory that is scarce
    columns = isqrt(len(pictures) - 1) + 1
    rows = ceil(len(pictures) / columns)
    pictures += [np.zeros_like(pictures[0])] * (rows * columns - len(pictures))
    lines = [
        np.concatenate(pictures[start : start + columns], 1)
        for start in range(0, len(pictures), columns)
    ]
    return np.concatenate(lines)
