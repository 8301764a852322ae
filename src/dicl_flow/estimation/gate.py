"""Pairs without information on motion: a frame of a single colour, or two equal frames."""

import torch
from torch import Tensor

BLANK = 3 / 255  # one grey level, and half of one for rounding; black to white is 2


def gate(answer: Tensor, image1: Tensor, image2: Tensor) -> Tensor:
    """(B, 3 or 4, H, W) packed estimate and (B, 3, h, w) images -> the same, gated.

    A pair with a frame of a single colour gets 0 in all channels: nothing can be matched.
    A pair of equal frames gets flow 0. All others stay as they are, bit for bit.
    """
    blank = torch.minimum(_contrast(image1), _contrast(image2)) < BLANK
    still = blank | ((image1 - image2).abs().amax((1, 2, 3), keepdim=True) == 0)
    others = [blank] * (answer.shape[1] - 2)
    return answer.masked_fill(torch.cat([still, still, *others], 1), 0)


def _contrast(image: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, 1, 1): brightest minus darkest, of the channel that varies most."""
    extent = image.amax((2, 3), keepdim=True) - image.amin((2, 3), keepdim=True)
    return extent.amax(1, keepdim=True)
