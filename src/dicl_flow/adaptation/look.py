"""The look of footage, given to rendered scenes: exact flow in the footage's contrast and noise.

What is hard in a domain is mostly how pictures look: little contrast, a cast, noise. The teacher's
pixels are those that are easy nevertheless; scenes with that look are hard everywhere, and known.

A picture is taken apart into grey and two differences of colour, and each of these into bands of
fine to coarse detail and the rest. A look has the contrast of every band, and the noise, in each of
6x8 parts of the frame: fog takes the contrast of what is far, a lamp lights the middle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import FlowBatch
from ..files import decode_npy, encode_npy, read_bytes
from ..ops import size_of, upsample_pixels, warp_with_mask
from ..training import BatchSource, Processes

# grey, then two differences of colour, which hardly vary together with it
_OPPONENT = (
    torch.tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / torch.tensor([3, 2, 6]).sqrt()[:, None]
)
BANDS = 6  # each twice as coarse as the one before
PARTS = (6, 8)  # rows and columns of the frame
LOOK = (3, BANDS + 4, *PARTS)
"""Shape of a look: of each colour, maps of contrast, the noise of each pixel, the noise that stays,
and mean and spread of the rest, which are the same everywhere."""
_SMOOTHED = 5  # px: slower differences are light, not noise
_NORMAL = 1.2533  # mean distance from zero -> standard deviation, of normal noise
_OUTLIER = 0.3  # differences beyond are no noise
_FEWEST = 0.1  # share of the pixels of a part that is kept, to measure noise by these alone
_MOVED = 3.0  # px: detail that moves so far is not that of the pixel any more
_FLAT = 0.002  # contrast: less is not stretched
_LARGEST_GAIN = 4.0


@torch.no_grad()
def measure_look(image1: Tensor, image2: Tensor, flow: Tensor, kept: Tensor) -> Tensor:
    """Measure (1, 3, H, W) frames in [0, 1], with the flow between them where it is `kept`.

    Returns a `LOOK`.
    """
    first, second = _opponent(image1), _opponent(image2)
    noise = _noise_variance(first, second, flow, kept)
    stays = _variance_that_stays(first, second, flow, kept).minimum(noise)
    bands, rest = _bands(torch.cat([first, second]))
    contrast = [
        (_pooled(band.square()).mean(0) - part * noise).clamp(min=0).sqrt()
        for band, part in zip(bands, _parts_of_noise(), strict=True)
    ]
    spread, mean = torch.std_mean(rest, (0, 2, 3))
    light = [value[:, None, None].expand(-1, *PARTS) for value in (mean, spread)]
    return torch.stack([*contrast, (noise - stays).sqrt(), stays.sqrt(), *light], 1)


def _noise_variance(first: Tensor, second: Tensor, flow: Tensor, kept: Tensor) -> Tensor:
    """(3, rows, columns): of what differs between the frames at every pixel of the scene.

    Where little is kept, there is mostly little to see, and the flow matters little; but the noise
    is not larger than elsewhere.
    """
    differences = _fine(first - warp_with_mask(second, flow)[0]) / _deviation(flow)
    away = differences.abs().clamp(max=_OUTLIER)
    is_kept = kept[:, None].to(away.dtype)
    share, everywhere = _pooled(is_kept), _pooled(away)
    by_kept = _pooled(away * is_kept) / share.clamp(min=1e-6)
    usual = (away * is_kept).sum((2, 3), keepdim=True) / is_kept.sum().clamp(min=1)
    return (_NORMAL * by_kept.where(share >= _FEWEST, everywhere.minimum(usual))[0]).square()


def _variance_that_stays(first: Tensor, second: Tensor, flow: Tensor, kept: Tensor) -> Tensor:
    """(3, 1, 1): of the noise that is the same in both frames, as that of a sensor can be.

    Measured where the scene has moved on; 0 if it has not.
    """
    moved = (kept & (flow.abs().amax(1) > _MOVED))[:, None].to(first.dtype)
    both = (_fine(first) * _fine(second) * moved).sum((0, 2, 3))
    share = moved.mean()
    variance = (both / moved.sum().clamp(min=1)).clamp(min=0)
    return variance.where(share >= _FEWEST, 0.0)[:, None, None]


def _fine(images: Tensor) -> Tensor:
    """What is finer than some pixels."""
    return images - F.avg_pool2d(images, _SMOOTHED, 1, _SMOOTHED // 2, count_include_pad=False)


def _deviation(flow: Tensor) -> Tensor:
    """(1, 1, H, W): of noise of 1 in both frames, one of them blended between its pixels."""
    part = flow - flow.floor()
    return (1 + (part.square() + (1 - part).square()).prod(1, keepdim=True)).sqrt()


def _bands(images: Tensor) -> tuple[list[Tensor], Tensor]:
    """Detail from fine to coarse, each of half the size of the one before, and the rest."""
    bands = []
    for _ in range(BANDS):
        small = F.avg_pool2d(images, 2, ceil_mode=True, count_include_pad=False)
        bands.append(images - upsample_pixels(small, size_of(images)))
        images = small
    return bands, images


def _merged(bands: Sequence[Tensor], rest: Tensor) -> Tensor:
    """The inverse of `_bands`."""
    for band in reversed(bands):
        rest = band + upsample_pixels(rest, size_of(band))
    return rest


@cache
def _parts_of_noise() -> tuple[float, ...]:
    """The variance of each band of noise of 1."""
    white = torch.randn(1, 1, 512, 512, generator=torch.Generator().manual_seed(0))
    return tuple(float(band.var()) for band in _bands(white)[0])


def _pooled(images: Tensor) -> Tensor:
    """The mean of each part of the frames."""
    return F.adaptive_avg_pool2d(images, PARTS)


def encode_look(look: Tensor) -> bytes:
    """A look -> the bytes of a file for `read_looks`."""
    return encode_npy(look.cpu().numpy())


def read_looks(paths: Sequence[Path]) -> Tensor:
    """(L, *LOOK): the looks of files."""
    return torch.stack([torch.tensor(decode_npy(read_bytes(path))) for path in paths])


def _opponent(images: Tensor) -> Tensor:
    """(B, 3, H, W) RGB -> grey and two differences of colour."""
    return torch.einsum("ij,bjhw->bihw", _OPPONENT.to(images), images)


def _rgb(images: Tensor) -> Tensor:
    return torch.einsum("ji,bjhw->bihw", _OPPONENT.to(images), images)


def give_look(images: Tensor, look: Tensor, generator: torch.Generator) -> Tensor:
    """(2, B, 3, H, W) frames of B pairs, and a look (B, *LOOK) for each -> the same, with it."""
    contrast, (noise, stays, mean, spread) = look[:, :, :BANDS], look[:, :, BANDS:].unbind(2)
    pairs = images.shape[:2]
    bands, rest = _bands(_opponent(images.flatten(0, 1)))
    bands = [
        (band.unflatten(0, pairs) * _gain(band.unflatten(0, pairs), wanted)).flatten(0, 1)
        for band, wanted in zip(bands, contrast.unbind(2), strict=True)
    ]
    light = rest.unflatten(0, pairs)
    own_spread, own_mean = torch.std_mean(light, (0, 3, 4), keepdim=True)
    gain = (spread[..., :1, :1] / own_spread.clamp(min=_FLAT)).clamp(max=_LARGEST_GAIN)
    rest = ((light - own_mean) * gain + mean[..., :1, :1]).flatten(0, 1)
    colors = _merged(bands, rest).unflatten(0, pairs)
    size = size_of(colors)
    for each, shape in ((noise, colors.shape), (stays, colors.shape[1:])):
        dice = torch.randn(shape, generator=generator, device=colors.device)
        colors = colors + upsample_pixels(each, size) * dice
    return _rgb(colors.flatten(0, 1)).unflatten(0, pairs).clamp(0, 1)


def _gain(band: Tensor, wanted: Tensor) -> Tensor:
    """(B, 3, H, W): what makes the contrast of (2, B, 3, H, W) that of maps (B, 3, rows, columns).

    Parts of a scene that have more contrast than others keep it.
    """
    own = band.square().mean((0, 3, 4)).sqrt()[..., None, None]
    gain = (wanted / own.clamp(min=_FLAT)).clamp(max=_LARGEST_GAIN)
    return upsample_pixels(gain, size_of(band))


class InLook:
    """Batches of a source; a share of the pairs gets one of the looks (L, *LOOK)."""

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
