"""Pairs that tell nothing of motion: a frame of one colour, or the same frame twice."""

import torch
from torch import Tensor

_BLANK = 3 / 255  # of 2 from black to white: one grey level, and half of one for rounding


def gate(answer: Tensor, image1: Tensor, image2: Tensor) -> Tensor:
    """(B, 3, H, W) flow and confidence, the (B, 3, h, w) images they are of -> the same, gated.

    Pairs with a frame of one colour get flow 0 of confidence 0: nothing can be matched. Pairs
    of twice the same frame get flow 0. All others stay as they are, bit by bit.
    """
    blank = torch.minimum(_contrast(image1), _contrast(image2)) < _BLANK
    still = blank | ((image1 - image2).abs().amax((1, 2, 3), keepdim=True) == 0)
    return answer.masked_fill(torch.cat([still, still, blank], 1), 0)


def _contrast(image: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, 1, 1, 1): between the darkest pixel and the brightest, of any colour."""
    extent = image.amax((2, 3), keepdim=True) - image.amin((2, 3), keepdim=True)
    return extent.amax(1, keepdim=True)
