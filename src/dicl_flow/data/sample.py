"""A pair with its ground truth: on disk, in memory, and in a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..files import Array, read_disparity, read_flow, read_image, to_uint8

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class FlowPair:
    """The files of a pair."""

    name: str
    """Unique within its data set, as named by the benchmark: "alley_1/frame_0001"."""
    image1: Path
    image2: Path
    truth: Path | None = None
    """Flow file, or disparity file if `is_disparity`; None if there is no truth."""
    is_disparity: bool = False
    """The truth is the disparity of a rectified stereo pair: flow = (-disparity, 0)."""
    sparse: bool = False
    """The truth is known at scattered pixels only and must not be interpolated."""
    occlusion: Path | None = None
    """Image that is not black where a pixel of frame 1 is hidden in frame 2."""
    visible_truth: Path | None = None
    """The same truth without occluded pixels (KITTI flow_noc)."""
    invalid: Path | None = None
    """Image that is not black where the truth is unreliable (Sintel)."""
    valid_only: bool = False
    """Leave out the pixels of `invalid`; the published numbers count all pixels."""


@dataclass(frozen=True)
class FlowSample:
    """One pair in memory."""

    image1: Array
    """(H, W, 3) uint8 RGB."""
    image2: Array
    flow: Array
    """(H, W, 2) float32 in pixels, zero where invalid."""
    valid: Array
    """(H, W) bool."""
    occluded: Array | None = None
    """(H, W) bool; None if unknown."""


@dataclass(frozen=True)
class FlowBatch:
    """Samples of one size, as tensors."""

    image1: "Tensor"
    """(B, 3, H, W) float32 in [0, 1]."""
    image2: "Tensor"
    flow: "Tensor"
    """(B, 2, H, W) float32."""
    valid: "Tensor"
    """(B, H, W) bool."""

    def to(self, device: "torch.device | str") -> "FlowBatch":
        """Return the batch on `device`."""
        tensors = (self.image1, self.image2, self.flow, self.valid)
        return FlowBatch(*(tensor.to(device, non_blocking=True) for tensor in tensors))


def read_frames(pair: FlowPair) -> tuple[Array, Array]:
    """Read the two frames, (H, W, 3) uint8 RGB of equal size; an error names the file."""
    image1, image2 = to_uint8(read_image(pair.image1)), to_uint8(read_image(pair.image2))
    if image1.shape != image2.shape:
        raise InputError(f"{pair.image1} and {pair.image2} differ in size")
    return image1, image2


def read_sample(pair: FlowPair) -> FlowSample:
    """Read a pair with its truth; an error names the file."""
    image1, image2 = read_frames(pair)
    if pair.truth is None:
        raise InputError(f"the pair {pair.name} has no ground truth")
    flow = _read_truth(pair.truth, is_disparity=pair.is_disparity)
    if flow.shape[:2] != image1.shape[:2]:
        raise InputError(f"{pair.truth} and {pair.image1} differ in size")
    valid = np.isfinite(flow[..., 0])
    if pair.valid_only and pair.invalid is not None:
        valid &= ~_read_mask(pair.invalid, valid.shape)
    flow[~valid] = 0
    return FlowSample(image1, image2, flow, valid, _read_occlusion(pair, valid))


def collate(samples: Sequence[FlowSample]) -> FlowBatch:
    """Stack samples of equal size into a batch."""
    import torch

    sizes = {sample.flow.shape[:2] for sample in samples}
    if len(sizes) > 1:
        raise InputError(f"samples of a batch must have the same size, got {sorted(sizes)}")
    return FlowBatch(
        torch.stack([_image_tensor(sample.image1) for sample in samples]),
        torch.stack([_image_tensor(sample.image2) for sample in samples]),
        torch.stack(
            [torch.from_numpy(sample.flow.transpose(2, 0, 1).copy()) for sample in samples]
        ),
        torch.stack([torch.from_numpy(sample.valid.copy()) for sample in samples]),
    )


def _read_truth(path: Path, *, is_disparity: bool) -> Array:
    """(H, W, 2) float32, NaN where unknown."""
    if not is_disparity:
        return read_flow(path)
    disparity = read_disparity(path)
    return np.stack([-disparity, np.where(np.isnan(disparity), disparity, 0)], -1)


def _read_occlusion(pair: FlowPair, valid: Array) -> Array | None:
    if pair.occlusion is not None:
        return _read_mask(pair.occlusion, valid.shape)
    if pair.visible_truth is not None:
        return valid & ~np.isfinite(read_flow(pair.visible_truth)[..., 0])
    return None


def _read_mask(path: Path, size: tuple[int, ...]) -> Array:
    """(H, W) bool, true where the image is not black."""
    image = read_image(path)
    if image.shape[:2] != size:
        found = f"{image.shape[1]}x{image.shape[0]}"
        raise InputError(f"{path} is {found}, but its frame {size[1]}x{size[0]}")
    return np.any(image != 0, axis=2)


def _image_tensor(image: Array) -> "Tensor":
    import torch

    return torch.from_numpy(image.transpose(2, 0, 1).copy()).float() / 255
