"""A pair with its truth, on disk, in memory and in a batch; statistics of many pairs."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError
from ..files import Array, read_image, read_npy, read_truth, to_uint8

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BIN = 0.02  # px
_NUM_BINS = 200_000  # up to 4000 px, above all quantiles of interest
_HIDDEN_OR_MOVING = 1  # the truth is that of a still world: wrong where something moves


@dataclass(frozen=True)
class FlowPair:
    """The files of a pair."""

    name: str
    """Unique within its data set, as named by the benchmark: "alley_1/frame_0001"."""
    image1: Path
    image2: Path
    truth: Path | None = None
    """Flow file, or disparity file; None if there is no truth."""
    encoding: str = "flow"
    """How `truth` is stored, as `files.read_truth` knows it; of a disparity, flow = (-d, 0)."""
    is_fine: bool = False
    """The truth has 2x2 vectors for each pixel of the frames, in pixels of the frames (Spring)."""
    sparse: bool = False
    """The truth is known at scattered pixels only and must not be interpolated."""
    occlusion: Path | None = None
    """Image that is not black where a pixel of frame 1 is hidden in frame 2 (Spring: but blue)."""
    outside: Path | None = None
    """Image that is not black where a pixel leaves frame 2, if `occlusion` does not say so."""
    codes: Path | None = None
    """TartanAir's mask (.npy): 0 visible, 1 hidden or moving, 10 hidden by itself, 100 outside."""
    regions: tuple[tuple[str, Path], ...] = ()
    """Images that are not black in a region, by its name, for separate scores (Spring)."""
    visible_truth: Path | None = None
    """The same truth without occluded pixels (KITTI flow_noc)."""
    invalid: Path | None = None
    """Image that is not black where the truth is unreliable (Sintel)."""
    valid_only: bool = False
    """Leave out the pixels of `invalid`; the published numbers count all pixels."""

    @property
    def needed(self) -> tuple[Path, ...]:
        """The files without which the pair is incomplete."""
        files = (self.image1, self.image2, self.truth, self.codes)
        return tuple(file for file in files if file is not None)

    @property
    def files(self) -> tuple[Path, ...]:
        """All files of the pair."""
        masks = (self.occlusion, self.outside, self.visible_truth, self.invalid)
        regions = (path for _, path in self.regions)
        return (*self.needed, *(mask for mask in masks if mask is not None), *regions)


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
    fine: Array | None = None
    """(H, W, 4, 2): the vectors of each pixel where the truth is finer than the frames."""
    regions: Mapping[str, Array] = field(default_factory=dict)
    """(H, W) bool by name."""


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
    flow, fine = _read_flow(pair, pair.truth, image1)
    vectors = flow[:, :, None] if fine is None else fine  # (H, W, 1 or 4, 2)
    valid = np.logical_and.reduce(np.isfinite(vectors[..., 0]), axis=2)
    if pair.valid_only and pair.invalid is not None:
        valid &= ~_read_mask(pair.invalid, valid.shape)
    codes = None if pair.codes is None else _read_codes(pair.codes, valid.shape)
    if codes is not None:
        valid &= codes != _HIDDEN_OR_MOVING
    flow[~valid] = 0
    occluded = _read_occluded(pair, valid) if codes is None else codes != 0
    regions = {name: _read_mask(path, valid.shape) for name, path in pair.regions}
    return FlowSample(image1, image2, flow, valid, occluded, fine, regions)


def _read_flow(pair: FlowPair, path: Path, image1: Array) -> tuple[Array, Array | None]:
    """Return the flow at the size of the frames and, if it is finer, all vectors of each pixel."""
    flow = read_truth(path, pair.encoding)
    if not pair.is_fine:
        _check_sizes((path, flow), (pair.image1, image1))
        return flow, None
    height, width = image1.shape[:2]
    if flow.shape[:2] != (2 * height, 2 * width):
        found = f"{flow.shape[1]}x{flow.shape[0]}"
        raise InputError(f"{path} is {found}, expected {2 * width}x{2 * height}: twice its frame")
    cells = flow.reshape(height, 2, width, 2, 2).swapaxes(1, 2)
    return flow[::2, ::2].copy(), cells.reshape(height, width, 4, 2)


def _read_occluded(pair: FlowPair, valid: Array) -> Array | None:
    if pair.occlusion is not None:
        occluded = _read_mask(pair.occlusion, valid.shape, channels=2 if pair.is_fine else 3)
        if pair.outside is not None:
            occluded |= _read_mask(pair.outside, valid.shape)
        return occluded
    if pair.visible_truth is not None:
        return valid & ~np.isfinite(read_truth(pair.visible_truth, pair.encoding)[..., 0])
    return None


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


def _read_mask(path: Path, size: tuple[int, ...], channels: int = 3) -> Array:
    """(H, W) bool, true where the image is not black in its first `channels`.

    Of an image twice as large, a pixel is true where at least two of its four are.
    """
    mask: Array = np.any(read_image(path)[..., :channels] != 0, axis=2)
    height, width = size
    if mask.shape == (2 * height, 2 * width):
        return mask.reshape(height, 2, width, 2).sum((1, 3)) >= 2
    if mask.shape != size:
        shown = f"{mask.shape[1]}x{mask.shape[0]}"
        raise InputError(f"{path} is {shown}, but its frame {size[1]}x{size[0]}")
    return mask


def _read_codes(path: Path, size: tuple[int, ...]) -> Array:
    codes = read_npy(path)
    if codes.shape != size or codes.dtype != np.uint8:
        expected = f"uint8 of shape {size}"
        raise InputError(f"{path} is {codes.dtype} of shape {codes.shape}, expected {expected}")
    return codes


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
