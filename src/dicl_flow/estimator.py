"""Images in, flow out: the face for Python users."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from .confidence import KernelConfidence, find_confidence, find_cues
from .config import PAPER_LEVELS, Calibration, ModelConfig
from .errors import InputError, unknown_name
from .fast import (
    FastDiclFlow,
    Graphs,
    available_bytes,
    cudnn_flags,
    fixed_bytes,
    is_supported,
    network_bytes,
)
from .inputs import ImageInput, image_batch, normalize
from .models import DiclFlow, FlowNetwork, LevelFlow
from .ops import (
    crop,
    pad_to_multiple,
    resize,
    resize_flow_pixels,
    resize_pixels,
    size_in_multiples,
)
from .result import FlowResult as FlowResult
from .result import both_results, to_result
from .tiling import in_tiles, tile_size
from .weights import load_model, read_weights, resolve

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "cpu", "cuda", "mps")
BACKENDS = ("auto", "fast", "plain")


class FlowEstimator:
    """A network with all that lies between it and a user: reading, normalising, padding, devices.

    >>> estimator = dicl_flow.load("weights.safetensors", device="cuda", precision="fp16")
    >>> flow = estimator("frame1.png", "frame2.png").flow
    """

    def __init__(
        self,
        model: FlowNetwork,
        device: str = "auto",
        precision: str = "auto",
        backend: str = "auto",
        memory_limit: int | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.calibration = calibration
        self.device = choose_device(device)
        self.backend = choose_backend(backend, model.config, self.device)
        self.precision = choose_precision(precision, self.device, self.backend)
        self.memory_limit = memory_limit
        self.model: FlowNetwork
        if self.backend == "fast":
            dtype, plain = PRECISIONS[self.precision], cast(DiclFlow, model)  # refuses other hosts
            self.model = FastDiclFlow(plain.eval(), dtype, memory_limit, self.device)
        else:
            self.model = model.to(self.device).eval()
        self._confidence: Callable[[list[LevelFlow], Tensor, Tensor], Tensor] = partial(
            find_confidence, calibration=calibration
        )
        self._compute: Callable[[Tensor, Tensor], Tensor] = self._estimate_whole
        self._compute_both: Callable[[Tensor, Tensor], Tensor] = self._estimate_both
        if self.backend == "fast" and self.device.type == "cuda":
            self._compute = Graphs(self._estimate_whole)
            self._compute_both = Graphs(self._estimate_both)
            if calibration is not None:
                self._confidence = KernelConfidence(calibration, self.device)
        self._tiles: dict[torch.Size, tuple[int, int]] = {}

    def __call__(
        self, image1: ImageInput, image2: ImageInput, *, backward: bool = False
    ) -> FlowResult:
        """Estimate where each pixel of `image1` went in `image2`.

        Paths, arrays (H, W, 3), tensors (3, H, W), or batches of them; see
        `dicl_flow.inputs.image_batch` for all that is understood. `backward` asks for the
        flow of the pixels of `image2` as well, and for what is occluded in either.
        """
        (batch1, is_batch), (batch2, _) = (
            image_batch(image, self.device) for image in (image1, image2)
        )
        if batch1.shape != batch2.shape:
            raise InputError(
                f"the two images must have one size, got {_size(batch1)} and {_size(batch2)}"
            )
        if backward:
            result = both_results(*self.estimate_both(batch1, batch2))
        else:
            result = to_result(*self.estimate(batch1, batch2))
        return result if is_batch else result[0]

    @torch.inference_mode()
    def estimate(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) in [0, 1] -> flow (B, 2, H, W), confidence (B, 1, H, W), on the device.

        Frames for which the memory does not suffice are cut into overlapping tiles.
        """
        flow, confidence = self._in_tiles(self._compute, image1, image2).split([2, 1], 1)
        return flow, confidence

    @torch.inference_mode()
    def estimate_both(
        self, image1: Tensor, image2: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Flow and confidence as `estimate`, then those from `image2` to `image1`."""
        both = self._in_tiles(self._compute_both, image1, image2)
        flow, confidence, backward, backward_confidence = both.split([2, 1, 2, 1], 1)
        return flow, confidence, backward, backward_confidence

    @torch.inference_mode()
    def measure(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """Flow (B, 2, H, W) and cues (B, 7, H, W), at the size the network sees: to calibrate."""
        fitted1, fitted2 = (self._fit(normalize(i.to(self.device))) for i in (image1, image2))
        with self._arithmetic():
            levels = self.model(fitted1, fitted2)
        size = (fitted1.shape[-2], fitted1.shape[-1])
        cues = resize(find_cues(levels, fitted1, fitted2), size)
        return self.model.upsample(levels[-1].refined, size), cues

    def fits(self, image: Tensor) -> bool:
        """Whether a pair like (B, 3, H, W) `image` is computed in one piece."""
        return self.tile(image) == tuple(image.shape[-2:])

    def _in_tiles(
        self,
        compute: Callable[[Tensor, Tensor], Tensor],
        image1: Tensor,
        image2: Tensor,
    ) -> Tensor:
        image1, image2 = image1.to(self.device), image2.to(self.device)
        if image1.shape not in self._tiles:  # asking for free memory takes its time
            self._tiles[image1.shape] = self.tile(image1)
        return in_tiles(compute, image1, image2, self._tiles[image1.shape])

    def tile(self, image: Tensor) -> tuple[int, int]:
        """(height, width) of the pieces in which a pair like (B, 3, H, W) `image` is computed."""
        if self.model.config.max_pixels:  # the network never sees more
            return image.shape[-2], image.shape[-1]
        limit = self.memory_limit or available_bytes(self.device)
        dtype, fast = PRECISIONS[self.precision], self.backend == "fast"
        per_pixel = network_bytes(dtype, self.device, fast=fast)
        if not fast:
            per_pixel = int(per_pixel * _relative_volume(self.model.config))
        limit -= fixed_bytes(image, self.device) if self.device.type == "cuda" else 0
        capacity = max(limit, 0) // (len(image) * per_pixel)
        size = (image.shape[-2], image.shape[-1])
        return tile_size(size, capacity, self.model.config.pad_multiple)

    def _estimate_whole(self, image1: Tensor, image2: Tensor) -> Tensor:
        """(B, 3, H, W) images in [0, 1] -> flow and confidence (B, 3, H, W)."""
        fitted1, fitted2 = self._fit(normalize(image1)), self._fit(normalize(image2))
        with self._arithmetic():
            levels = self.model(fitted1, fitted2)
        return self._answer(levels, fitted1, fitted2, (image1.shape[-2], image1.shape[-1]))

    def _estimate_both(self, image1: Tensor, image2: Tensor) -> Tensor:
        """The same for both directions, one after the other: (B, 6, H, W)."""
        fitted1, fitted2 = self._fit(normalize(image1)), self._fit(normalize(image2))
        with self._arithmetic():
            there, back = self.model.both_ways(fitted1, fitted2)
        size = (image1.shape[-2], image1.shape[-1])
        forward = self._answer(there, fitted1, fitted2, size)
        return torch.cat([forward, self._answer(back, fitted2, fitted1, size)], 1)

    def prepare(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) in [0, 1] -> what `match` needs of it: as the network sees it, features."""
        fitted = self._fit(normalize(image)).contiguous()
        with self._arithmetic():
            return [fitted, *self.model.features(fitted)]

    def match(self, first: list[Tensor], second: list[Tensor], size: tuple[int, int]) -> Tensor:
        """Two prepared images that were (height, width) -> flow and confidence (B, 3, H, W)."""
        (fitted1, *pyramid1), (fitted2, *pyramid2) = first, second
        with self._arithmetic():
            levels = self.model.flow_from_features(pyramid1, pyramid2, fitted1)
        return self._answer(levels, fitted1, fitted2, size)

    def _answer(
        self, levels: list[LevelFlow], image1: Tensor, image2: Tensor, size: tuple[int, int]
    ) -> Tensor:
        """What the network says of the fitted images -> flow and confidence at `size`."""
        flow = self.model.upsample(levels[-1].refined, (image1.shape[-2], image1.shape[-1]))
        confidence = self._confidence(levels, image1, image2)
        if self.model.config.padding != "resize":
            return crop(torch.cat([flow, confidence], 1), size)
        return torch.cat([resize_flow_pixels(flow, size), resize_pixels(confidence, size)], 1)

    def _fit(self, image: Tensor) -> Tensor:
        """Give an image sides that the network takes, in the way its weights expect."""
        config = self.model.config
        if config.padding != "resize":
            return pad_to_multiple(image, config.pad_multiple, config.padding)
        size = (image.shape[-2], image.shape[-1])
        return resize_pixels(image, size_in_multiples(size, config.pad_multiple, config.max_pixels))

    def _arithmetic(self) -> AbstractContextManager[object]:
        """Reduced precision where it was asked for, and float32 that is float32 where not."""
        stack = ExitStack()
        if self.precision != "fp32" and self.backend == "plain":
            dtype = PRECISIONS[self.precision]
            stack.enter_context(torch.autocast(self.device.type, dtype=dtype))
        elif (
            self.precision == "fp32" and self.device.type == "cuda"
        ):  # convolutions would use TF32, ten bits, by default
            # without TF32 cuDNN's first guess can be ten times slower than its best
            stack.enter_context(cudnn_flags(allow_tf32=False, benchmark=True))
        return stack


def load(
    weights: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    memory_limit: int | None = None,
) -> FlowEstimator:
    """Return an estimator for a weights file or a packaged name; without either, the default.

    `device` is "auto" (CUDA, else MPS, else CPU), "cpu", "cuda", "cuda:1", "mps";
    `precision` is "auto" (bf16 on CPUs with AMX, fp16 on CUDA with the fast backend, else
    fp32), "fp32", "bf16" or "fp16"; `backend` is "auto" (fast on CPUs and CUDA), "fast" or "plain";
    `memory_limit`, in bytes, is what an estimate may use; without it, most of what is free.
    """
    path = resolve(weights)
    try:
        found = read_weights(path)
        model = load_model(found)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    return FlowEstimator(model, device, precision, backend, memory_limit, found.calibration)


def choose_device(name: str) -> torch.device:
    """Turn a device name into a device that is there, or say what is wrong."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind, _, index = name.partition(":")
    if kind not in available or (index and not index.isdecimal()):
        raise unknown_name("device", name, DEVICES)
    if not available[kind]:
        raise InputError(f"no {kind} device on this machine; use `device='cpu'`")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(f"no device {name}: this machine has {torch.cuda.device_count()}")
    return torch.device(name)


def choose_backend(name: str, config: ModelConfig, device: torch.device) -> str:
    """Resolve "auto" and refuse unknown names."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if name == "auto":
        kernels = device.type == "cuda" and find_spec("triton") is not None
        there = is_supported(config) and (kernels or device.type == "cpu")
        return "fast" if there else "plain"
    return name


def choose_precision(name: str, device: torch.device, backend: str) -> str:
    """Resolve "auto" and refuse unknown names."""
    if name not in ("auto", *PRECISIONS):
        raise unknown_name("precision", name, ["auto", *PRECISIONS])
    if name != "auto":
        return name
    if backend == "fast" and device.type == "cuda":
        return "fp16"
    if backend == "fast" and device.type == "cpu" and torch.cpu._is_amx_tile_supported():
        return "bf16"
    return "fp32"


def _relative_volume(config: ModelConfig) -> float:
    """What a network compares at its finest level, beside the paper's: memory goes with it."""
    wider = 1.4 if config.host == "vcn" else 1.0  # 64 channels there, not 32
    return wider * max(1.0, config.levels[-1].num_hypotheses / PAPER_LEVELS[-1].num_hypotheses)


def _size(batch: Tensor) -> str:
    count = f"{len(batch)} x " if len(batch) > 1 else ""
    return f"{count}{batch.shape[-1]}x{batch.shape[-2]}"
