"""Images in, flow out: the interface for Python users."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from ..accelerated.settings import warn_if_emulated
from ..config import NORMAL, Calibration, Quality, find_quality
from ..errors import InputError
from ..files import Array
from ..models import FlowNetwork
from ..ops import Size, size_of
from ..weights import Weights, load_model, read_weights, resolve
from .compute import Choice, choose_compute, make_engine
from .confidence import UNCALIBRATED
from .feeding import Feeding
from .inputs import ImageInput, flow_batch, image_batch
from .pipeline import Pipeline, Plan, describe
from .result import Estimate, FlowTensors, unpack
from .result import FlowResult as FlowResult


class FlowEstimator:
    """A network and all that users need around it: reading, normalising, padding, devices.

    >>> estimator = dicl_flow.load("weights.safetensors", device="cuda", precision="fp16")
    >>> flow = estimator("frame1.png", "frame2.png").flow
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
    ) -> None:
        self.quality = find_quality(quality)
        self.quality.check_for(model.config)
        self.calibration = calibration
        self.compute = choose_compute(model.config, device, precision, backend, memory_limit)
        self.engine = make_engine(model, self.compute)
        auto = self.engine.best_precision().value
        warn_if_emulated(precision, self.device, f"precision 'auto' would choose {auto}")
        self.plan = Plan(self.engine, self.quality, full_size=full_size)
        self.pipeline = Pipeline(self.engine, self.plan, calibration)

    @cached_property
    def sharp_pipeline(self) -> Pipeline:
        """As `pipeline`, with the sharpness of the match in each packed estimate."""
        return Pipeline(self.engine, self.plan, self.calibration, sharpness=True)

    @property
    def model(self) -> FlowNetwork:
        """The network that computes: an accelerated version of the one given, or that itself."""
        return self.engine.network

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.compute.device

    @property
    def backend(self) -> str:
        """Which implementation runs: "fast" or "plain"."""
        return self.compute.backend

    @property
    def precision(self) -> str:
        """In which number format it computes."""
        return self.compute.precision

    @property
    def memory_limit(self) -> int | None:
        """Bytes that an estimate may use; None: most of what is free."""
        return self.compute.memory_limit

    def __call__(
        self,
        image1: ImageInput,
        image2: ImageInput,
        *,
        backward: bool = False,
        initial: Array | Tensor | None = None,
    ) -> FlowResult:
        """Estimate where each pixel of `image1` is in `image2`.

        Paths, arrays (H, W, 3), tensors (3, H, W), or batches of them; see
        `estimation.inputs.image_batch` for all forms. With `backward`, the result has the
        backward flow and the occlusion of both frames too. `initial` is a flow to start from,
        in the shape of the one returned: the coarse levels are skipped.
        """
        return self.tensors(image1, image2, backward=backward, initial=initial).to_result()

    def tensors(
        self,
        image1: ImageInput,
        image2: ImageInput,
        *,
        backward: bool = False,
        initial: Array | Tensor | None = None,
    ) -> FlowTensors:
        """Do the same as a call, but leave the result on the device, as tensors."""
        (batch1, is_batch), (batch2, _) = (
            image_batch(image, self.device) for image in (image1, image2)
        )
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
        estimates = unpack(self.pipeline(batch1, batch2, *begin, backward=backward))
        # copies, made here, are ordinary tensors: those of inference mode cannot be changed
        found = FlowTensors.of(*(Estimate(*(part.clone() for part in e)) for e in estimates))
        return found if is_batch else found[0]

    def estimate(self, image1: Tensor, image2: Tensor, initial: Tensor | None = None) -> Estimate:
        """Two (B, 3, H, W) in [0, 1] -> the flow of the pixels of `image1`, on the device.

        Frames for which the memory does not suffice are cut into overlapping tiles. `initial`
        is a flow (B, 2, H, W) to start from.
        """
        begin = [] if initial is None else [initial]
        (estimate,) = unpack(self.pipeline(image1, image2, *begin))
        return estimate

    def estimate_both(self, image1: Tensor, image2: Tensor) -> tuple[Estimate, Estimate]:
        """As `estimate`, then the flow from `image2` to `image1`."""
        forward, backward = unpack(self.pipeline(image1, image2, backward=True))
        return forward, backward

    def measure(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """Flow (B, 2, H, W) and cues (B, 7, H, W), at the size of the frames: to calibrate."""
        return self.pipeline.measure(image1, image2)

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
    `precision` is "auto" (with the fast backend bf16 on CPUs with AMX, fp16 on ARM CPUs that have
    it and on CUDA; else fp32), "fp32", "bf16" or "fp16";
    `backend` is "auto" (fast on CPUs and CUDA), "fast" or "plain";
    `memory_limit`, in bytes, is what an estimate may use (default: most of what is free);
    `quality` is "fast", "normal" or "best", which takes several times longer;
    `full_size` computes frames at full size, where the weights would scale them down; large ones
    get a first pass that is scaled down, and the last one starts from its flow.
    """
    start = perf_counter()
    quality = find_quality(quality)
    found, model = _open(weights)
    read = perf_counter()
    calibration = found.calibration_for(quality)
    how = (device, precision, backend, memory_limit, calibration, quality)
    estimator = FlowEstimator(model, *how, full_size=full_size)
    estimator.load_seconds = {"weights": read - start, "prepare": perf_counter() - read}
    return estimator


def _open(weights: str | Path | Weights | None) -> tuple[Weights, FlowNetwork]:
    if isinstance(weights, Weights):
        return weights, load_model(weights)
    path = resolve(weights)
    try:
        found = read_weights(path)
        return found, load_model(found)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None


def explain_frame(estimator: FlowEstimator, size: Size) -> Choice:
    """Whether frames of (height, width) are computed whole, scaled down or in tiles."""
    tile = estimator.tile(torch.empty(1, 3, *size, device="meta"))
    large, feedings = estimator.plan.is_large(size), estimator.plan.passes(size).feedings
    if tile != size:
        piece = (min(tile[0], size[0]), min(tile[1], size[1]))
        first = f"seen as {_text(feedings[0].seen(size))}, then " if large else ""
        reason = "the memory does not suffice for the whole"
        return Choice(f"{first}in tiles of {_text(piece)}", reason)
    if not large and estimator.quality.scales == (1.0,):
        return _explain_one_pass(feedings[-1], size)
    sizes = ", then as ".join(_text(feeding.seen(size)) for feeding in feedings)
    reason = f"quality {estimator.quality.name!r}"
    if large:
        reason = f"full size of a frame with more than {feedings[0].max_pixels} px, " + reason
    return Choice(f"whole, seen as {sizes}", reason)


def _explain_one_pass(feeding: Feeding, size: Size) -> Choice:
    resized, seen = feeding.resized(size), feeding.seen(size)
    reason = f"the network takes multiples of {feeding.multiple} px"
    if seen == size:
        return Choice("whole", reason)
    if resized == size:
        return Choice(f"whole, padded to {_text(seen)}", reason)
    how = f"{_text(seen)}, {_share(seen, size)}"
    if prod(seen) < prod(size):
        reason = f"max_pixels: these weights take about {feeding.max_pixels} px at most"
        return Choice(f"scaled down to {how}", reason)
    return Choice(f"whole, resized to {how}", reason)


def computed(estimator: FlowEstimator, size: Size) -> dict[str, str]:
    """What to report of every estimate of frames of (height, width): its size, in which pixels."""
    resized = replace(estimator.plan.last, scale=1.0).resized(size)
    return {
        "computed": explain_frame(estimator, size).value,
        "computed_size": _text(resized),
        "confidence": _explain_confidence(estimator, resized, size),
    }


def _explain_confidence(estimator: FlowEstimator, seen: Size, size: Size) -> str:
    calibration = estimator.calibration
    if calibration is None:
        return f"uncalibrated: {UNCALIBRATED}"
    if seen == size:
        return calibration.meaning
    across, down = (calibration.threshold * size[i] / seen[i] for i in (1, 0))
    return f"{calibration.meaning} of {_text(seen)}: {across:.2f}x{down:.2f} px of the frame"


def _share(seen: Size, size: Size) -> str:
    """How large one size is, measured by the other."""
    height, width = (f"{seen[i] / size[i]:.2f}" for i in range(2))
    if height == width:
        return f"{width} of the size"
    return f"{width} of the width and {height} of the height"


def _text(size: Size) -> str:
    return f"{size[1]}x{size[0]}"
