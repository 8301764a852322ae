"""A pair with its truth, on disk, in memory and in a batch; statistics of many pairs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..files import Array, read_disparity, read_flow, read_image, to_uint8

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BIN = 0.02  # px
_NUM_BINS = 200_000  # up to 4000 px, above all quantiles of interest


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
        moved = (value.to(device, non_blocking=True) for value in vars(self).values())
        return type(self)(*moved)


class UnlabelledBatch(FlowBatch):
    """Pairs without ground truth: the photometric loss counts, if the settings have one.

    `flow` is an estimate that is trained on where `valid`; that may be nowhere.
    """


def read_frames(pair: FlowPair) -> tuple[Array, Array]:
    """Read the two frames, (H, W, 3) uint8 RGB of equal size; an error names the file."""
    image1, image2 = to_uint8(read_image(pair.image1)), to_uint8(read_image(pair.image2))
    _check_sizes((pair.image1, image1), (pair.image2, image2))
    return image1, image2


def check_inside(x: int, y: int, frame_size: tuple[int, ...]) -> None:
    """Refuse a pixel that a frame of (height, width) does not have."""
    height, width = frame_size
    if not (0 <= x < width and 0 <= y < height):
        raise InputError(
            f"the pixel {x} {y} is outside the {width}x{height} frame: x must be from 0 to "
            f"{width - 1}, y from 0 to {height - 1}"
        )


def _check_sizes(*files: tuple[Path, Array]) -> None:
    sizes = [f"{array.shape[1]}x{array.shape[0]}" for _, array in files]
    if len(set(sizes)) > 1:
        names = " and ".join(str(path) for path, _ in files)
        raise InputError(f"{names} differ in size: {' and '.join(sizes)}")


def read_sample(pair: FlowPair) -> FlowSample:
    """Read a pair with its truth; an error names the file."""
    image1, image2 = read_frames(pair)
    if pair.truth is None:
        raise InputError(f"the pair {pair.name} has no ground truth")
    if pair.is_disparity:
        disparity = read_disparity(pair.truth)
        flow = np.stack([-disparity, np.where(np.isnan(disparity), disparity, 0)], -1)
    else:
        flow = read_flow(pair.truth)
    _check_sizes((pair.truth, flow), (pair.image1, image1))
    valid = np.isfinite(flow[..., 0])
    if pair.valid_only and pair.invalid is not None:
        valid &= ~_read_mask(pair.invalid, valid.shape)
    flow[~valid] = 0
    occluded = None
    if pair.occlusion is not None:
        occluded = _read_mask(pair.occlusion, valid.shape)
    elif pair.visible_truth is not None:
        occluded = valid & ~np.isfinite(read_flow(pair.visible_truth)[..., 0])
    return FlowSample(image1, image2, flow, valid, occluded)


def collate(samples: Sequence[FlowSample]) -> FlowBatch:
    """Stack samples of equal size into a batch."""
    import torch

    sizes = {sample.flow.shape[:2] for sample in samples}
    if len(sizes) > 1:
        raise InputError(f"samples of a batch must have the same size, got {sorted(sizes)}")

    def stacked(name: str) -> "Tensor":
        arrays = np.stack([getattr(sample, name) for sample in samples])
        return torch.from_numpy(arrays if name == "valid" else arrays.transpose(0, 3, 1, 2).copy())

    image1, image2 = stacked("image1").float() / 255, stacked("image2").float() / 255
    return FlowBatch(image1, image2, stacked("flow"), stacked("valid"))


def _read_mask(path: Path, size: tuple[int, ...]) -> Array:
    """(H, W) bool, true where the image is not black."""
    image = read_image(path)
    if image.shape[:2] != size:
        shown = f"{image.shape[1]}x{image.shape[0]}"
        raise InputError(f"{path} is {shown}, but its frame {size[1]}x{size[0]}")
    return np.any(image != 0, axis=2)


@dataclass
class Survey:
    """Statistics of a data set, collected pair by pair in constant memory."""

    sizes: Counter[str] = field(default_factory=Counter)
    """Number of pairs by WIDTHxHEIGHT."""
    num_pixels: int = 0  # in pairs with truth
    longest: float = 0.0  # of the valid vectors, in pixels
    with_masks: int = 0  # pairs with truth and an occlusion mask
    num_masked: int = 0  # valid pixels in these pairs
    num_occluded: int = 0  # of these
    histogram: Array = field(default_factory=lambda: np.zeros(_NUM_BINS, np.int64), repr=False)
    """Number of valid pixels by length of flow."""

    def add(self, pair: FlowPair) -> FlowSample:
        """Read a pair and count it; without truth, no pixel of the sample is valid."""
        if pair.truth:
            sample = read_sample(pair)
            self._add_flow(sample)
        else:
            frames = read_frames(pair)
            valid = np.zeros(frames[0].shape[:2], bool)
            sample = FlowSample(*frames, np.zeros((*valid.shape, 2), np.float32), valid)
        height, width = sample.valid.shape
        self.sizes[f"{width}x{height}"] += 1
        return sample

    def summary(self) -> dict[str, str | float]:
        """Return sizes, the shares of valid and occluded pixels, and quantiles of motion in px.

        `with_occlusion` is the number of pairs with a mask; `occluded` is a share of their pixels.
        """
        sizes = (f"{size} ({count})" for size, count in self.sizes.most_common())
        values: dict[str, str | float] = {"sizes": ", ".join(sizes)}
        num_valid = int(self.histogram.sum())
        if self.num_pixels:
            values["valid"] = num_valid / self.num_pixels
        if self.with_masks:
            values["with_occlusion"] = self.with_masks
        if self.num_masked:
            values["occluded"] = self.num_occluded / self.num_masked
        if num_valid:
            counts = np.cumsum(self.histogram)
            for name, share in (("motion_median", 0.5), ("motion_p95", 0.95)):
                values[name] = float(np.searchsorted(counts, share * counts[-1]) * _BIN)
            values["motion_max"] = self.longest
        return values

    def _add_flow(self, sample: FlowSample) -> None:
        vectors = sample.flow[sample.valid]
        length = np.hypot(vectors[:, 0], vectors[:, 1])
        bins = np.minimum(np.rint(length / _BIN), _NUM_BINS - 1).astype(np.int64)
        self.histogram += np.bincount(bins, minlength=_NUM_BINS)
        self.num_pixels += sample.valid.size
        if sample.occluded is not None:
            self.with_masks += 1
            self.num_masked += int(sample.valid.sum())
            self.num_occluded += int((sample.occluded & sample.valid).sum())
        self.longest = max(self.longest, float(length.max(initial=0)))
