"""Whether the student is better than what it started from, on footage that was held back.

Two numbers must fall by more than their noise: how badly frame 2, warped back, fits frame 1, and
how far the two directions disagree. And on rendered scenes the error must not rise by more than a
few percent. Each number compares both networks at the same pixels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import RenderConfig
from ..data import collate
from ..data.augmentation import LUMA
from ..estimation.confidence import find_occlusion
from ..estimation.estimator import BothWays, FlowEstimator
from ..estimation.inputs import image_batch
from ..estimation.result import Estimate
from ..files import Array
from ..ops import length, resize_flow_pixels, resize_pixels, size_of, warp_with_mask
from ..render import Renderer, held_out_renderer
from ..training.photometric import census_distance

SCENES = RenderConfig(
    solid_share=0.5, depth_share=0.35, objects=(6, 18), object_radius=(0.04, 0.8), still_scenes=0.02
)
"""The rendered scenes that show what is forgotten: solid ones and layers in turn."""
SCENES_SEED = 2000  # of no training and of no calibration
_LONGEST = 10.0  # px: disagreement beyond is an error in any case, however long
_DRAWS = 2000  # of the bootstrap
_BLANK = 2 / 255  # range of grey around a pixel below which there is nothing to see
_AROUND = 7  # px: the side of that square
_CERTAIN = 0.95  # probability that a change is not noise
_SHRUNK = 0.8  # share of the speed below which the motion has shrunk


class PairErrors(NamedTuple):
    """The errors of a network on a held-back pair, at the pixels that count; means of both ways."""

    census: float
    """Difference of the neighbourhoods in frame 1 and where the flow leads, 0 to 1."""
    disagreement: float
    """Distance in px between a pixel and where the way there and back leads, at most 10."""
    speed: float
    """Mean length of the flow in px."""


class Change(NamedTuple):
    """A mean before and after; nine of ten changes lie from `low` to `high`."""

    before: float
    after: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """The change as a share of what was before."""
        return (self.after - self.before) / max(self.before, 1e-9)

    @property
    def falls(self) -> bool:
        """Whether it falls by more than its noise."""
        return self.high < 0


Ways = tuple[Estimate, Estimate]


def pair_errors(image1: Tensor, image2: Tensor, networks: Sequence[Ways]) -> list[PairErrors]:
    """Return the errors of each network on a pair, (1, 3, H, W) frames in [0, 1].

    A pixel counts unless all networks say that it is hidden: otherwise one that calls hidden what
    it cannot match would look better. Where its own flow leaves the frame, its error is largest.
    Borders and bars that show nothing do not count: any flow fits there.
    """
    frames, shown = [(image1, image2), (image2, image1)], shows_something(image1, image2)
    parts: list[list[tuple[float, ...]]] = [[] for _ in networks]
    for way, (here, there) in enumerate(frames):
        flows = [(ways[way].flow, ways[1 - way].flow) for ways in networks]
        counts = shown & ~torch.stack([find_occlusion(*pair) for pair in flows]).all(0)[:, 0]
        for errors, (flow, backward) in zip(parts, flows, strict=True):
            maps = (census_error(here, there, flow), disagreement(flow, backward), length(flow))
            errors.append(tuple(_mean(each, counts) for each in maps))
    return [PairErrors(*np.mean(errors, 0).tolist()) for errors in parts]


def shows_something(image1: Tensor, image2: Tensor) -> Tensor:
    """(B, H, W) bool: around the pixel, in either frame, not all is of one grey."""
    greys = torch.cat([_grey(image1), _grey(image2)], 1)
    most, least = (F.max_pool2d(part, _AROUND, 1, _AROUND // 2).amax(1) for part in (greys, -greys))
    return most + least > _BLANK  # `least` is negated


def census_error(image1: Tensor, image2: Tensor, flow: Tensor) -> Tensor:
    """(B, H, W) in [0, 1]: how the census of frame 1 and of frame 2 where the flow leads differ.

    The mean of full and of half size, where there is less noise.
    """
    size = size_of(flow)
    half = max(size[0] // 2, 1), max(size[1] // 2, 1)
    fine = census_distance(_grey(image1), _grey(image2), flow)
    small1, small2 = (_grey(resize_pixels(image, half)) for image in (image1, image2))
    coarse = census_distance(small1, small2, resize_flow_pixels(flow, half))
    distance = (fine + F.interpolate(coarse[:, None], size)[:, 0]) / 2
    _, inside = warp_with_mask(flow[:, :1], flow)
    return torch.where(inside[:, 0], distance, 1.0)


def disagreement(flow: Tensor, backward: Tensor) -> Tensor:
    """(B, H, W) px between a pixel and where the flow and then the backward flow lead."""
    back, inside = warp_with_mask(backward, flow)
    distance = length(flow + back).clamp(max=_LONGEST)
    return torch.where(inside[:, 0], distance, _LONGEST)


def _grey(image: Tensor) -> Tensor:
    return (image * image.new_tensor(LUMA)[:, None, None]).sum(1, keepdim=True)


def _mean(values: Tensor, counts: Tensor) -> float:
    return float((values * counts).sum() / counts.sum().clamp(min=1))


def compare(before: Sequence[float], after: Sequence[float]) -> Change:
    """Compare two numbers of each pair; the range is that of a bootstrap over runs of pairs.

    Pairs that are near in time, which may share a frame, are not independent.
    """
    first, second = np.array(before), np.array(after)
    count, generator = len(first), np.random.default_rng(0)
    span = round(count ** (1 / 3))
    starts = generator.integers(0, count, (_DRAWS, -(-count // span), 1))
    picks = ((starts + np.arange(span)) % count).reshape(_DRAWS, -1)[:, :count]
    changes = (second - first)[picks].mean(1)
    low, high = np.quantile(changes, [1 - _CERTAIN, _CERTAIN])
    return Change(float(first.mean()), float(second.mean()), float(low), float(high))


# --- rendered scenes ------------------------------------------------------------------------------


def scene_renderer(photos: Path | None, size: tuple[int, int], device: torch.device) -> Renderer:
    """Return the renderer of the scenes that show what is forgotten."""
    return held_out_renderer(photos, size, device, config=SCENES, seed=SCENES_SEED)


def scene_errors(
    estimator: FlowEstimator, renderer: Renderer, numbers: Iterable[int]
) -> list[float]:
    """Return the mean end-point error in px on each rendered scene."""
    errors = []
    for number in numbers:
        batch = collate(renderer.render(1, number).to_samples())
        image1, image2 = (i.to(estimator.device) for i in (batch.image1, batch.image2))
        flow = estimator.estimate(image1, image2).flow.cpu()
        errors.append(_mean(length(flow - batch.flow), batch.valid))
    return errors


# --- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What was measured, and whether that is accepted."""

    census: Change
    disagreement: Change
    scenes: Change
    speed: Change
    accepted: bool
    reasons: tuple[str, ...]
    """Why it is not accepted."""
    warnings: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return all as plain values."""
        changes = {key: value for key, value in vars(self).items() if isinstance(value, Change)}
        plain = {key: {**c._asdict(), "relative": c.relative} for key, c in changes.items()}
        return {**asdict(self), **plain}


def judge(
    before: Sequence[PairErrors],
    after: Sequence[PairErrors],
    scenes: Sequence[Sequence[float]],
    forgotten: float,
) -> Verdict:
    """Accept or refuse: `scenes` are the errors on rendered scenes, before and after."""
    changes = {
        name: compare([getattr(e, name) for e in before], [getattr(e, name) for e in after])
        for name in PairErrors._fields
    }
    on_scenes = compare(*scenes)
    reasons = tuple(_reasons(changes, on_scenes, forgotten))
    warnings = tuple(_warnings(changes))
    return Verdict(
        **changes, scenes=on_scenes, accepted=not reasons, reasons=reasons, warnings=warnings
    )


def _reasons(changes: Mapping[str, Change], scenes: Change, forgotten: float) -> Iterable[str]:
    names = {"census": "the warping error", "disagreement": "the disagreement of both directions"}
    for name, words in names.items():
        change = changes[name]
        if not change.falls:
            yield (
                f"on the footage held back, {words} does not fall by more than its noise: "
                f"{change.before:.4g} before, {change.after:.4g} after"
            )
    if scenes.relative > forgotten:
        yield (
            f"on rendered scenes, the error rises by {scenes.relative:.1%}, more than "
            f"{forgotten:.0%}: too much is forgotten"
        )


def _warnings(changes: Mapping[str, Change]) -> Iterable[str]:
    speed, census = changes["speed"], changes["census"]
    if speed.after < _SHRUNK * speed.before:
        yield (
            f"the flow has become shorter, {speed.before:.2f} px before and {speed.after:.2f} px "
            f"after: both directions may be wrong in the same way; look at the pictures"
        )
    if changes["disagreement"].falls and not census.falls:
        yield (
            "both directions agree better, but the frames do not fit better: they may be wrong in "
            "the same way"
        )


# --- measuring ------------------------------------------------------------------------------------


def measure_pair(networks: Sequence[BothWays], image1: Array, image2: Array) -> list[PairErrors]:
    """Estimate a held-back pair with each network, and return the errors."""
    frames = _on_device(networks, image1, image2)
    return pair_errors(*frames, [both_ways(image1, image2) for both_ways in networks])


def error_pictures(
    networks: Sequence[BothWays], image1: Array, image2: Array
) -> tuple[list[Array], list[Array]]:
    """Return the flow (H, W, 2) of each network for a pair, and the warping error (H, W)."""
    frames = _on_device(networks, image1, image2)
    flows = [both_ways(image1, image2)[0].flow for both_ways in networks]
    errors = [census_error(*frames, flow)[0].cpu().numpy() for flow in flows]
    return [flow[0].permute(1, 2, 0).cpu().numpy() for flow in flows], errors


def _on_device(networks: Sequence[BothWays], image1: Array, image2: Array) -> tuple[Tensor, Tensor]:
    device = networks[0].estimator.device
    return image_batch(image1, device)[0], image_batch(image2, device)[0]
