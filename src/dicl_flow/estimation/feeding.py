"""Feeding: frames at the size that the network sees, and its output at the size of the frames."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from torch import Tensor

from ..config import ModelConfig
from ..ops import (
    Size,
    crop,
    pad_to_multiple,
    resize_flow_pixels,
    resize_pixels,
    size_in_multiples,
    size_of,
)


@dataclass(frozen=True)
class Feeding:
    """How frames are resized and padded for a network."""

    padding: str | None
    """How frames are padded to multiples; None: they are resized to multiples instead."""
    max_pixels: int
    """Frames with more pixels are scaled down to about this number; 0: never."""
    multiple: int
    """Both sides of what the network sees are multiples of this."""
    scale: float = 1.0
    """How many times larger than normal the network sees the frames."""

    @classmethod
    def of(cls, config: ModelConfig, scale: float = 1.0) -> "Feeding":
        """As the weights with this `config` expect their frames."""
        padding = None if config.resizes else config.padding
        return cls(padding, config.max_pixels, config.pad_multiple, scale)

    def resized(self, size: Size) -> Size:
        """The size to which frames of `size` are resized, before they are padded."""
        if self.padding is not None:
            return self._scaled(size)
        if self.scale < 1:  # the nearest multiples: the next larger ones cost more
            fewer = self.scale**2 * prod(size_in_multiples(size, self.multiple, self.max_pixels))
            return size_in_multiples(size, self.multiple, max(int(fewer), 1))
        limit = int(self.scale**2 * self.max_pixels)
        return size_in_multiples(self._scaled(size), self.multiple, limit)

    def seen(self, size: Size) -> Size:
        """The size at which the network sees frames of `size`."""
        return size_in_multiples(self.resized(size), self.multiple)

    def fit(self, image: Tensor) -> Tensor:
        """Bring (B, 3, H, W) in [-1, 1] to the size that the network sees."""
        if not self.keeps_pixels:
            image = self._resize_image(image, self.resized(size_of(image)))
        return image if self.padding is None else self._pad(image, self.padding)

    def fit_flow(self, flow: Tensor) -> Tensor:
        """(B, 2, H, W) in pixels of the frame -> in pixels of what the network sees of it."""
        if not self.keeps_pixels:
            flow = resize_flow_pixels(flow, self.resized(size_of(flow)))
        return flow if self.padding is None else self._pad(flow, "replicate")

    def unfit(self, values: Tensor, size: Size) -> Tensor:
        """Bring (B, C, h, w) values from the size that the network sees to the frame's `size`."""
        return self._unfit(values, size, resize_pixels)

    def unfit_flow(self, flow: Tensor, size: Size) -> Tensor:
        """Do the same with a flow, and scale its vectors."""
        return self._unfit(flow, size, resize_flow_pixels)

    def without_padding(self, values: Tensor, size: Size) -> Tensor:
        """Cut the padding off (B, C, h, w) values; the frame has the size `size`."""
        return values if self.padding is None else crop(values, self.resized(size))

    def _unfit(
        self, values: Tensor, size: Size, resize: Callable[[Tensor, Size], Tensor]
    ) -> Tensor:
        values = self.without_padding(values, size)
        return values if self.keeps_pixels else resize(values, size)

    @property
    def keeps_pixels(self) -> bool:
        """Whether frames are only padded. Sizes are not compared: an export has symbols there."""
        return self.padding is not None and self.scale == 1

    def _pad(self, values: Tensor, padding: str) -> Tensor:
        return pad_to_multiple(values, self.multiple, padding)

    def _scaled(self, size: Size) -> Size:
        if self.scale == 1:  # no arithmetic: an export for any size has symbols here
            return size
        height, width = (max(round(self.scale * side), 1) for side in size)
        return height, width

    def _resize_image(self, image: Tensor, size: Size) -> Tensor:
        if self.scale <= 1:
            return resize_pixels(image, size)
        return resize_pixels(image, size, "bicubic").clamp(-1, 1)
