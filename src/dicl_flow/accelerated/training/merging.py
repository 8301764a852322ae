"""The merges of the feature pyramid, for training on GPUs."""

from torch import Tensor

from ...nn import Merge


class AcceleratedMerge(Merge):
    """A `Merge` whose ReLU and concatenation are one kernel."""

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        from ..kernels.merge_input import trainable_merge_input

        fused: Tensor = self.fuse(trainable_merge_input(self.resample.conv(neighbour), skip))
        return fused
