"""Images in, flow out: the face for Python users."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ..accelerated.inference import (
    AcceleratedDiclFlow,
    Graphs,
    available_bytes,
    check_limit,
    cudnn_flags,
    fixed_bytes,
    network_bytes,
    warn_if_emulated,
)
from ..config import NORMAL, PAPER_LEVELS, Calibration, ModelConfig, Quality, find_quality
from ..errors import InputError
from ..files import Array
from ..models import DiclFlow, FlowNetwork, LevelFlow
from ..ops import resize
from ..weights import load_model, read_weights, resolve
from .compute import PRECISIONS, choose_backend, choose_device, choose_precision
from .confidence import KernelConfidence, find_confidence, find_cues
from .feeding import Feeding, size_of
from .gate import gate
from .inputs import ImageInput, flow_batch, image_batch
from .passes import Found, Passes
from .result import FlowResult as FlowResult
from .result import FlowTensors
from .tiling import in_tiles, smallest_tile, tile_size


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
        quality: str | Quality = NORMAL,
        *,
        full_size: bool = False,
    ) -> None:
        model = _at_full_size(model) if full_size else model
        self.quality = find_quality(quality)
        self.quality.check_for(model.config)
        self.calibration = calibration
        self.device = choose_device(device)
        self.backend = choose_backend(backend, model.config, self.device)
        self.precision = choose_precision(precision, self.device, self.backend)
        auto = choose_precision("auto", self.device, self.backend)
        warn_if_emulated(precision, self.device, f"precision 'auto' would choose {auto}")
        self.memory_limit = memory_limit
        self.model: FlowNetwork
        if self.backend == "fast":
            dtype, plain = PRECISIONS[self.precision], cast(DiclFlow, model)  # refuses other hosts
            self.model = AcceleratedDiclFlow(plain.eval(), dtype, memory_limit, self.device)
        else:
            self.model = model.to(self.device).eval()
        self._connect()

    def _connect(self) -> None:
        """Make what serves this process alone: recordings, and what is known of its memory."""
        calibration = self.calibration
        self._passes = Passes(self.model, self.quality, self._arithmetic)
        self._confidence: Callable[[list[LevelFlow], Tensor, Tensor], Tensor] = partial(
            find_confidence, calibration=calibration, scale=self.quality.scales[-1]
        )
        self._compute: Callable[..., Tensor] = self._estimate_whole
        self._compute_both: Callable[[Tensor, Tensor], Tensor] = self._estimate_both
        if self.backend == "fast" and self.device.type == "cuda":
            self._compute = Graphs(self._estimate_whole)
            self._compute_both = Graphs(self._estimate_both)
            if calibration is not None:
                last_scale = self.quality.scales[-1]
                self._confidence = KernelConfidence(calibration, self.device, last_scale)
        self._tiles: dict[torch.Size, tuple[int, int]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """For pickles, which another process may open: all but what `_connect` makes."""
        made = ("_passes", "_confidence", "_compute", "_compute_both", "_tiles")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()

    def __call__(
        self,
        image1: ImageInput,
        image2: ImageInput,
        *,
        backward: bool = False,
        initial: Array | Tensor | None = None,
    ) -> FlowResult:
        """Estimate where each pixel of `image1` went in `image2`.

        Paths, arrays (H, W, 3), tensors (3, H, W), or batches of them; see
        `estimation.inputs.image_batch` for all that is understood. `backward` asks for the
        flow of the pixels of `image2` as well, and for what is occluded in either. `initial` is
        a flow to begin from, of the shape of the one returned: the coarse levels are skipped.
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
        """Estimate as a call does, but leave the result on the device, as tensors."""
        (batch1, is_batch), (batch2, _) = (
            image_batch(image, self.device) for image in (image1, image2)
        )
        if batch1.shape != batch2.shape:
            raise InputError(
                f"the two images must have one size, got {_size(batch1)} and {_size(batch2)}"
            )
        if initial is None:
            parts = (self.estimate_both if backward else self.estimate)(batch1, batch2)
        elif backward:
            raise InputError(
                "the flow to begin from says nothing of the backward flow; leave out `backward`, "
                "and estimate that flow by a call of its own"
            )
        else:
            parts = self.estimate(batch1, batch2, flow_batch(initial, batch1))
        # copies, made here, are tensors like others: those of inference mode cannot be changed
        found = FlowTensors.of(*(part.clone() for part in parts))
        return found if is_batch else found[0]

    @torch.inference_mode()
    def estimate(
        self, image1: Tensor, image2: Tensor, initial: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) in [0, 1] -> flow (B, 2, H, W), confidence (B, 1, H, W), on the device.

        Frames for which the memory does not suffice are cut into overlapping tiles. `initial`
        is a flow (B, 2, H, W) to begin from.
        """
        more = [] if initial is None else [initial.to(self.device)]
        flow, confidence = self._in_tiles(self._compute, image1, image2, *more).split([2, 1], 1)
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
        """Flow (B, 2, H, W) and cues (B, 7, H, W), at the size of the frames: to calibrate."""
        found = self._passes.one_way(image1.to(self.device), image2.to(self.device))
        (levels, fitted1, fitted2), feeding = found.view, self._passes.feedings[-1]
        cues = resize(find_cues(levels, fitted1, fitted2, feeding.scale), size_of(fitted1))
        return found.flow, feeding.unfit(cues, size_of(image1))

    def fits(self, image: Tensor) -> bool:
        """Whether a pair like (B, 3, H, W) `image` is computed in one piece."""
        return self.tile(image) == tuple(image.shape[-2:])

    def _in_tiles(
        self, compute: Callable[..., Tensor], image1: Tensor, image2: Tensor, *more: Tensor
    ) -> Tensor:
        image1, image2 = image1.to(self.device), image2.to(self.device)
        return in_tiles(compute, image1, image2, self.tile(image1), *more)

    def tile(self, image: Tensor) -> tuple[int, int]:
        """(height, width) of the pieces in which a pair like (B, 3, H, W) `image` is computed."""
        if image.shape not in self._tiles:  # asking for free memory takes its time
            self._tiles[image.shape] = self._tile(image)
        return self._tiles[image.shape]

    def _tile(self, image: Tensor) -> tuple[int, int]:
        config, size, scale = self.model.config, size_of(image), self.quality.largest_scale
        fixed = fixed_bytes(image, self.device) if self.device.type == "cuda" else 0
        per_pixel = len(image) * self._bytes_per_pixel()
        free = self.memory_limit or available_bytes(self.device)
        if config.max_pixels:  # such frames are scaled, not cut
            needed = fixed + per_pixel * prod(Feeding(config, scale).seen(size))
            hint = "; `full_size=True` computes tiles, which need less"
            limit = free if scale > 1 else self.memory_limit or needed
            check_limit(limit, needed, _size(image), hint)
            return size
        per_pixel = int(per_pixel * scale**2)
        needed = fixed + per_pixel * prod(smallest_tile(size, config.pad_multiple))
        check_limit(free, needed, _size(image))
        return tile_size(size, (free - fixed) // per_pixel, config.pad_multiple)

    def _bytes_per_pixel(self) -> int:
        """What a pixel of a pair needs that the network sees."""
        dtype, fast = PRECISIONS[self.precision], self.backend == "fast"
        needed = network_bytes(dtype, self.device, fast=fast)
        return needed if fast else int(needed * _relative_volume(self.model.config))

    def seen_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) at which a pass of scale 1 sees frames of `size`."""
        return Feeding(self.model.config).seen(size)

    def _estimate_whole(self, image1: Tensor, image2: Tensor, *initial: Tensor) -> Tensor:
        """(B, 3, H, W) images in [0, 1] -> flow and confidence (B, 3, H, W)."""
        return self._answer(self._passes.one_way(image1, image2, *initial))

    def _estimate_both(self, image1: Tensor, image2: Tensor) -> Tensor:
        """The same for both directions, one after the other: (B, 6, H, W)."""
        return torch.cat([*map(self._answer, self._passes.both_ways(image1, image2))], 1)

    def prepare(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) in [0, 1] -> what `match` needs of it: as the network sees it, features."""
        return self._passes.prepare(image)

    def match(self, first: list[Tensor], second: list[Tensor], size: tuple[int, int]) -> Tensor:
        """Two prepared images that were (height, width) -> flow and confidence (B, 3, H, W)."""
        return self._answer(self._passes.match(first, second, size))

    def _answer(self, found: Found) -> Tensor:
        """Flow and confidence (B, 3, H, W) of the last pass, at the size of the frames."""
        feeding, size = self._passes.feedings[-1], size_of(found.flow)
        confidence = feeding.unfit(self._confidence(*found.view), size)
        _, *images = found.view
        seen = (feeding.without_padding(image, size) for image in images)  # it is no texture
        return gate(torch.cat([found.flow, confidence], 1), *seen)

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
    quality: str | Quality = NORMAL,
    *,
    full_size: bool = False,
) -> FlowEstimator:
    """Return an estimator for a weights file or a packaged name; without either, the default.

    `device` is "auto" (CUDA, else MPS, else CPU), "cpu", "cuda", "cuda:1", "mps";
    `precision` is "auto" (bf16 on CPUs with AMX, fp16 on CUDA with the fast backend, else
    fp32), "fp32", "bf16" or "fp16"; `backend` is "auto" (fast on CPUs and CUDA), "fast" or "plain";
    `memory_limit`, in bytes, is what an estimate may use; without it, most of what is free;
    `quality` is "fast", "normal" or "best", which takes several times as long;
    `full_size` computes every frame at its own size, even where the weights ask for smaller ones.
    """
    quality = find_quality(quality)
    path = resolve(weights)
    try:
        found = read_weights(path)
        model = load_model(found)
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    calibration = found.calibration_for(quality)
    how = (device, precision, backend, memory_limit, calibration, quality)
    return FlowEstimator(model, *how, full_size=full_size)


def _relative_volume(config: ModelConfig) -> float:
    """What a network compares at its finest level, beside the paper's: memory goes with it."""
    wider = 1.4 if config.host == "vcn" else 1.0  # 64 channels there, not 32
    return wider * max(1.0, config.levels[-1].num_hypotheses / PAPER_LEVELS[-1].num_hypotheses)


def _at_full_size(model: FlowNetwork) -> FlowNetwork:
    """The same layers under another config: the caller's network stays as it is."""
    twin = copy.copy(model)
    twin.config = model.config.at_full_size()
    return twin


def _size(batch: Tensor) -> str:
    count = f"{len(batch)} x " if len(batch) > 1 else ""
    return f"{count}{batch.shape[-1]}x{batch.shape[-2]}"
