"""Images in, flow out: the interface for Python users."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from ..accelerated import warn_if_emulated
from ..config import NORMAL, Calibration, Quality, find_quality
from ..errors import InputError
from ..files import Array
from ..models import FlowNetwork
from ..weights import load_model, read_weights, resolve
from .answers import Answers
from .engines import choose_compute, make_engine
from .feeding import size_of
from .inputs import ImageInput, flow_batch, image_batch
from .plan import Plan
from .result import Estimate, FlowTensors, unpack
from .result import FlowResult as FlowResult
from .tiling import describe


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
        self.answers = Answers(self.engine, self.plan, calibration)

    @cached_property
    def sharp_answers(self) -> Answers:
        """As `answers`, with the sharpness of the match in each packed estimate."""
        return Answers(self.engine, self.plan, self.calibration, sharpness=True)

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
        estimates = unpack(self.answers(batch1, batch2, *begin, backward=backward))
        # copies, made here, are ordinary tensors: those of inference mode cannot be changed
        found = FlowTensors.of(*(Estimate(*(part.clone() for part in e)) for e in estimates))
        return found if is_batch else found[0]

    def estimate(self, image1: Tensor, image2: Tensor, initial: Tensor | None = None) -> Estimate:
        """Two (B, 3, H, W) in [0, 1] -> the flow of the pixels of `image1`, on the device.

        Frames for which the memory does not suffice are cut into overlapping tiles. `initial`
        is a flow (B, 2, H, W) to start from.
        """
        begin = [] if initial is None else [initial]
        (estimate,) = unpack(self.answers(image1, image2, *begin))
        return estimate

    def estimate_both(self, image1: Tensor, image2: Tensor) -> tuple[Estimate, Estimate]:
        """As `estimate`, then the flow from `image2` to `image1`."""
        forward, backward = unpack(self.answers(image1, image2, backward=True))
        return forward, backward

    def measure(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """Flow (B, 2, H, W) and cues (B, 7, H, W), at the size of the frames: to calibrate."""
        return self.answers.measure(image1, image2)

    def fits(self, image: Tensor) -> bool:
        """Whether a pair like (B, 3, H, W) `image` is computed in one piece."""
        return self.tile(image) == size_of(image)

    def tile(self, image: Tensor) -> tuple[int, int]:
        """(height, width) of the tiles in which a pair like (B, 3, H, W) `image` is computed."""
        return self.answers.tiles.size(image)


def load(
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    memory_limit: int | None = None,
    quality: str | Quality = NORMAL,
    *,
    full_size: bool = False,
) -> FlowEstimator:
    """Return an estimator for a weights file or a packaged name; default: the packaged weights.

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
    path = resolve(weights)
    try:
        found = read_weights(path)
        model = load_model(found)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    read = perf_counter()
    calibration = found.calibration_for(quality)
    how = (device, precision, backend, memory_limit, calibration, quality)
    estimator = FlowEstimator(model, *how, full_size=full_size)
    estimator.load_seconds = {"weights": read - start, "prepare": perf_counter() - read}
    return estimator
