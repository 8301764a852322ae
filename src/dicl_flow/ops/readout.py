"""From scores to flow: softmax, expectation and entropy, never below float32."""

from math import log

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert half precision to float32; leave float32 and float64 as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def displacement_probability(scores: Tensor) -> Tensor:
    """Softmax of (B, U, V, H, W) scores over the U·V displacements."""
    flat = at_least_float32(scores).flatten(1, 2)
    return flat.softmax(1).unflatten(1, scores.shape[1:3])


def expected_displacement(probability: Tensor) -> Tensor:
    """2-D soft-argmax: (B, U, V, H, W) -> (B, 2, H, W), x first, in pixels of this level."""
    _, num_u, num_v, _, _ = probability.shape
    horizontal = _centred_range(num_u, probability)
    vertical = _centred_range(num_v, probability)
    x = (probability.sum(2) * horizontal[:, None, None]).sum(1)  # (B, H, W)
    y = (probability.sum(1) * vertical[:, None, None]).sum(1)
    return torch.stack([x, y], 1)


def normalized_entropy(probability: Tensor) -> Tensor:
    """Ambiguity of (B, U, V, H, W): (B, 1, H, W), 0 for a single peak, 1 if all are equal."""
    smallest = torch.finfo(probability.dtype).tiny  # 0 · log 0 is 0
    entropy = -(probability * probability.clamp_min(smallest).log()).sum((1, 2))
    num_hypotheses = probability.shape[1] * probability.shape[2]
    return (entropy / log(num_hypotheses)).unsqueeze(1)


def truncate_scores(scores: Tensor, radius: int) -> Tensor:
    """Make (B, U, V, H, W) scores -inf farther than `radius` from the best one, on either axis.

    A softmax over the rest describes one peak: a second one far away does not shift its mean.
    """
    num_u, num_v = scores.shape[1:3]
    peak = scores.flatten(1, 2).argmax(1)[:, None, None]  # (B, 1, 1, H, W)
    u = torch.arange(num_u, device=scores.device)[:, None, None, None]
    v = torch.arange(num_v, device=scores.device)[:, None, None]
    far = ((u - peak // num_v).abs() > radius) | ((v - peak % num_v).abs() > radius)
    return scores.masked_fill(far, -torch.inf)


def _centred_range(length: int, like: Tensor) -> Tensor:
    radius = length // 2
    return torch.arange(-radius, radius + 1, dtype=like.dtype, device=like.device)
