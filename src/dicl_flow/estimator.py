"""Images in, flow out: the face for Python users."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import InputError, unknown_name
from .files import write_flow
from .inputs import Array, ImageInput, image_batch, normalize
from .models import DiclFlow
from .ops import crop, pad_to_multiple, resize, upsample_flow
from .visualize import flow_to_rgb
from .weights import load_model, read_weights, resolve

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("auto", "cpu", "cuda", "mps")


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

    def __init__(self, model: DiclFlow, device: str = "auto", precision: str = "auto") -> None:
        self.device = choose_device(device)
        self.precision = choose_precision(precision)
        self.model = model.to(self.device).eval()

    def __call__(self, image1: ImageInput, image2: ImageInput) -> FlowResult:
        """Estimate where each pixel of `image1` went in `image2`.

        Paths, arrays (H, W, 3), tensors (3, H, W), or batches of them; see
        `dicl_flow.inputs.image_batch` for all that is understood.
        """
        (batch1, is_batch), (batch2, _) = image_batch(image1), image_batch(image2)
        if batch1.shape != batch2.shape:
            raise InputError(
                f"the two images must have one size, got {_size(batch1)} and {_size(batch2)}"
            )
        flow, confidence = self.estimate(batch1, batch2)
        result = FlowResult(
            np.ascontiguousarray(flow.permute(0, 2, 3, 1).cpu().numpy()),
            confidence[:, 0].cpu().numpy(),
        )
        return result if is_batch else result[0]

    @torch.inference_mode()
    def estimate(self, image1: Tensor, image2: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) in [0, 1] -> flow (B, 2, H, W), confidence (B, 1, H, W), on the device."""
        size = (image1.shape[-2], image1.shape[-1])
        config = self.model.config
        padded1, padded2 = (
            pad_to_multiple(normalize(image.to(self.device)), config.pad_multiple, config.padding)
            for image in (image1, image2)
        )
        with self._arithmetic():
            finest = self.model(padded1, padded2)[-1]
        full_size = (padded1.shape[-2], padded1.shape[-1])
        flow = upsample_flow(finest.refined, full_size)
        confidence = 1 - resize(finest.entropy, full_size)
        return crop(flow, size), crop(confidence, size).clamp(0, 1)

    def _arithmetic(self) -> AbstractContextManager[object]:
        """Reduced precision where it was asked for, and float32 that is float32 where not."""
        stack = ExitStack()
        if self.precision != "fp32":
            dtype = PRECISIONS[self.precision]
            stack.enter_context(torch.autocast(self.device.type, dtype=dtype))
        elif self.device.type == "cuda":  # convolutions would use TF32, ten bits, by default
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
        return stack


def load(
    weights: str | Path | None = None, device: str = "auto", precision: str = "auto"
) -> FlowEstimator:
    """Return an estimator for a weights file or a packaged name; without either, the default.

    `device` is "auto" (CUDA, else MPS, else CPU), "cpu", "cuda", "cuda:1", "mps";
    `precision` is "auto" (float32), "fp32", "bf16" or "fp16".
    """
    path = resolve(weights)
    try:
        model = load_model(read_weights(path))
    except InputError as error:
        message = str(error)
        raise InputError(message if str(path) in message else f"{path}: {message}") from None
    return FlowEstimator(model, device, precision)


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


def choose_precision(name: str) -> str:
    """Resolve "auto" and refuse unknown names."""
    if name == "auto":
        return "fp32"
    if name not in PRECISIONS:
        raise unknown_name("precision", name, ["auto", *PRECISIONS])
    return name


def _size(batch: Tensor) -> str:
    count = f"{len(batch)} x " if len(batch) > 1 else ""
    return f"{count}{batch.shape[-1]}x{batch.shape[-2]}"
