"""The look of footage, given to rendered scenes: exact flow in the footage's colours and noise.

What is hard in a domain is mostly how pictures look: little contrast, a cast, noise. The teacher's
pixels are those that are easy nevertheless; scenes with that look are hard everywhere, and known.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import FlowBatch
from ..ops import warp_with_mask
from ..training import BatchSource, Processes

# grey, then two differences of colour, which hardly vary together with it
_OPPONENT = (
    torch.tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / torch.tensor([3, 2, 6]).sqrt()[:, None]
)
_SMOOTHED = 5  # px: slower differences are light, not noise
_ROBUST = 1.4826  # median distance from zero -> standard deviation of normal noise
_FEWEST = 500  # pixels, to measure noise
_FLAT = 0.02  # spread: less is not stretched
_LARGEST_GAIN = 4.0


class Look(NamedTuple):
    """Statistics of a pair of frames, each of grey and two differences of colour."""

    mean: list[float]
    spread: list[float]
    """Standard deviation, without the noise."""
    noise: list[float]
    """Standard deviation of what differs from frame to frame at every pixel."""


@torch.no_grad()
def measure_look(image1: Tensor, image2: Tensor, flow: Tensor, kept: Tensor) -> Look:
    """Measure (1, 3, H, W) frames in [0, 1], with the flow between them where it is `kept`."""
    first, second = _opponent(image1), _opponent(image2)
    both = torch.cat([first, second]).transpose(0, 1).flatten(1)  # (3, N)
    difference = first - warp_with_mask(second, flow)[0]
    light = F.avg_pool2d(difference, _SMOOTHED, 1, _SMOOTHED // 2, count_include_pad=False)
    rest = ((difference - light) / _deviation(flow))[0][:, kept[0]].abs()  # (3, kept)
    noise = both.new_zeros(3)
    if rest.shape[1] >= _FEWEST:
        noise = _ROBUST * rest.median(1).values
    spread = (both.var(1) - noise.square()).clamp(min=0).sqrt()
    return Look(both.mean(1).tolist(), spread.tolist(), noise.tolist())


def _deviation(flow: Tensor) -> Tensor:
    """(1, 1, H, W): of noise of 1 in both frames, one of them blended between its pixels."""
    part = flow - flow.floor()
    return (1 + (part.square() + (1 - part).square()).prod(1, keepdim=True)).sqrt()


def encode_look(look: Look) -> bytes:
    """A look -> the bytes of a file for `read_looks`."""
    return json.dumps(look).encode()


def read_looks(paths: Sequence[Path]) -> Tensor:
    """(L, 3, 3) mean, spread and noise of each file."""
    return torch.tensor([json.loads(path.read_text()) for path in paths])


def _opponent(images: Tensor) -> Tensor:
    """(B, 3, H, W) RGB -> grey and two differences of colour."""
    return torch.einsum("ij,bjhw->bihw", _OPPONENT.to(images), images)


def _rgb(images: Tensor) -> Tensor:
    return torch.einsum("ji,bjhw->bihw", _OPPONENT.to(images), images)


def give_look(images: Tensor, look: Tensor, generator: torch.Generator) -> Tensor:
    """(2, B, 3, H, W) frames of B pairs, and a look (B, 3, 3) for each -> the same, with it."""
    mean, spread, noise = look.to(images)[..., None, None].unbind(1)  # (B, 3, 1, 1)
    colors = _opponent(images.flatten(0, 1)).unflatten(0, images.shape[:2])
    own_spread, own_mean = torch.std_mean(colors, (0, 3, 4), keepdim=True)
    gain = (spread / own_spread.clamp(min=_FLAT)).clamp(max=_LARGEST_GAIN)
    dice = torch.randn(colors.shape, generator=generator, device=colors.device)
    colors = (colors - own_mean) * gain + mean + noise * dice
    return _rgb(colors.flatten(0, 1)).unflatten(0, images.shape[:2]).clamp(0, 1)


class InLook:
    """Batches of a source; a share of the pairs gets one of the looks (L, 3, 3)."""

    def __init__(self, source: BatchSource, looks: Tensor, share: float, seed: int) -> None:
        self.source, self.looks, self.share, self.seed = source, looks, share, seed

    def batches(self, size: int, start_step: int, processes: Processes) -> Iterator[FlowBatch]:
        """See `BatchSource`."""
        looks, generator = self.looks.to(processes.device), torch.Generator(processes.device)
        batches = self.source.batches(size, start_step, processes)
        for step, batch in zip(count(start_step), batches, strict=False):
            # a step's draws depend on nothing before it
            generator.manual_seed((self.seed << 32) + step * processes.world_size + processes.rank)
            yield self._looked(batch, looks, generator)

    def _looked(self, batch: FlowBatch, looks: Tensor, generator: torch.Generator) -> FlowBatch:
        images, pairs = torch.stack([batch.image1, batch.image2]), len(batch.flow)
        drawn = torch.rand(2, pairs, generator=generator, device=images.device)
        chosen = looks[(drawn[0] * len(looks)).long()]
        gets = drawn[1] < self.share
        looked = give_look(images, chosen, generator)
        image1, image2 = looked.where(gets[:, None, None, None], images)
        return replace(batch, image1=image1, image2=image2)
