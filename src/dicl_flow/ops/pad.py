import torch.nn.functional as F
from torch import Tensor

WHITE = 1.0  # in normalised units, see docs/conventions.md


def pad_to_multiple(images: Tensor, multiple: int, padding: str = "replicate") -> Tensor:
    """Fill (B, C, H, W) at the right and the bottom until both sides divide by `multiple`.

    `padding` is "replicate" (repeat the border) or "white" (as the authors' KITTI weights
    expect).
    """
    height, width = images.shape[-2:]
    right, bottom = -width % multiple, -height % multiple
    if padding == "white":
        return F.pad(images, (0, right, 0, bottom), value=WHITE)
    return F.pad(images, (0, right, 0, bottom), mode="replicate")


def crop(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Undo `pad_to_multiple`: keep the top left (height, width)."""
    return images[..., : size[0], : size[1]]
