"""What users get: flow, confidence and occlusion, as arrays or as tensors on the device."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..files import Array, write_flow
from ..pictures.visualize import flow_to_rgb
from .confidence import find_occlusion


class Estimate(NamedTuple):
    """The flow of a batch in one direction, on the device."""

    flow: Tensor
    """(B, 2, H, W) float32: pixels, x right, y down."""
    confidence: Tensor
    """(B, 1, H, W) float32 in [0, 1]."""


def unpack(packed: Tensor) -> list[Estimate]:
    """Split a packed estimate, (B, C, H, W): a recording and a tile have one output.

    In each direction flow, confidence and, with C = 4 or 8, the sharpness, which is left out here:
    one minus the entropy of the finest match, in [0, 1].
    """
    channels = 3 if packed.shape[1] in (3, 6) else 4
    return [Estimate(part[:, :2], part[:, 2:3]) for part in packed.split(channels, 1)]


@dataclass(frozen=True)
class FlowResult:
    """The flow of one pair, or of a batch: then every array has a leading batch axis."""

    flow: Array
    """(H, W, 2) float32: pixels, x right, y down, from frame 1 to frame 2."""
    confidence: Array
    """(H, W) float32 in [0, 1]: the probability that the flow is right to 1 px. If
    `estimator.calibration` is None, one minus the entropy of the finest match: only a ranking.
    """
    occlusion: Array | None = None
    """(H, W) bool: pixels of this frame that are hidden in the other; with `backward=True`."""
    backward: "FlowResult | None" = None
    """The same from frame 2 to frame 1, for the pixels of frame 2; with `backward=True`."""

    def to_rgb(self, maximum: float | None = None) -> Array:
        """(H, W, 3) uint8: the Middlebury colour wheel; `maximum` px has full saturation."""
        return flow_to_rgb(self._single().flow, maximum)

    def save(self, path: str | Path) -> None:
        """Write the flow in the format of the extension: .flo, .png (KITTI), .pfm …, .exr."""
        write_flow(path, self._single().flow)

    def masked(self, min_confidence: float) -> "FlowResult":
        """Mark flow with less confidence as unknown: NaN, in both directions."""
        confident = self.confidence[..., None] >= min_confidence
        flow = np.where(confident, self.flow, np.float32(np.nan))
        backward = self.backward and self.backward.masked(min_confidence)
        return replace(self, flow=flow, backward=backward)

    def __len__(self) -> int:
        if self.flow.ndim == 3:
            raise TypeError("this is the result of one pair, not of a batch")
        return len(self.flow)

    def __bool__(self) -> bool:
        return True  # independent of its length, which a single result does not have

    def __getitem__(self, index: int) -> "FlowResult":
        len(self)  # refuses a single result
        return FlowResult(*_select(self, index))

    def __iter__(self) -> Iterator["FlowResult"]:
        return (self[index] for index in range(len(self)))

    def _single(self) -> "FlowResult":
        if self.flow.ndim == 4:
            raise InputError("this is the result of a batch; select one pair: result[0]")
        return self


@dataclass(frozen=True)
class FlowTensors:
    """A `FlowResult` that stays on the device; the tensors of a batch have a leading batch axis."""

    flow: Tensor
    """(2, H, W) float32: pixels, x right, y down, from frame 1 to frame 2."""
    confidence: Tensor
    """(H, W) float32 in [0, 1]."""
    occlusion: Tensor | None = None
    """(H, W) bool; with `backward=True`."""
    backward: "FlowTensors | None" = None
    """The same from frame 2 to frame 1; with `backward=True`."""

    @classmethod
    def of(cls, forward: Estimate, backward: Estimate | None = None) -> "FlowTensors":
        """One direction, or both."""
        if backward is None:
            return cls(forward.flow, forward.confidence[:, 0])
        hidden1 = find_occlusion(forward.flow, backward.flow)[:, 0]
        hidden2 = find_occlusion(backward.flow, forward.flow)[:, 0]
        back = cls(backward.flow, backward.confidence[:, 0], hidden2)
        return cls(forward.flow, forward.confidence[:, 0], hidden1, back)

    def __getitem__(self, index: int) -> "FlowTensors":
        if self.flow.ndim == 3:
            raise TypeError("these are the tensors of one pair, not of a batch")
        return FlowTensors(*_select(self, index))

    def to_result(self) -> FlowResult:
        """Copy everything to arrays in main memory."""
        return FlowResult(
            np.ascontiguousarray(self.flow.movedim(-3, -1).cpu().numpy()),
            self.confidence.cpu().numpy(),
            None if self.occlusion is None else self.occlusion.cpu().numpy(),
            None if self.backward is None else self.backward.to_result(),
        )


def unpack_result(packed: Tensor) -> FlowResult:
    """Packed estimates of one direction or both -> the result of a batch."""
    return FlowTensors.of(*unpack(packed)).to_result()


def _select(batch: FlowResult | FlowTensors, index: int) -> Iterator[Any]:
    """The values of one pair of a batch."""
    return (None if values is None else values[index] for values in vars(batch).values())
