"""Images and flows in the forms that users have them -> tensors, at the size a network sees."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias, runtime_checkable

import cv2
import numpy as np
import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import InputError
from ..files import Array, check_unit_range, read_image, read_seen, to_uint8
from ..ops import (
    Size,
    crop,
    pad_to_multiple,
    resize_flow_pixels,
    resize_pixels,
    size_in_multiples,
    size_of,
)


@runtime_checkable
class Picture(Protocol):
    """An image of PIL, which need not be installed."""

    @property
    def mode(self) -> str:
        """How its pixels are stored."""

    def convert(self, mode: str) -> Any:
        """Return it in another mode."""


Image: TypeAlias = str | Path | Array | Tensor | Picture
ImageInput: TypeAlias = Image | Sequence[Image]

_MODES = ("L", "RGB", "RGBA", "F")  # of PIL, that are arrays as ours
_WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}  # full scale of integer images
_DEMO = Path(__file__).parents[1] / "demo"
_AHEAD = 4  # frames: the device does not wait for a host thread that is some milliseconds late


def image_batch(image: ImageInput, device: torch.device | str = "cpu") -> tuple[Tensor, bool]:
    """Return (B, 3, H, W) float32 in [0, 1] on `device`, and whether the input was a batch.

    A path is read; an array is (H, W), (H, W, C) or (B, H, W, C); a tensor is (C, H, W) or
    (B, C, H, W); C is 1, 3 or 4 (transparency is dropped). Integers are uint8 or uint16,
    floats lie in [0, 1]. An image of PIL is an array; in the modes I, of 16 bits. A list of images
    of one size is a batch.
    """
    if isinstance(image, str | Path):
        return _unit_range(_from_array(read_seen(image))).to(device), False
    if isinstance(image, list | tuple):
        return _stack(image).to(device), True
    if isinstance(image, Tensor):
        return _unit_range(_from_tensor(image)).to(device), image.ndim == 4
    array = _from_picture(image) if isinstance(image, Picture) else np.asarray(image)
    return _unit_range(_from_array(array, device)).to(device), array.ndim == 4


def flow_batch(flow: Array | Tensor, images: Tensor) -> Tensor:
    """Return (B, 2, H, W) float32 on the device of `images`, which are (B, 3, H, W).

    An array is (H, W, 2) or (B, H, W, 2), a tensor (2, H, W) or (B, 2, H, W).
    """
    batch, _, height, width = images.shape
    single = (2, height, width) if isinstance(flow, Tensor) else (height, width, 2)
    expected = single if batch == 1 else (batch, *single)
    if tuple(flow.shape) not in (expected, (batch, *single)):
        raise InputError(
            f"the initial flow has the shape {tuple(flow.shape)}; frames of {width}x{height} "
            f"need {expected}"
        )
    if not isinstance(flow, Tensor):
        flow = to_torch(flow).movedim(-1, -3)
    flow = (flow if flow.ndim == 4 else flow[None]).to(images.device, torch.float32)
    if not flow.isfinite().all():
        raise InputError("the initial flow is unknown at some pixels; fill them in first")
    return flow


def to_torch(array: Array) -> Tensor:
    """Return a tensor that shares memory with an array, if that is contiguous and writable.

    Torch would warn of a read-only one, as PIL and others make them.
    """
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _stack(images: Sequence[Image]) -> Tensor:
    if not images:
        raise InputError("got an empty list of images")
    tensors = [image_batch(image)[0] for image in images]
    shapes = {tuple(tensor.shape[-2:]) for tensor in tensors}
    if len(shapes) > 1:
        sizes = ", ".join(f"{width}x{height}" for height, width in sorted(shapes))
        raise InputError(f"images of a batch must have one size, got {sizes}")
    return torch.cat(tensors)


def _from_picture(picture: Picture) -> Array:
    """An image of PIL -> (H, W) or (H, W, C)."""
    if not picture.mode.startswith("I"):
        return np.asarray(picture if picture.mode in _MODES else picture.convert("RGB"))
    array = np.asarray(picture)  # (H, W) integers of up to 32 bits, in either byte order
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    if low < 0 or high > 65535:
        raise InputError(
            f"a PIL image of mode {picture.mode} must have 16 bits, values from 0 to 65535; got "
            f"{low} to {high}: convert it to mode F, in [0, 1]"
        )
    return array.astype(np.uint16)


def _from_array(array: Array, device: torch.device | str = "cpu") -> Tensor:
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim not in (3, 4) or array.shape[-1] not in (1, 3, 4):
        raise InputError(
            f"an image array has the shape (height, width, 3) or (batch, height, width, 3), "
            f"got {array.shape}; channel-first data goes in as a torch tensor"
        )
    tensor = to_torch(array)
    if array.dtype == np.uint8:  # bytes are the least to copy
        device = torch.device(device)
        tensor = _transfers(device)(tensor) if device.type == "cuda" else tensor.to(device)
    return _from_tensor(tensor.movedim(-1, -3).contiguous())


def _from_tensor(tensor: Tensor) -> Tensor:
    """(C, H, W) or (B, C, H, W) with 1, 3 or 4 channels -> (B, 3, H, W)."""
    if tensor.ndim not in (3, 4) or tensor.shape[-3] not in (1, 3, 4):
        raise InputError(
            f"an image tensor has the shape (3, height, width) or (batch, 3, height, width), "
            f"got {tuple(tensor.shape)}"
        )
    if not tensor.numel():
        raise InputError(f"the image is empty: shape {tuple(tensor.shape)}")
    tensor = tensor if tensor.ndim == 4 else tensor[None]
    return tensor.expand(-1, 3, -1, -1) if tensor.shape[1] == 1 else tensor[:, :3]


def _unit_range(tensor: Tensor) -> Tensor:
    if tensor.dtype in _WHITE:
        return tensor.float() / _WHITE[tensor.dtype]
    if not tensor.is_floating_point():
        raise InputError(f"images are uint8, uint16 or float, got {tensor.dtype}")
    tensor = tensor.float()
    check_unit_range(tensor.min().item(), tensor.max().item())
    return tensor


class _Transfers:
    """Copies frames in a second stream, at most `_AHEAD` frames ahead of the computation.

    From ordinary memory: pinning 1920x1080 first takes 13 ms on an H200, the copy 1 ms.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._begun, self._lock = deque[torch.cuda.Event](), Lock()

    def __call__(self, tensor: Tensor) -> Tensor:
        computing = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(self._stream):
            copy = tensor.to(self._stream.device)
        copy.record_stream(computing)  # its memory is free when that is done with it
        computing.wait_stream(self._stream)
        with self._lock:
            self._begun.append(computing.record_event())
            earlier = self._begun.popleft() if len(self._begun) > _AHEAD else None
        if earlier is not None:  # otherwise the frames of a fast caller fill the memory
            earlier.synchronize()
        return copy


_transfers = cache(_Transfers)  # one for each device


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
    frame_size: tuple[int, ...] = ()
    """(height, width) that every frame counts as, whatever its size; empty: its own."""

    @classmethod
    def of(cls, config: ModelConfig, scale: float = 1.0) -> "Feeding":
        """As the weights with this `config` expect their frames."""
        padding = None if config.resizes else config.padding
        fixed = config.frame_size
        limit = prod(fixed) if fixed else config.max_pixels
        return cls(padding, limit, config.pad_multiple, scale, fixed)

    def resized(self, size: Size) -> Size:
        """The size to which frames of `size` are resized, before they are padded."""
        if self.frame_size:
            size = (self.frame_size[0], self.frame_size[1])
        if self.padding is not None:
            return self._scaled(size)
        if self.scale < 1:  # the nearest multiples: the next larger ones cost more
            normal = size_in_multiples(size, self.multiple, self.max_pixels)
            fewer = max(int(self.scale**2 * prod(normal)), 1)
            return size_in_multiples(size, self.multiple, fewer)
        limit = int(self.scale**2 * self.max_pixels)
        return size_in_multiples(self._scaled(size), self.multiple, limit)

    def seen(self, size: Size) -> Size:
        """The size at which the network sees frames of `size`."""
        return size_in_multiples(self.resized(size), self.multiple)

    def scales_down(self, size: Size) -> bool:
        """Whether frames of `size` lose pixels."""
        return prod(self.resized(size)) < prod(size)

    def fit(self, image: Tensor) -> Tensor:
        """Bring (B, 3, H, W) in [-1, 1] to the size that the network sees."""
        if not self.keeps_pixels:
            size, enlarged = self.resized(size_of(image)), self.scale > 1
            image = resize_pixels(image, size, "bicubic" if enlarged else "bilinear")
            image = image.clamp(-1, 1) if enlarged else image
        padding = self.padding
        return image if padding is None else pad_to_multiple(image, self.multiple, padding)

    def fit_flow(self, flow: Tensor) -> Tensor:
        """(B, 2, H, W) in pixels of the frame -> in pixels of what the network sees of it."""
        if not self.keeps_pixels:
            flow = resize_flow_pixels(flow, self.resized(size_of(flow)))
        return flow if self.padding is None else pad_to_multiple(flow, self.multiple)

    def unfit(
        self, values: Tensor, size: Size, resize: Callable[..., Tensor] = resize_pixels
    ) -> Tensor:
        """Bring (B, C, h, w) values from the size that the network sees to the frame's `size`."""
        values = self.without_padding(values, size)
        return values if self.keeps_pixels else resize(values, size)

    def unfit_flow(self, flow: Tensor, size: Size) -> Tensor:
        """Do the same with a flow, and scale its vectors."""
        return self.unfit(flow, size, resize_flow_pixels)

    def without_padding(self, values: Tensor, size: Size) -> Tensor:
        """Cut the padding off (B, C, h, w) values; the frame has the size `size`."""
        return values if self.padding is None else crop(values, self.resized(size))

    @property
    def keeps_pixels(self) -> bool:
        """Whether frames are only padded. Sizes are not compared: an export has symbols there."""
        return self.padding is not None and self.scale == 1

    def _scaled(self, size: Size) -> Size:
        if self.scale == 1:  # no arithmetic: an export for any size has symbols here
            return size
        height, width = (max(round(self.scale * side), 1) for side in size)
        return height, width


def demo_frames(size: Size, count: int = 1, name: str = "rendered") -> tuple[Tensor, Tensor]:
    """Two (count, 3, H, W) uint8 images of `size`: a pair of the demo, "rendered" or "bunny"."""
    paths = sorted(_DEMO.glob(f"{name}_img?.*"))
    images = [cv2.resize(to_uint8(read_image(path)), size[::-1]) for path in paths]
    image1, image2 = (torch.from_numpy(i).permute(2, 0, 1).repeat(count, 1, 1, 1) for i in images)
    return image1, image2
