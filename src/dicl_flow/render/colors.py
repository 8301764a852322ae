"""Changes of colour that are the same for every pixel of a frame."""

import torch
from torch import Tensor


def mix_colors(image: Tensor, matrix: Tensor, offset: Tensor) -> Tensor:
    """Apply a matrix (B, 3, 3) and an offset (B,) to the colours of each frame, (B, 3, H, W).

    Not a batched matrix product: three rows are too few for it to be fast on a GPU.
    """
    red, green, blue = image.split(1, 1)
    from_red, from_green, from_blue = matrix[..., None, None].unbind(2)  # (B, 3, 1, 1)
    mixed = torch.addcmul(offset[:, None, None, None], from_red, red)
    return mixed.addcmul_(from_green, green).addcmul_(from_blue, blue)
