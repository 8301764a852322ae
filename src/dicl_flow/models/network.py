"""What all hosts have in common: what goes in, what comes out."""

from typing import NamedTuple

from torch import Tensor, nn

from ..config import ModelConfig
from ..ops import upsample_flow


class LevelFlow(NamedTuple):
    """What one level found, in pixels of that level, never below float32."""

    matched: Tensor
    """(B, 2, H, W): read off the scores."""
    refined: Tensor
    """(B, 2, H, W): corrected by the context net; the matched flow where there is none."""
    entropy: Tensor
    """(B, 1, H, W): ambiguity of the match, 0 … 1."""
    out_of_range: Tensor | None = None
    """(B, 1, H, W): logits that the motion left lies beyond the radius; VCN's, in training."""


class FlowNetwork(nn.Module):
    """A host. Images come normalised to [-1, 1], sides multiples of `config.pad_multiple`.

    `model(image1, image2)` takes two (B, 3, H, W) and returns `list[LevelFlow]`, coarsest first.
    """

    training_only: str | None = None
    """What the names of parameters contain that only training needs."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    def upsample(self, flow: Tensor, size: tuple[int, int]) -> Tensor:
        """Bring the flow of a level to `size`, its vectors with it, as this host does."""
        return upsample_flow(flow, size)

    def both_ways(self, image1: Tensor, image2: Tensor) -> tuple[list[LevelFlow], list[LevelFlow]]:
        """The flow from 1 to 2 and that from 2 to 1."""
        return self(image1, image2), self(image2, image1)

    def _check(self, image1: Tensor, image2: Tensor) -> None:
        if image1.shape != image2.shape:
            raise ValueError(f"image shapes differ: {image1.shape} and {image2.shape}")
        multiple = self.config.pad_multiple
        if image1.shape[-2] % multiple or image1.shape[-1] % multiple:
            raise ValueError(
                f"image sides must be multiples of {multiple}, got {tuple(image1.shape[-2:])}; "
                f"use FlowEstimator or ops.pad_to_multiple"
            )
