"""What an estimator chooses on this machine, and why: for people who wonder."""

from math import prod
from typing import NamedTuple

import torch

from ..accelerated.inference import available_bytes, is_supported
from ..config import ModelConfig
from .compute import choose_backend, choose_device, choose_precision
from .confidence import UNCALIBRATED
from .estimator import FlowEstimator
from .feeding import Feeding


class Choice(NamedTuple):
    """A value and its reason."""

    value: str
    reason: str


def explain(
    config: ModelConfig,
    device: str = "auto",
    precision: str = "auto",
    backend: str = "auto",
    memory_limit: int | None = None,
) -> dict[str, Choice]:
    """Choose for these settings as `FlowEstimator` does."""
    place = choose_device(device)
    path = choose_backend(backend, config, place)
    dtype = choose_precision(precision, place, path)
    memory = f"{(memory_limit or available_bytes(place)) / 2**30:.1f} GiB"
    return {
        "device": _choice(device, str(place), _why_device(place)),
        "backend": _choice(backend, path, _why_backend(path, config, place)),
        "precision": _choice(precision, dtype, _why_precision(dtype, path)),
        "memory": Choice(memory, "as asked" if memory_limit else "most of what is free"),
    }


def explain_frame(estimator: FlowEstimator, size: tuple[int, int]) -> Choice:
    """Whether frames of (height, width) are computed whole, scaled down or in tiles."""
    config = estimator.model.config
    tile = estimator.tile(torch.empty(1, 3, *size, device="meta"))
    if tile != size:
        piece = (min(tile[0], size[0]), min(tile[1], size[1]))
        return Choice(f"in tiles of {_text(piece)}", "the memory does not suffice for the whole")
    quality, multiples = estimator.quality, f"multiples of {config.pad_multiple} px"
    if quality.scales != (1.0,):
        sizes = (Feeding(config, scale).seen(size) for scale in quality.scales)
        text = ", then as ".join(map(_text, sizes))
        return Choice(f"whole, seen as {text}", f"quality {quality.name!r}")
    seen = estimator.seen_size(size)
    if seen == size:
        return Choice("whole", f"the network takes {multiples}")
    if config.padding != "resize":
        return Choice(f"whole, padded to {_text(seen)}", f"the network takes {multiples}")
    how = f"{_text(seen)}, {_share(seen, size)}"
    if prod(seen) < prod(size):
        reason = f"max_pixels: these weights take about {config.max_pixels} px at most"
        return Choice(f"scaled down to {how}", reason)
    return Choice(f"whole, resized to {how}", f"the network takes {multiples}")


def computed(estimator: FlowEstimator, size: tuple[int, int]) -> dict[str, str]:
    """What to tell of every estimate of frames of (height, width): at which size, in whose px."""
    resized = estimator.model.config.padding == "resize"
    seen = estimator.seen_size(size) if resized else size
    return {
        "computed": explain_frame(estimator, size).value,
        "computed_size": _text(seen),
        "confidence": _explain_confidence(estimator, seen, size),
    }


def _explain_confidence(
    estimator: FlowEstimator, seen: tuple[int, int], size: tuple[int, int]
) -> str:
    calibration = estimator.calibration
    if calibration is None:
        return f"uncalibrated: {UNCALIBRATED}"
    if seen == size:
        return calibration.meaning
    across, down = (calibration.threshold * size[i] / seen[i] for i in (1, 0))
    return f"{calibration.meaning} of {_text(seen)}: {across:.2f}x{down:.2f} px of the frame"


def _choice(asked: str, value: str, reason: str) -> Choice:
    return Choice(value, reason if asked == "auto" else "as asked")


def _why_device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "no CUDA device is there" + ", nor MPS" * (device.type == "cpu")


def _why_backend(backend: str, config: ModelConfig, device: torch.device) -> str:
    if backend == "fast":
        return "this network has a fast twin for this device"
    if not is_supported(config):
        return f"host {config.host!r} with matcher {config.matcher!r} has no fast twin"
    return "Triton is not installed" if device.type == "cuda" else "there is no fast twin for MPS"


def _why_precision(precision: str, backend: str) -> str:
    if precision == "bf16":
        return "this processor has AMX"
    if precision == "fp16":
        return "the kernels' best on CUDA"
    return "this processor has no AMX" if backend == "fast" else "the plain backend's default"


def _share(seen: tuple[int, int], size: tuple[int, int]) -> str:
    """How large one size is, measured by the other."""
    height, width = (f"{seen[i] / size[i]:.2f}" for i in range(2))
    if height == width:
        return f"{width} of the size"
    return f"{width} of the width and {height} of the height"


def _text(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"
