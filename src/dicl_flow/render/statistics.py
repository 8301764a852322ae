"""How rendered scenes move: numbers and a picture."""

import io
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError

if TYPE_CHECKING:
    from .renderer import RenderedBatch

Array = np.ndarray[Any, np.dtype[Any]]

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
_SPACING = 4  # px between the pixels that are counted


@dataclass
class MotionStatistics:
    """Motion of the pixels of many scenes, background and objects apart."""

    background: list[Array] = field(default_factory=list)
    """Vectors (N, 2), scene by scene."""
    objects: list[Array] = field(default_factory=list)
    occluded: list[float] = field(default_factory=list)
    """The share of occluded pixels in each batch."""

    def add(self, rendered: "RenderedBatch") -> None:
        """Count a batch."""
        flow = rendered.flow[..., ::_SPACING, ::_SPACING].permute(0, 2, 3, 1).cpu().numpy()
        layer = rendered.layer[..., ::_SPACING, ::_SPACING].cpu().numpy()
        self.background.append(flow[layer == 0])
        self.objects.append(flow[layer > 0])
        self.occluded.append(float(rendered.occluded.float().mean()))

    def vectors(self) -> dict[str, Array]:
        """Return all vectors by what they belong to."""
        background, objects = np.concatenate(self.background), np.concatenate(self.objects)
        everything = np.concatenate([background, objects])
        return {"all": everything, "background": background, "objects": objects}

    def summary(self) -> dict[str, float]:
        """Quantiles of the length in px, the longest, and the share that is occluded."""
        values: dict[str, float] = {}
        for name, vectors in self.vectors().items():
            length = np.linalg.norm(vectors, axis=1) if len(vectors) else np.zeros(1)
            for share in QUANTILES:
                values[f"{name}_p{share * 100:.0f}"] = float(np.quantile(length, share))
            values[f"{name}_max"] = float(length.max())
        return values | {"occluded": float(np.mean(self.occluded))}

    def picture(self) -> bytes:
        """Return a PNG: lengths, their quantiles, and where things move to."""
        figure = plotting().Figure(figsize=(13, 4), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        lengths = {name: np.linalg.norm(v, axis=1) for name, v in self.vectors().items()}
        _draw_histogram(left, lengths)
        _draw_quantiles(middle, lengths)
        _draw_directions(right, self.vectors()["all"])
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def plotting() -> ModuleType:
    """Return matplotlib's figures, which an extra brings."""
    try:
        import matplotlib.figure
    except ImportError:
        raise InputError(
            "pictures of statistics need matplotlib: pip install 'dicl-flow[train]'"
        ) from None
    return matplotlib.figure


def _draw_histogram(axes: Any, lengths: dict[str, Array]) -> None:
    bins = np.geomspace(0.01, 500, 60)
    for name, length in lengths.items():
        axes.hist(length.clip(bins[0], bins[-1]), bins, histtype="step", label=name)
    axes.set(xscale="log", xlabel="length of the motion (px)", ylabel="pixels")
    axes.legend()


def _draw_quantiles(axes: Any, lengths: dict[str, Array]) -> None:
    shares = np.linspace(0, 1, 201)
    for name, length in lengths.items():
        if len(length):
            axes.plot(shares * 100, np.quantile(length, shares), label=name)
    axes.set(yscale="symlog", xlabel="share of the pixels (%)", ylabel="motion at most (px)")
    axes.grid(alpha=0.3)


def _draw_directions(axes: Any, vectors: Array) -> None:
    extent = max(1.0, float(np.quantile(np.abs(vectors), 0.99)))
    limits = [[-extent, extent]] * 2
    counts, *_ = np.histogram2d(vectors[:, 1], vectors[:, 0], 80, limits)
    axes.imshow(np.log1p(counts), extent=(-extent, extent, extent, -extent), cmap="magma")
    axes.set(xlabel="to the right (px)", ylabel="down (px)", title="where pixels go (log)")
