"""The least time that the arithmetic and memory traffic of a network can take on a machine."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..config import NORMAL, QUALITIES, ModelConfig, Quality
from ..estimation.feeding import Feeding
from ..matching import MatchingNet, PairwiseMatcher
from ..models import InitialFlow, build
from .clock import median_seconds

_PROBES = {"cuda": (8192, 256)}  # side of a matrix and MiB of a copy that keep a device busy
_CONVOLUTIONS = nn.Conv2d | nn.ConvTranspose2d | nn.Conv3d


@dataclass
class Work:
    """Floating-point operations, and numbers that convolutions read and write."""

    operations: float = 0
    numbers: float = 0


def count_work(
    config: ModelConfig,
    batch: int,
    size: tuple[int, int],
    quality: Quality = QUALITIES[NORMAL],
) -> Work:
    """Count the convolutions of `batch` pairs of (height, width), with the first layer factored.

    In each pass both images go through the feature net, and the pair through each level that runs.
    """
    work = Work()
    with torch.device("meta"):
        model = build(config).eval()
    repeats = {  # factored, these layers run once instead of once for each displacement
        matcher.net.first.conv: (2 * matcher.radius + 1) ** 2
        for matcher in model.modules()
        if isinstance(matcher, PairwiseMatcher) and isinstance(matcher.net, MatchingNet)
    }
    for layer in model.modules():
        if isinstance(layer, _CONVOLUTIONS):
            layer.register_forward_hook(partial(_count, work, repeats.get(layer, 1)))
    for number, scale in enumerate(quality.scales):
        sides = Feeding.of(config, scale).seen(size)
        with torch.no_grad(), torch.device("meta"):
            image, flow = torch.empty(batch, 3, *sides), torch.empty(batch, 2, *sides)
            model(image, image, InitialFlow(flow, quality.start) if number else None)
    return work


def floor_seconds(work: Work, rates: tuple[float, float], dtype: torch.dtype) -> float:
    """Time at the peak rates of the machine: all operations or all traffic, whichever is longer."""
    return max(work.operations / rates[0], work.numbers * dtype.itemsize / rates[1])


def machine_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Measure operations per second of a matrix product and bytes per second of a copy."""
    side, mebibytes = _PROBES.get(device.type, (1024, 64))
    if device.type == "cpu" and dtype == torch.float16:
        dtype = torch.float32  # most layers; torch takes seconds for such a product of float16
    matrix = torch.randn(side, side, device=device).to(dtype)
    source = torch.empty(mebibytes << 20, dtype=torch.uint8, device=device)
    product = median_seconds(lambda: matrix @ matrix, device, repeats=10)
    copy = median_seconds(source.clone, device, repeats=10)
    return 2 * side**3 / product, 2 * source.numel() / copy


def _count(
    work: Work, repeats: int, layer: nn.Module, inputs: tuple[Tensor], output: Tensor
) -> None:
    assert isinstance(layer, _CONVOLUTIONS)
    pixels = inputs[0] if isinstance(layer, nn.ConvTranspose2d) else output
    positions = pixels.numel() // pixels.shape[1]
    work.operations += 2 * positions * layer.weight.numel() / repeats
    work.numbers += inputs[0].numel() / repeats + output.numel() + layer.weight.numel()
