"""Statistics of a data set: sizes, motion, occlusion."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ..files import Array
from .sample import FlowPair, FlowSample, read_frames, read_sample

_BIN = 0.02  # px
_NUM_BINS = 200_000  # up to 4000 px, above all quantiles of interest


@dataclass
class Survey:
    """Statistics of a data set, collected pair by pair in constant memory."""

    sizes: Counter[str] = field(default_factory=Counter)
    """Number of pairs by WIDTHxHEIGHT."""
    num_pixels: int = 0
    """Number of pixels in pairs with truth."""
    longest: float = 0.0
    """Length of the longest valid vector, in pixels."""
    with_masks: int = 0
    """Number of pairs with truth and an occlusion mask."""
    num_masked: int = 0
    """Number of valid pixels in these pairs."""
    num_occluded: int = 0
    """Number of these pixels that are occluded."""
    histogram: Array = field(default_factory=lambda: np.zeros(_NUM_BINS, np.int64), repr=False)
    """Number of valid pixels by length of flow."""

    def add(self, pair: FlowPair) -> FlowSample:
        """Read a pair and count it; without truth, no pixel of the sample is valid."""
        sample = read_sample(pair) if pair.truth else _without_truth(pair)
        height, width = sample.valid.shape
        self.sizes[f"{width}x{height}"] += 1
        if pair.truth:
            self._add_flow(sample)
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
            values["motion_median"] = self._motion_quantile(0.5)
            values["motion_p95"] = self._motion_quantile(0.95)
            values["motion_max"] = self.longest
        return values

    def _motion_quantile(self, share: float) -> float:
        counts = np.cumsum(self.histogram)
        return float(np.searchsorted(counts, share * counts[-1]) * _BIN)

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


def _without_truth(pair: FlowPair) -> FlowSample:
    image1, image2 = read_frames(pair)
    valid = np.zeros(image1.shape[:2], bool)
    return FlowSample(image1, image2, np.zeros((*valid.shape, 2), np.float32), valid)
