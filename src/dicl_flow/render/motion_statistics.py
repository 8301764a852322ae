"""Statistics of the motion in rendered scenes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..files import Array

if TYPE_CHECKING:
    from .renderer import RenderedBatch


QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
_SPACING = 4  # px between the pixels that are counted
_BEHIND = 1e4  # px: what is then behind the camera has a longer flow, and is not counted


@dataclass
class MotionStatistics:
    """Motion of the pixels of many scenes, separately for background and objects."""

    background: list[Array] = field(default_factory=list)
    """Vectors (N, 2), batch by batch."""
    objects: list[Array] = field(default_factory=list)
    occluded: list[float] = field(default_factory=list)
    """The share of occluded pixels in each batch."""

    def add(self, rendered: "RenderedBatch") -> None:
        """Count a batch."""
        flow = rendered.flow[..., ::_SPACING, ::_SPACING].permute(0, 2, 3, 1).cpu().numpy()
        layer = rendered.layer[..., ::_SPACING, ::_SPACING].cpu().numpy()
        stays = np.linalg.norm(flow, axis=-1) < _BEHIND
        self.background.append(flow[stays & (layer == 0)])
        self.objects.append(flow[stays & (layer > 0)])
        self.occluded.append(float(rendered.occluded.float().mean()))

    def vectors(self) -> dict[str, Array]:
        """Return the vectors of everything, of the background and of objects."""
        background, objects = np.concatenate(self.background), np.concatenate(self.objects)
        everything = np.concatenate([background, objects])
        return {"all": everything, "background": background, "objects": objects}

    def summary(self) -> dict[str, float]:
        """Return quantiles and maximum of the length in px, and the share of occluded pixels."""
        values: dict[str, float] = {}
        for name, vectors in self.vectors().items():
            length = np.linalg.norm(vectors, axis=1) if len(vectors) else np.zeros(1)
            for share in QUANTILES:
                values[f"{name}_p{share * 100:.0f}"] = float(np.quantile(length, share))
            values[f"{name}_max"] = float(length.max())
        return values | {"occluded": float(np.mean(self.occluded))}
