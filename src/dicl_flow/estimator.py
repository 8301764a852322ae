"""Images in, flow out: the face for Python users."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .config import ModelConfig
from .errors import InputError, unknown_name
from .fast import FastDiclFlow, Graphs, available_bytes, is_supported, network_bytes
from .files import write_flow
from .inputs import Array, ImageInput, image_batch, normalize
from .models import DiclFlow, LevelFlow
from .ops import (
    crop,
    pad_to_multiple,
    resize,
    resize_flow_pixels,
    resize_pixels,
    size_in_multiples,
    upsample_flow,
)
from .tiling import in_tiles, tile_size
from .visualize import flow_to_rgb
from .weights import load_model, read_weights, resolve

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "cpu", "cuda", "mps")
BACKENDS = ("auto", "fast", "plain")


@dataclass(frozen=True)
class FlowResult:
    """The flow of one pair, or of a batch: then every array has a leading batch axis."""

    flow: Array
    """(H, W, 2) float32: pixels, x right, y down, from frame 1 to frame 2."""
    confidence: Array
    """(H, W) float32 in [0, 1]: one minus the normalised matching entropy of the finest level.

    It orders pixels by how decided the match was; it is not a calibrated probability.
    """

    def to_rgb(self, maximum: float | None = None) -> Array:
        """(H, W, 3) uint8: the Middlebury colour wheel; `maximum` px has full saturation."""
        return flow_to_rgb(self._single().flow, maximum)

    def save(self, path: str | Path) -> None:
        """Write the flow in the format of the extension: .flo, .png (KITTI), .pfm, .npz, .npy."""
        write_flow(path, self._single().flow)

    def __len__(self) -> int:
        if self.flow.ndim == 3:
            raise TypeError("this is the result of one pair, not of a batch")
        return len(self.flow)

    def __getitem__(self, index: int) -> "FlowResult":
        len(self)  # refuses a single result
        return FlowResult(self.flow[index], self.confidence[index])

    def __iter__(self) -> Iterator["FlowResult"]:
        return (self[index] for index in range(len(self)))

    def _single(self) -> "FlowResult":
        if self.flow.ndim == 4:
            raise InputError("this is the result of a batch; take one pair of it: result[0]")
        return self


class FlowEstimator:
    """A network with all that lies between it and a user: reading, normalising, padding, devices.

    >>> estimator = dicl_flow.load("weights.safetensors", device="cuda", precision="fp16")
    >>> flow = estimator("frame1.png", "frame2.png").flow
    """

    def __init__(
        self,
        model: DiclFlow,
        device: str = "auto",
        precision: str = "auto",
        backend: str = "auto",
        memory_limit: int | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.backend = choose_backend(backend, model.config, self.device)
        self.precision = choose_precision(precision, self.device, self.backend)
        self.memory_limit = memory_limit
        self.model: DiclFlow = model.to(self.device).eval()
        if self.backend == "fast":
            dtype = PRECISIONS[self.precision]
            self.model = FastDiclFlow(self.model, dtype, memory_limit).to(self.device)
        self._compute: Callable[[Tensor, Tensor], Tensor] = self._estimate_whole
        if self.backend == "fast" and self.device.type == "cuda":
            self._compute = Graphs(self._estimate_whole)
        self._tiles: dict[torch.Size, tuple[int, int]] = {}

    def __call__(self, image1: ImageInput, image2: ImageInput) -> FlowResult:
        """Estimate where each pixel of `image1` went in `image2`.

        Paths, arrays (H, W, 3), tensors (3, H, W), or batches of them; see
        `dicl_flow.inputs.image_batch` for all that is understood.
        """
        (batch1, is_batch), (batch2, _) = (
            image_batch(image, self.device) for image in (image1, image2)
        )
        if batch1.shape != batch2.shape:
            raise InputError(
                f"the two images must have one size, got {_size(batch1)} and {_size(batch2)}"
            )
        result = to_result(*self.estimate(batch1, batch2))
        return result if is_batch else result[0]

    @torch.inference_mode()
    def estimate(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) in [0, 1] -> flow (B, 2, H, W), confidence (B, 1, H, W), on the device.

        Frames for which the memory does not suffice are cut into overlapping tiles.
        """
        image1, image2 = image1.to(self.device), image2.to(self.device)
        if image1.shape not in self._tiles:  # asking for free memory takes its time
            self._tiles[image1.shape] = self._tile(image1)
        tile = self._tiles[image1.shape]
        flow, confidence = in_tiles(self._compute, image1, image2, tile).split([2, 1], 1)
        return flow, confidence

    def fits(self, image: Tensor) -> bool:
        """Whether a pair like (B, 3, H, W) `image` is computed in one piece."""
        return self._tile(image) == tuple(image.shape[-2:])

    def _tile(self, image: Tensor) -> tuple[int, int]:
        if self.model.config.max_pixels:  # the network never sees more
            return image.shape[-2], image.shape[-1]
        limit = self.memory_limit or available_bytes(self.device)
        dtype, fast = PRECISIONS[self.precision], self.backend == "fast"
        capacity = limit // (len(image) * network_bytes(dtype, self.device, fast=fast))
        size = (image.shape[-2], image.shape[-1])
        return tile_size(size, capacity, self.model.config.pad_multiple)

    def _estimate_whole(self, image1: Tensor, image2: Tensor) -> Tensor:
        """(B, 3, H, W) images in [0, 1] -> flow and confidence (B, 3, H, W)."""
        size = (image1.shape[-2], image1.shape[-1])
        fitted1, fitted2 = self._fit(normalize(image1)), self._fit(normalize(image2))
        with self._arithmetic():
            finest = self.model(fitted1, fitted2)[-1]
        return self._answer(finest, (fitted1.shape[-2], fitted1.shape[-1]), size)

    def prepare(self, image: Tensor) -> list[Tensor]:
        """(B, 3, H, W) in [0, 1] -> what `match` needs of it: as the network sees it, features."""
        fitted = self._fit(normalize(image)).contiguous()
        fast = self.backend == "fast"
        layout = torch.channels_last if fast else torch.contiguous_format
        with self._arithmetic():
            return [fitted, *self.model.features(fitted.contiguous(memory_format=layout))]

    def match(self, first: list[Tensor], second: list[Tensor], size: tuple[int, int]) -> Tensor:
        """Two prepared images that were (height, width) -> flow and confidence (B, 3, H, W)."""
        fitted, *pyramid1 = first
        with self._arithmetic():
            finest = self.model.flow_from_features(pyramid1, second[1:], fitted)[-1]
        return self._answer(finest, (fitted.shape[-2], fitted.shape[-1]), size)

    def _answer(
        self, finest: LevelFlow, network_size: tuple[int, int], size: tuple[int, int]
    ) -> Tensor:
        """Flow and confidence (B, 3, H, W) in the images' own `size`."""
        flow = upsample_flow(finest.refined, network_size)
        confidence = (1 - resize(finest.entropy, network_size)).clamp(0, 1)
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
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
        return stack


def to_result(flow: Tensor, confidence: Tensor) -> FlowResult:
    """(B, 2, H, W) and (B, 1, H, W) on any device -> arrays."""
    return FlowResult(
        np.ascontiguousarray(flow.permute(0, 2, 3, 1).cpu().numpy()), confidence[:, 0].cpu().numpy()
    )


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
    fp32), "fp32", "bf16" or "fp16"; `backend` is "auto" (fast on CPUs), "fast" or "plain";
    `memory_limit`, in bytes, is what an estimate may use; without it, most of what is free.
    """
    path = resolve(weights)
    try:
        model = load_model(read_weights(path))
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    return FlowEstimator(model, device, precision, backend, memory_limit)


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
        raise InputError(f"no {kind} device on this machine; use --device cpu")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise InputError(f"no device {name}: this machine has {torch.cuda.device_count()}")
    return torch.device(name)


def choose_backend(name: str, config: ModelConfig, device: torch.device) -> str:
    """Resolve "auto" and refuse unknown names."""
    if name not in BACKENDS:
        raise unknown_name("backend", name, BACKENDS)
    if name == "auto":
        # on CUDA the fast path is there to try, but its equality has not been measured yet
        return "fast" if device.type == "cpu" and is_supported(config) else "plain"
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


def _size(batch: Tensor) -> str:
    count = f"{len(batch)} x " if len(batch) > 1 else ""
    return f"{count}{batch.shape[-1]}x{batch.shape[-2]}"
