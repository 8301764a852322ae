"""Parts of a DICL network with kernels between their convolutions, for training on GPUs."""

from torch import Tensor

from ...matching import DisplacementProjection
from ...models.dicl import DiclLevel
from ...nn import Merge


class AcceleratedMerge(Merge):
    """A `Merge` whose ReLU and concatenation are one kernel."""

    def forward(self, neighbour: Tensor, skip: Tensor) -> Tensor:
        """(B, in, h, w), (B, C, H, W) -> (B, C, H, W)."""
        from ..kernels.merge_input import trainable_merge_input

        fused: Tensor = self.fuse(trainable_merge_input(self.resample.conv(neighbour), skip))
        return fused


class AcceleratedDiclLevel(DiclLevel):
    """A `DiclLevel` that projects its scores and reads the flow off them in one kernel."""

    def read_off(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DiclLevel`."""
        from ..kernels.trained_readout import MOST_DISPLACEMENTS, trained_readout

        projection = self.projection
        if scores.shape[1] * scores.shape[2] > MOST_DISPLACEMENTS:
            return super().read_off(scores)
        weight = projection.weight if isinstance(projection, DisplacementProjection) else None
        return trained_readout(scores, weight)
