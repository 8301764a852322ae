"""Consecutive frames: the features of each serve two pairs."""

import torch
from torch import Tensor

from ..errors import InputError
from .estimator import FlowEstimator
from .inputs import Image, image_batch
from .result import FlowResult, unpack_result

Layout = list[tuple[torch.Size, tuple[int, ...], torch.dtype]]


class FlowSequence:
    """The flow from each frame to the next, equal to what the estimator gives for the pair.

    >>> sequence = FlowSequence(dicl_flow.load())
    >>> for frame in frames:
    ...     result = sequence.push(frame)  # None for the first frame

    Each frame passes through the feature net once. Memory does not grow with the frames.
    With `backward`, results have the backward flow and occlusion too; with `sharpness`, packed
    estimates have that of the match.
    """

    def __init__(
        self, estimator: FlowEstimator, *, backward: bool = False, sharpness: bool = False
    ) -> None:
        self.estimator, self.backward, self.sharpness = estimator, backward, sharpness
        self._pipeline = estimator.sharp_pipeline if sharpness else estimator.pipeline
        self._pack = estimator.engine.record(self._packed)
        self._match_whole = estimator.engine.record(self._match_packed)
        self._layout: Layout = []
        self._size: tuple[int, int] | None = None
        self._whole = True
        self._last: Tensor | None = None  # the previous frame: packed, or an image to be tiled

    def push(self, frame: Image) -> FlowResult | None:
        """Return the flow from the previous frame to this one; None for the first frame."""
        packed = self.advance(frame)
        return None if packed is None else unpack_result(packed)[0]

    @torch.inference_mode()
    def advance(self, frame: Image) -> Tensor | None:
        """Do the same, but return the packed estimate (1, 3 or 4, H, W), on the device.

        With `backward`, twice the channels: those of the backward flow follow.
        """
        last, self._last = self._last, self.prepare(frame)
        return None if last is None else self.match(last, self._last)

    @torch.inference_mode()
    def prepare(self, frame: Image) -> Tensor:
        """Return what `match` needs of a frame, on the device."""
        image, is_batch = image_batch(frame, self.estimator.device)
        if is_batch:
            raise InputError("a sequence takes one frame at a time, got a batch")
        self._check_size(image)
        return self._pack(image) if self._whole else image

    @torch.inference_mode()
    def match(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the packed estimate from one prepared frame to another."""
        if self._whole:
            return self._match_whole(before, after)
        return self._pipeline(before, after, backward=self.backward)

    def at_once(self, size: tuple[int, int]) -> int:
        """How many pairs of (height, width) frames to estimate at a time, each in its thread."""
        return self._pipeline.tiles.at_once(size)

    def restart(self) -> None:
        """Forget the previous frame: the next one counts as the first."""
        self._last = None

    def fresh(self) -> "FlowSequence":
        """Another sequence of the same estimator, for frames of another size."""
        return FlowSequence(self.estimator, backward=self.backward, sharpness=self.sharpness)

    def _check_size(self, image: Tensor) -> None:
        size = (image.shape[-2], image.shape[-1])
        if self._size is None:
            self._whole = self._pipeline.tiles.size(image) == size
            self._size = size  # last: other threads ask for it first
        if size != self._size:
            raise InputError(
                f"the frames of a sequence must have one size, got {size[1]}x{size[0]} "
                f"after {self._size[1]}x{self._size[0]}"
            )

    def _packed(self, image: Tensor) -> Tensor:
        """What `match` needs of a frame as one tensor of bytes: a recording has one output."""
        parts = self._pipeline.prepare(image)
        self._layout = [(part.shape, part.stride(), part.dtype) for part in parts]
        in_memory_order = (part.as_strided((part.numel(),), (1,)) for part in parts)
        return torch.cat([part.view(torch.uint8) for part in in_memory_order])

    def _match_packed(self, first: Tensor, second: Tensor) -> Tensor:
        assert self._size is not None
        before, after = self._unpacked(first), self._unpacked(second)
        there = self._pipeline.match(before, after, self._size)
        if not self.backward:
            return there
        return torch.cat([there, self._pipeline.match(after, before, self._size)], 1)

    def _unpacked(self, packed: Tensor) -> list[Tensor]:
        sizes = [shape.numel() * dtype.itemsize for shape, _, dtype in self._layout]
        return [
            part.view(dtype).as_strided(shape, stride)
            for part, (shape, stride, dtype) in zip(packed.split(sizes), self._layout, strict=True)
        ]
