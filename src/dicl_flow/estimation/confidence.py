"""How far a flow can be trusted: confidence from what the network computed, and occlusion."""

from collections.abc import Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import Calibration
from ..models import LevelFlow
from ..ops import resize, size_of, upsample_flow, warp_with_mask

UNCALIBRATED = "one minus the entropy of the finest match; it ranks pixels but is not a probability"
NOISE = 0.02  # difference in brightness that may be noise; black to white is 2


def find_confidence(
    levels: Sequence[LevelFlow],
    image1: Tensor,
    image2: Tensor,
    calibration: Calibration | None,
    scale: float = 1.0,
) -> Tensor:
    """(B, 1, H, W) in [0, 1] at the size of the (B, 3, H, W) images that the network sees."""
    if calibration is None:
        return (1 - resize(levels[-1].entropy, size_of(image1))).clamp(0, 1)
    cues = find_cues(levels, image1, image2, scale).split(1, 1)
    logit = torch.full_like(cues[0], calibration.bias)
    for weight, cue in zip(calibration.weights, cues, strict=True):
        logit += weight * cue  # numbers, not a tensor: nothing is copied to the device
    return resize(logit, size_of(image1)).sigmoid()


def find_cues(
    levels: Sequence[LevelFlow], image1: Tensor, image2: Tensor, scale: float = 1.0
) -> Tensor:
    """Reasons to doubt the finest flow, (B, 7, h, w) at its size, in the order of `CUES`.

    - entropy of the match
    - refinement: how far the context net moved the match
    - disagreement with the next coarser level
    - length of the flow
    - edge: how much the flow varies among the 3x3 neighbours
    - difference between frame 1 and warped frame 2
    - outside: 1 where the flow leaves the frame

    Lengths are log(1 + px) of the frame that the network sees; the difference is a logarithm. If
    frames are fed at a `scale` other than 1, a px is one of scale 1.
    """
    finest = levels[-1]
    flow = finest.refined
    size, stride = size_of(flow), finest_stride(levels, image1, scale)
    coarser = upsample_flow(levels[-2].refined, size) if len(levels) > 1 else flow
    small1, small2 = resize(image1, size), resize(image2, size)
    warped, inside = warp_with_mask(small2, flow)
    lengths = [flow - finest.matched, flow - coarser, flow, _spread(flow)]
    cues = [
        finest.entropy,
        *(torch.log1p(stride * _length(vectors)) for vectors in lengths),
        torch.log((warped - small1).abs().mean(1, keepdim=True) + NOISE),
        1 - inside.to(flow.dtype),
    ]
    return torch.cat(cues, 1)


def finest_stride(levels: Sequence[LevelFlow], image1: Tensor, scale: float) -> float:
    """That of the finest level, in px of scale 1."""
    return image1.shape[-1] / levels[-1].refined.shape[-1] / scale


def _spread(maps: Tensor) -> Tensor:
    """(B, C, H, W) -> the largest minus the smallest of 3x3 neighbours; pooling is far slower."""
    largest = smallest = F.pad(maps, [1] * 4, mode="replicate")
    for axis, side in enumerate(maps.shape[2:], 2):
        first, *others = (largest.narrow(axis, start, side) for start in range(3))
        largest = reduce(torch.maximum, others, first)
        first, *others = (smallest.narrow(axis, start, side) for start in range(3))
        smallest = reduce(torch.minimum, others, first)
    return largest - smallest


def _length(vectors: Tensor) -> Tensor:
    """(B, 2, H, W) -> (B, 1, H, W); a norm over such a short axis is several times slower."""
    x, y = vectors.split(1, 1)
    return torch.sqrt(x * x + y * y)


def find_occlusion(
    flow: Tensor, backward: Tensor, relative: float = 0.05, absolute: float = 4.0
) -> Tensor:
    """(B, 2, H, W) flow and backward flow -> (B, 1, H, W) bool.

    A pixel p is occluded if p + f(p) leaves the frame, or if the backward flow b does not lead
    back to it: |f + b|² > relative (|f|² + |b|²) + absolute px², with b read at p + f(p). The
    defaults were chosen on rendered scenes: docs/how-to/confidence-and-occlusion.md.
    """
    back, inside = warp_with_mask(backward, flow)
    miss = (flow + back).square().sum(1, keepdim=True)
    motion = (flow.square() + back.square()).sum(1, keepdim=True)
    return ~inside | (miss > relative * motion + absolute)
