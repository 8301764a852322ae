"""Images in, flow out: the interface for Python users. Pairs first, then consecutive frames."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from ..accelerated.settings import warn_if_emulated
from ..config import NORMAL, Calibration, Quality, find_quality
from ..errors import InputError
from ..files import Array
from ..models import FlowNetwork, with_radii
from ..ops import Size, size_of
from ..weights import Weights, load_model, read_weights, resolve
from .compute import Choice, best_precision, choose_compute, make_engine
from .confidence import UNCALIBRATED
from .inputs import Feeding, Image, ImageInput, flow_batch, image_batch
from .pipeline import Pipeline, Plan, Progress, describe
from .result import Estimate, FlowTensors, unpack, unpack_result
from .result import FlowResult as FlowResult


class FlowEstimator:
    """A network and all that users need around it: reading, normalising, padding, devices.

    >>> estimator = dicl_flow.load("weights.safetensors", device="cuda", precision="fp16")
    >>> flow = estimator("frame1.png", "frame2.png").flow

    The options are those of `load`; `device`, `precision`, `backend` and `memory_limit` are then
    attributes, as chosen. `model` is the network that computes: an accelerated version of the one
    passed, or that itself.
    """

    load_seconds: Mapping[str, float] = {}
    """How long `load` took, in parts."""

    def __init__(
        self,
        model: FlowNetwork,
        device: str = "auto",
        precision: str = "auto",
        backend: str = "auto",
        memory_limit: int | None = None,
        calibration: Calibration | None = None,
        quality: str | Quality = NORMAL,
        *,
        full_size: bool = False,
        extremes: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.quality = find_quality(quality)
        self.quality.check_for(model.config)
        model = with_radii(model, self.quality.radii)
        self.calibration = calibration
        self.compute = choose_compute(
            model.config, device, precision, backend, memory_limit, int8=bool(extremes)
        )
        self.device, self.backend = self.compute.device, self.compute.backend
        self.precision, self.memory_limit = self.compute.precision, self.compute.memory_limit
        fewer = bool(self.quality.radii)  # where speed matters most, int8 reaches further
        self.engine = make_engine(model, self.compute, extremes, int8_widely=fewer)
        self.model = self.engine.network
        auto = best_precision(self.backend, self.device, int8=bool(extremes)).value
        warn_if_emulated(precision, self.device, f"precision 'auto' would choose {auto}")
        self.plan = Plan(self.engine, self.quality, full_size=full_size)
        self.pipeline = Pipeline(self.engine, self.plan, calibration)

    @cached_property
    def sharp_pipeline(self) -> Pipeline:
        """As `pipeline`, with the sharpness of the match in each packed estimate."""
        return Pipeline(self.engine, self.plan, self.calibration, sharpness=True)

    def __call__(
        self,
        image1: ImageInput,
        image2: ImageInput,
        *,
        backward: bool = False,
        initial: Array | Tensor | None = None,
        progress: Progress | None = None,
    ) -> FlowResult:
        """Estimate where each pixel of `image1` is in `image2`.

        Paths, arrays (H, W, 3), tensors (3, H, W), or batches of them; see
        `estimation.inputs.image_batch` for all forms. With `backward`, the result has the
        backward flow and the occlusion of both frames too. `initial` is a flow to start from,
        in the shape of the one returned: the coarse levels are skipped. `progress` is called
        with the pixels done and those in all, after each pass and tile; not on CUDA.
        """
        found = self.tensors(image1, image2, backward=backward, initial=initial, progress=progress)
        return found.to_result()

    def tensors(
        self,
        image1: ImageInput,
        image2: ImageInput,
        *,
        backward: bool = False,
        initial: Array | Tensor | None = None,
        progress: Progress | None = None,
    ) -> FlowTensors:
        """Do the same as a call, but leave the result on the device, as tensors."""
        batch1, is_batch = image_batch(image1, self.device)
        batch2, _ = image_batch(image2, self.device)
        if batch1.shape != batch2.shape:
            raise InputError(
                f"the two images must have one size, got {describe(batch1)} and {describe(batch2)}"
            )
        if initial is not None and backward:
            raise InputError(
                "the initial flow says nothing of the backward flow; leave out `backward`, "
                "and estimate that flow with a separate call"
            )
        begin = [] if initial is None else [flow_batch(initial, batch1)]
        packed = self.pipeline(batch1, batch2, *begin, backward=backward, progress=progress)
        estimates = unpack(packed)
        # copies, made here, are ordinary tensors: those of inference mode cannot be changed
        result = FlowTensors.of(*(Estimate(*(part.clone() for part in e)) for e in estimates))
        return result if is_batch else result[0]

    def estimate(self, image1: Tensor, image2: Tensor, initial: Tensor | None = None) -> Estimate:
        """Two (B, 3, H, W) in [0, 1], `initial` (B, 2, H, W) -> the flow, left on the device."""
        begin = [] if initial is None else [initial]
        (estimate,) = unpack(self.pipeline(image1, image2, *begin))
        return estimate

    def estimate_both(self, image1: Tensor, image2: Tensor) -> tuple[Estimate, Estimate]:
        """As `estimate`, then the flow from `image2` to `image1`."""
        forward, backward = unpack(self.pipeline(image1, image2, backward=True))
        return forward, backward

    def fits(self, image: Tensor) -> bool:
        """Whether a pair like (B, 3, H, W) `image` is computed in one piece."""
        return self.tile(image) == size_of(image)

    def tile(self, image: Tensor) -> tuple[int, int]:
        """(height, width) of the tiles in which a pair like (B, 3, H, W) `image` is computed."""
        return self.pipeline.tiles.size(image)


def load(
    weights: str | Path | Weights | None = None,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    memory_limit: int | None = None,
    quality: str | Quality = NORMAL,
    *,
    full_size: bool = False,
) -> FlowEstimator:
    """Return an estimator for a weights file, a packaged name or `Weights`; default: the packaged.

    `device` is "auto" (CUDA, else MPS, else CPU), "cpu", "cuda", "cuda:1", "mps";
    `precision` is "auto" (with the fast backend bf16 on CPUs with AMX, int8 on those with VNNI if
    the weights are calibrated for it, fp16 on ARM CPUs that have it and on CUDA; else fp32),
    "fp32", "bf16", "fp16" or, on x86 with VNNI, "int8";
    `backend` is "auto" (fast on CPUs and CUDA), "fast" or "plain";
    `memory_limit`, in bytes, is what an estimate may use (default: most of what is free);
    `quality` is "live", "fast", "normal" or "best", which takes several times longer;
    `full_size` computes frames at full size, where the weights would scale them down; large ones
    get a first pass that is scaled down, and the last one starts from its flow.
    """
    start = perf_counter()
    quality = find_quality(quality)
    contents = weights if isinstance(weights, Weights) else read_weights(resolve(weights))
    model = load_model(contents, quality)
    read = perf_counter()
    calibration = contents.calibration_for(quality)
    how = (device, precision, backend, memory_limit, calibration, quality)
    estimator = FlowEstimator(model, *how, full_size=full_size, extremes=contents.extremes)
    estimator.load_seconds = {"weights": read - start, "prepare": perf_counter() - read}
    return estimator


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
        self._layout: list[tuple[torch.Size, tuple[int, ...], torch.dtype]] = []
        self._size: Size | None = None
        self._whole = True
        self._most_together: int | None = None
        self._last: Tensor | None = None  # the previous frame: packed, or an image to be tiled

    def push(self, frame: Image) -> FlowResult | None:
        """Return the flow from the previous frame to this one; None for the first frame."""
        packed = self.advance(frame)
        return None if packed is None else unpack_result(packed)[0]

    @torch.inference_mode()
    def advance(self, frame: Image) -> Tensor | None:
        """Do the same, but return the packed estimate (1, C, H, W), as `unpack` takes it."""
        last, self._last = self._last, self.prepare(frame)
        return None if last is None else self.match(last, self._last)

    @torch.inference_mode()
    def prepare(self, frame: Image) -> Tensor:
        """Return what `match` needs of a frame, on the device."""
        image, is_batch = image_batch(frame, self.estimator.device)
        if is_batch:
            raise InputError("a sequence takes one frame at a time, got a batch")
        size = size_of(image)
        if self._size is None:
            self._whole = self._pipeline.tiles.size(image) == size
            self._size = size  # last: other threads ask for it first
        if size != self._size:
            raise InputError(
                f"the frames of a sequence must have one size, got {_text(size)} "
                f"after {_text(self._size)}"
            )
        return self._pack(image) if self._whole else image

    @torch.inference_mode()
    def match(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the packed estimate from one prepared frame to another."""
        if self._whole:
            return self._match_whole(before[None], after[None])
        return self._pipeline(before, after, backward=self.backward)

    def match_pairs(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
        """Yield what `match` gives for each pair; a GPU computes several as a batch."""
        together = self._together() if self._whole else 1  # tiles leave no memory for a batch
        for start in range(0, len(pairs), together):
            before, after = zip(*pairs[start : start + together], strict=True)
            if len(before) == 1:
                yield self.match(before[0], after[0])
            else:
                yield from self._match_batch(before, after).split(1)

    @torch.inference_mode()
    def _match_batch(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
        return self._match_whole(torch.stack([*before]), torch.stack([*after]))

    def _together(self) -> int:
        """How many pairs to compute as a batch; asked once, as the free memory varies."""
        if self._most_together is None:
            assert self._size is not None
            self._most_together = self._pipeline.tiles.together(self._size)
        return self._most_together

    def at_once(self, size: Size) -> int:
        """How many pairs of (height, width) frames to estimate at a time, each in its thread."""
        return self._pipeline.tiles.at_once(size)

    def restart(self) -> None:
        """Forget the previous frame: the next one counts as the first."""
        self._last = None

    def fresh(self) -> "FlowSequence":
        """Another sequence of the same estimator, for frames of another size."""
        return FlowSequence(self.estimator, backward=self.backward, sharpness=self.sharpness)

    def _packed(self, image: Tensor) -> Tensor:
        """What `match` needs of a frame as one tensor of bytes: a recording has one output."""
        parts = self.estimator.plan.passes(size_of(image)).prepare(image)
        self._layout = [(part.shape, part.stride(), part.dtype) for part in parts]
        in_memory_order = (part.as_strided((part.numel(),), (1,)) for part in parts)
        return torch.cat([part.view(torch.uint8) for part in in_memory_order])

    def _match_packed(self, first: Tensor, second: Tensor) -> Tensor:
        """Packed frames (B, N) -> packed estimates (B, C, H, W)."""
        assert self._size is not None
        size, passes = self._size, self.estimator.plan.passes(self._size)
        before, after = self._unpacked(first), self._unpacked(second)
        there = self._pipeline.finish(passes.match(before, after, size))
        if not self.backward:
            return there
        return torch.cat([there, self._pipeline.finish(passes.match(after, before, size))], 1)

    def _unpacked(self, packed: Tensor) -> list[Tensor]:
        """(B, N) bytes -> the parts of a frame, each with a batch axis."""
        sizes = [shape.numel() * dtype.itemsize for shape, _, dtype in self._layout]
        return [
            part.contiguous()
            .view(dtype)
            .as_strided((len(packed), *shape[1:]), (shape.numel(), *stride[1:]))
            for part, (shape, stride, dtype) in zip(
                packed.split(sizes, 1), self._layout, strict=True
            )
        ]


class BothWays:
    """Estimates pairs in both directions; pairs of one size are recorded where that is faster."""

    def __init__(self, estimator: FlowEstimator) -> None:
        self.estimator = estimator
        self._first = FlowSequence(estimator, backward=True)
        self._by_size: dict[tuple[int, ...], FlowSequence] = {}

    def __call__(self, image1: Array, image2: Array) -> tuple[Estimate, Estimate]:
        """Two (H, W, 3) frames -> the flow from 1 to 2, and from 2 to 1, on the device."""
        fresh = self._first.fresh() if self._by_size else self._first
        sequence = self._by_size.setdefault(image1.shape, fresh)
        packed = sequence.match(sequence.prepare(image1), sequence.prepare(image2))
        forward, backward = unpack(packed.clone())
        return forward, backward


def explain_frame(estimator: FlowEstimator, size: Size) -> Choice:
    """Whether frames of (height, width) are computed whole, scaled down or in tiles."""
    tile = estimator.tile(torch.empty(1, 3, *size, device="meta"))
    large, feedings = estimator.plan.is_large(size), estimator.plan.passes(size).feedings
    if tile != size:
        return _explain_tiles((min(tile[0], size[0]), min(tile[1], size[1])), size, feedings, large)
    reason = f"quality {estimator.quality.name!r}"
    if len(feedings) == 1:
        return _explain_one_pass(feedings[0], size, reason)
    if large:
        reason = f"full size of a frame with more than {feedings[0].max_pixels} px, " + reason
    whole = "scaled down" if feedings[-1].scales_down(size) else "whole"
    return Choice(f"{whole}, seen as {_seen(feedings, size)}", reason)


def _explain_tiles(piece: Size, size: Size, feedings: Sequence[Feeding], large: bool) -> Choice:
    text, cut = f"in tiles of {_text(piece)}", feedings[1:] if large else feedings
    if large:  # the first pass sees the whole frame
        text = f"seen as {_text(feedings[0].seen(size))}, then {text}"
    if any(feeding.scale != 1 for feeding in cut):
        text += f", each seen as {_seen(cut, piece)}"
    return Choice(text, "the memory does not suffice for the whole")


def _explain_one_pass(feeding: Feeding, size: Size, quality: str) -> Choice:
    resized, seen = feeding.resized(size), feeding.seen(size)
    reason = f"the network takes multiples of {feeding.multiple} px"
    if resized == size:
        return Choice("whole" if seen == size else f"whole, padded to {_text(seen)}", reason)
    height, width = (f"{resized[i] / size[i]:.2f}" for i in range(2))
    same = f"{width} of the size"
    share = same if height == width else f"{width} of the width and {height} of the height"
    how = f"{_seen([feeding], size)}, {share}"
    if feeding.scale != 1:
        reason = quality
    elif feeding.frame_size:
        fixed = _text((feeding.frame_size[0], feeding.frame_size[1]))
        reason = f"frame_size: these weights see every frame at {fixed}"
    if feeding.scales_down(size):
        if feeding.scale == 1 and not feeding.frame_size:
            reason = f"max_pixels: these weights take about {feeding.max_pixels} px at most"
        return Choice(f"scaled down to {how}", reason)
    return Choice(f"whole, resized to {how}", reason)


def _seen(feedings: Sequence[Feeding], size: Size) -> str:
    """The size at which each pass sees frames of `size`: "1024x640, then as 1920x1080 …"."""
    passes = []
    for feeding in feedings:
        resized, seen = _text(feeding.resized(size)), _text(feeding.seen(size))
        passes.append(resized if resized == seen else f"{resized} padded to {seen}")
    return ", then as ".join(passes)


def computed(estimator: FlowEstimator, size: Size) -> dict[str, str]:
    """What to report of every estimate of frames of (height, width): its size, in which pixels.

    The computed size is that of the last pass, without padding. The confidence speaks of pixels
    at normal quality.
    """
    last, calibration = estimator.plan.last, estimator.calibration
    normal = replace(last, scale=1.0).resized(size)
    meaning = f"uncalibrated: {UNCALIBRATED}" if calibration is None else calibration.meaning
    if calibration is not None and normal != size:
        across, down = (calibration.threshold * size[i] / normal[i] for i in (1, 0))
        meaning += f" of {_text(normal)}: {across:.2f}x{down:.2f} px of the frame"
    return {
        "computed": explain_frame(estimator, size).value,
        "computed_size": _text(last.resized(size)),
        "confidence": meaning,
    }


def _text(size: Size) -> str:
    return f"{size[1]}x{size[0]}"
