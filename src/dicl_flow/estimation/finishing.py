"""From what the last pass found to the packed estimate: flow, confidence, sharpness."""

import torch
from torch import Tensor

from ..accelerated import SideStream
from ..config import Calibration
from ..ops.warp import INSIDE
from .confidence import NOISE, find_confidence, finest_stride
from .feeding import size_of
from .found import Found
from .gate import BLANK, gate
from .result import pack


class Finish:
    """Called with what was found, it gives the packed estimate at the size of the frames."""

    def __init__(self, calibration: Calibration | None, *, sharpness: bool) -> None:
        self.calibration, self.sharpness = calibration, sharpness

    def __call__(self, found: Found) -> Tensor:
        """(B, 3, H, W); with `sharpness`, that of the match is the fourth channel."""
        feeding = found.feeding
        scores = [find_confidence(*found.view, self.calibration, feeding.scale)]
        if self.sharpness:
            scores.append(find_confidence(*found.view, calibration=None))
        fitted = (feeding.unfit(score, found.size) for score in scores)
        return gate(pack(found.flow, *fitted), *found.images())


class KernelFinish(Finish):
    """The accelerated version, on CUDA."""

    def __init__(
        self, calibration: Calibration | None, device: torch.device, *, sharpness: bool
    ) -> None:
        super().__init__(calibration, sharpness=sharpness)
        self._side = SideStream()
        self._weights = None
        if calibration is not None:
            weights = [calibration.bias, *calibration.weights]
            self._weights = torch.tensor(weights, device=device)

    def __call__(self, found: Found) -> Tensor:
        """See `Finish`."""
        from ..accelerated.estimate import image_ranges, pack_estimate

        levels, image1, image2 = found.view
        finest, size = levels[-1], size_of(found.images()[0])
        with self._side.fork(image1.device):
            extent = image_ranges(image1, image2, size)
        evidence = self._evidence(found)
        self._side.join(image1.device)
        packed = pack_estimate(
            finest.refined,
            finest.entropy,
            evidence,
            extent,
            BLANK,
            size_of(image1),
            size,
            sharpness=self.sharpness,
        )
        if found.feeding.keeps_pixels:
            return packed
        flow, *scores = packed.split([2] + [1] * (packed.shape[1] - 2), 1)
        fitted = (found.feeding.unfit(score, found.size) for score in scores)
        return pack(found.feeding.unfit_flow(flow, found.size), *fitted)

    def _evidence(self, found: Found) -> Tensor | None:
        from ..accelerated.estimate import weigh_cues

        if self._weights is None:
            return None
        levels, *images = found.view
        finest, coarser = levels[-1], levels[-2] if len(levels) > 1 else levels[-1]
        flows = (finest.refined, finest.matched, coarser.refined)
        stride = finest_stride(levels, images[0], found.feeding.scale)
        return weigh_cues(finest.entropy, flows, images, self._weights, stride, NOISE, INSIDE)
