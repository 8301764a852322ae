"""Frames as the network sees them, and its answers at their own size again."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from torch import Tensor

from ..config import ModelConfig
from ..ops import crop, pad_to_multiple, resize_flow_pixels, resize_pixels, size_in_multiples

Size = tuple[int, int]  # (height, width)


@dataclass(frozen=True)
class Feeding:
    """How the weights of `config` want their frames, at `scale` times the normal size."""

    config: ModelConfig
    scale: float = 1.0

    def seen(self, size: Size) -> Size:
        """What the network sees of frames of `size`."""
        config = self.config
        multiple, limit = config.pad_multiple, config.max_pixels
        if self.scale < 1 and config.padding == "resize":  # near multiples: larger ones cost more
            fewer = self.scale**2 * prod(size_in_multiples(size, multiple, limit))
            return size_in_multiples(size, multiple, max(int(fewer), 1))
        return size_in_multiples(self._scaled(size), multiple, int(self.scale**2 * limit))

    def fit(self, image: Tensor) -> Tensor:
        """Give (B, 3, H, W) in [-1, 1] sides that the network takes, as its weights expect."""
        size = size_of(image)
        if self.config.padding == "resize":
            return self._resized(image, self.seen(size))
        if self.scale != 1:
            image = self._resized(image, self._scaled(size))
        return pad_to_multiple(image, self.config.pad_multiple, self.config.padding)

    def fit_flow(self, flow: Tensor) -> Tensor:
        """(B, 2, H, W) in pixels of the frame -> in pixels of what the network sees of it."""
        size = size_of(flow)
        if self.config.padding == "resize":
            return resize_flow_pixels(flow, self.seen(size))
        if self.scale != 1:
            flow = resize_flow_pixels(flow, self._scaled(size))
        return pad_to_multiple(flow, self.config.pad_multiple)

    def unfit(self, values: Tensor, size: Size) -> Tensor:
        """Bring (B, C, h, w) values of what the network sees to the frame's `size`."""
        return self._unfit(values, size, resize_pixels)

    def unfit_flow(self, flow: Tensor, size: Size) -> Tensor:
        """Do the same with a flow, its vectors with it."""
        return self._unfit(flow, size, resize_flow_pixels)

    def _unfit(
        self, values: Tensor, size: Size, resize: Callable[[Tensor, Size], Tensor]
    ) -> Tensor:
        if self.config.padding == "resize":
            return resize(values, size)
        cropped = self.without_padding(values, size)
        return cropped if self.scale == 1 else resize(cropped, size)

    def without_padding(self, values: Tensor, size: Size) -> Tensor:
        """Cut off of (B, C, h, w) values of what the network sees what is not of the frame."""
        return values if self.config.padding == "resize" else crop(values, self._scaled(size))

    def _scaled(self, size: Size) -> Size:
        if self.scale == 1:  # no arithmetic: an export for any size has symbols here
            return size
        height, width = (max(round(self.scale * side), 1) for side in size)
        return height, width

    def _resized(self, image: Tensor, size: Size) -> Tensor:
        if self.scale <= 1:
            return resize_pixels(image, size)
        return resize_pixels(image, size, "bicubic").clamp(-1, 1)


def size_of(tensor: Tensor) -> Size:
    """(height, width) of (B, C, H, W)."""
    return tensor.shape[-2], tensor.shape[-1]
