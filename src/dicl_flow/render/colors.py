"""Changes of the colours of whole frames."""

import torch
from torch import Tensor

from . import kernels
from .scene import upsample

_DARKEST = 1e-4  # before a power


def recolor(
    image: Tensor,
    matrix: Tensor,
    offset: Tensor,
    exposure: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Apply a matrix (B, 3, 3) and an offset (B,) to the colours of frames (B, 3, H, W).

    The result is in [0, 1]. `exposure` is light (B, 1, h, w), factors on a coarse grid that are
    applied before, and gamma (B,), exponents that are applied after.
    """
    lowest = _DARKEST if exposure else 0.0
    if kernels.usable(image.device):
        from .kernels.effects import recolor as recolor_at_once  # imports Triton

        return recolor_at_once(image, matrix, offset, exposure, lowest)
    light, gamma = exposure or (None, None)
    if light is not None:
        image = image * upsample(light, (image.shape[2], image.shape[3]))
    red, green, blue = image.split(1, 1)
    from_red, from_green, from_blue = matrix[..., None, None].unbind(2)  # (B, 3, 1, 1)
    mixed = torch.addcmul(offset[:, None, None, None], from_red, red)
    mixed = mixed.addcmul_(from_green, green).addcmul_(from_blue, blue).clamp_(lowest, 1)
    return mixed if gamma is None else mixed.pow_(gamma[:, None, None, None])
