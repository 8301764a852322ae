"""The teacher: flow in both directions, where there is reason to trust it.

It estimates a pair at quality "best" and at "normal", and takes the one whose directions agree
better: in noise, "best" is often worse, because it enlarges the frames.

A pixel is kept where both directions agree, the confidence is high and the colours agree. That
rules out much that is wrong, but not what is wrong in the same way both times: the summary says
how much was kept at each speed and in each part of the picture.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import NORMAL, QUALITIES, ModelConfig
from ..errors import InputError
from ..estimation.estimator import BothWays
from ..estimation.inputs import image_batch
from ..estimation.result import Estimate
from ..files import (
    Array,
    decode_npy,
    encode_image,
    encode_npy,
    read_bytes,
    read_image,
    to_uint8,
)
from ..ops import length, warp_with_mask
from .acceptance import pair_errors
from .footage import NUM_SPEEDS, SLOWEST, FootagePair, frame_path, speed_bins
from .look import encode_look, measure_look
from .new_frames import new_second_frame
from .settings import AdaptConfig

UNIT = 64  # steps per px of stored flow
UNKNOWN = -(2**15)
_LONGEST = (2**15 - 1) / UNIT  # px per axis
_NOISY = 4.0  # times the median difference of a pair: what noise explains
_SMOOTHED = 5  # px: the side of the squares over which colours are averaged
_REGIONS = 3  # rows and columns of the picture
_LITTLE, _LITTLE_MOTION = 0.5, 0.95  # px, share of the pixels
_FEW = 0.1  # share of kept pixels below which the report warns


def teacher_qualities(config: ModelConfig) -> tuple[str, ...]:
    """The qualities of the teacher: "best" only where a network supports it."""
    try:
        QUALITIES["best"].check_for(config)
    except InputError:
        return (NORMAL,)
    return "best", NORMAL


def kept_pixels(
    estimate: Estimate,
    backward: Estimate,
    image1: Tensor,
    image2: Tensor,
    settings: AdaptConfig,
    *,
    calibrated: bool = True,
) -> Tensor:
    """(B, H, W) bool: where the flow is trusted. Images are (B, 3, H, W) in [0, 1].

    Confidence that is not a probability only ranks: then the least confident fifth is dropped.
    """
    back, inside = warp_with_mask(backward.flow, estimate.flow)
    relative, absolute = settings.agreement
    allowed = relative * (length(estimate.flow) + length(back)) + absolute
    agrees = (length(estimate.flow + back) < allowed).unsqueeze(1)
    confidence = estimate.confidence
    least = settings.confidence if calibrated else _least_rank(confidence)
    difference = _color_difference(image1, image2, estimate.flow)
    noise = difference.flatten(1).median(1).values[:, None, None, None]
    alike = difference <= (_NOISY * noise).clamp(min=settings.difference)
    reachable = estimate.flow.abs().amax(1, keepdim=True) < _LONGEST
    return (inside & agrees & (confidence >= least) & alike & reachable)[:, 0]


def _least_rank(confidence: Tensor) -> float:
    """The confidence below which the least confident fifth is."""
    spacing = max(1, confidence.numel() // 10**6)  # of a few pixels: torch takes no more than 16 M
    return confidence.flatten()[::spacing].quantile(0.2).item()


def _color_difference(image1: Tensor, image2: Tensor, flow: Tensor) -> Tensor:
    """(B, 1, H, W): between frame 1 and frame 2 where the flow leads, smoothed against noise."""
    warped, _ = warp_with_mask(image2, flow)
    apart = F.avg_pool2d(image1 - warped, _SMOOTHED, 1, _SMOOTHED // 2, count_include_pad=False)
    return apart.abs().mean(1, keepdim=True)


# --- files ----------------------------------------------------------------------------------------


def encode_flows(*flows: tuple[Tensor, Tensor]) -> bytes:
    """Flows (1, 2, H, W) and kept pixels (1, H, W) -> the bytes of one (H, W, 2 N) array."""
    parts = []
    for flow, kept in flows:
        steps = (flow[0] * UNIT).round().clamp(-UNIT * _LONGEST, UNIT * _LONGEST)
        parts.append(steps.where(kept, UNKNOWN).to(torch.int16))
    return encode_npy(torch.cat(parts).permute(1, 2, 0).contiguous().cpu().numpy())


def read_flow(path: Path, number: int = 0) -> tuple[Array, Array]:
    """Read a flow (H, W, 2) float32, zero where not kept, and (H, W) bool: the kept pixels."""
    steps = decode_npy(read_bytes(path))[..., 2 * number : 2 * number + 2]
    kept = steps[..., 0] != UNKNOWN
    return np.where(kept[..., None], steps / np.float32(UNIT), np.float32(0)), kept


@dataclass(frozen=True)
class Lesson:
    """The files of a pair that the teacher has looked at."""

    image1: Path
    image2: Path
    flows: Path
    """Flow and kept pixels from frame 1 to frame 2, then from 2 to 1."""
    counts: Path
    """How many pixels there are and were kept: the flow of the others is not stored."""
    new_image2: Path
    """A second frame made from the first; there may be none."""
    new_flow: Path
    look: Path
    """How the frames look."""


def lesson(footage: FootagePair, frames: Path, folder: Path) -> Lesson:
    """Return where the files of a pair are."""
    image1, image2 = (frame_path(frames, footage.clip, n) for n in (footage.first, footage.second))
    stem = f"{footage.clip:03}-{footage.first:06}-{footage.second:06}"
    ends = (".npy", ".json", "-new.png", "-new.npy", "-look.npy")
    return Lesson(image1, image2, *(folder / f"{stem}{end}" for end in ends))


# --- what was kept --------------------------------------------------------------------------------


class Kept(NamedTuple):
    """Counts of pixels, and of those that were kept."""

    by_speed: Array  # (2, speeds)
    by_region: Array  # (2, 3, 3)
    slow: Array  # (2,): all pixels, those of little motion


def count_kept(flow: Array, kept: Array) -> Kept:
    """Count the pixels of a flow (H, W, 2) by speed and by region."""
    speed = np.nan_to_num(np.hypot(flow[..., 0], flow[..., 1]))
    bins = speed_bins(speed)
    by_speed = np.stack([np.bincount(b, minlength=NUM_SPEEDS) for b in (bins.ravel(), bins[kept])])
    regions = [np.array_split(kept, _REGIONS, axis=1) for kept in np.array_split(kept, _REGIONS)]
    sizes = [[part.size for part in row] for row in regions]
    sums = [[int(part.sum()) for part in row] for row in regions]
    slow = np.array([speed.size, int((speed < _LITTLE).sum())])
    return Kept(by_speed, np.array([sizes, sums]), slow)


def mean_octave(counts: Kept) -> float:
    """The mean octave of the speed of all pixels of a pair, from the middle of the octaves."""
    seen = counts.by_speed[0]
    return float((seen * (np.arange(NUM_SPEEDS) + 0.5)).sum() / seen.sum())


def encode_counts(kept: Kept) -> bytes:
    """Counts -> the bytes of a file for `read_counts`."""
    return json.dumps([part.tolist() for part in kept]).encode()


def read_counts(path: Path) -> Kept:
    """Read the counts of a pair."""
    return Kept(*map(np.array, json.loads(path.read_text())))


def summarize(kept: Sequence[Kept], usable: int) -> dict[str, Any]:
    """Return the shares that were kept, in all, by speed and by region; and warnings."""
    by_speed, by_region, slow = (sum(parts) for parts in zip(*kept, strict=True))
    share = float(by_speed[1].sum() / by_speed[0].sum())
    little = float(slow[1] / slow[0])
    summary = {
        "pairs": len(kept),
        "usable_pairs": usable,
        "kept": share,
        "little_motion": little,
        "seen_by_speed": by_speed[0].tolist(),
        "kept_by_speed": by_speed[1].tolist(),
        "kept_by_region": (by_region[1] / by_region[0].clip(min=1)).tolist(),
    }
    return {**summary, "warnings": [*_doubts(share, little, by_region[1] / by_region[0])]}


def _doubts(share: float, little: float, regions: Array) -> Iterable[str]:
    if little > _LITTLE_MOTION:
        yield (
            f"little moves: {little:.0%} of the pixels move less than {_LITTLE:g} px, and flow "
            f"that is zero everywhere would agree with itself as well"
        )
    if share < _FEW:
        yield f"the teacher trusts only {share:.1%} of the pixels; there is little to learn from"
    if regions.min() < 0.2 * share:
        row, column = np.unravel_index(regions.argmin(), regions.shape)
        place = f"{('top', 'middle', 'bottom')[row]} {('left', 'centre', 'right')[column]}"
        yield f"hardly anything is kept at the {place} ({regions.min():.1%} of the pixels)"


# --- the stage ------------------------------------------------------------------------------------

LEAST_KEPT = 0.01  # share of the pixels of a pair: below, nothing is learned from it


def teach(
    teachers: Sequence[BothWays],
    pair: FootagePair,
    files: Lesson,
    settings: AdaptConfig,
    seed: int,
) -> dict[Path, bytes]:
    """Estimate a pair with the teacher that agrees best with itself; return its files' contents."""
    arrays = [read_image(path) for path in (files.image1, files.image2)]
    image1, image2 = (image_batch(array, teachers[0].estimator.device)[0] for array in arrays)
    found = [both_ways(*arrays) for both_ways in teachers]
    apart = [errors.disagreement for errors in pair_errors(image1, image2, found)]
    chosen = apart.index(min(apart))
    estimator, (forward, backward) = teachers[chosen].estimator, found[chosen]
    how = {"calibrated": estimator.calibration is not None}
    kept = kept_pixels(forward, backward, image1, image2, settings, **how)
    kept_back = kept_pixels(backward, forward, image2, image1, settings, **how)
    flow = forward.flow
    counts = count_kept(flow[0].permute(1, 2, 0).cpu().numpy(), kept[0].cpu().numpy())
    data = {  # the flows last: they say that all is there
        files.counts: encode_counts(counts),
        files.look: encode_look(measure_look(image1, image2, flow, kept)),
        files.flows: encode_flows((flow, kept), (backward.flow, kept_back)),
    }
    if not settings.new_frames:
        return data
    generator = torch.Generator().manual_seed(_seed_of(pair, seed))
    new_image, new_flow, new_valid = new_second_frame(image1, flow, kept, generator)
    picture = to_uint8(new_image[0].permute(1, 2, 0).clamp(0, 1).cpu().numpy())
    return {
        files.new_image2: encode_image(files.new_image2, picture),
        files.new_flow: encode_flows((new_flow, new_valid)),
        **data,
    }


def _seed_of(pair: FootagePair, seed: int) -> int:
    mixed = np.random.SeedSequence([seed, pair.clip, pair.first, pair.second])
    return int(mixed.generate_state(1)[0])


def review(lessons: Sequence[Lesson]) -> dict[str, Any]:
    """Count what was kept of all pairs; "lessons" are the numbers of those to learn from."""
    counts = [read_counts(files.counts) for files in lessons]
    shares = [kept.by_speed[1].sum() / kept.by_speed[0].sum() for kept in counts]
    usable = [number for number, share in enumerate(shares) if share >= LEAST_KEPT]
    return {**summarize(counts, len(usable)), "lessons": usable}


def speed_name(octave: int) -> str:
    """The speeds of an octave of `speed_bins`, in px."""
    low, high = SLOWEST * 2**octave, SLOWEST * 2 ** (octave + 1)
    if octave == 0:
        return "below 1"
    return f"{low:g} to {high:g}" if octave < NUM_SPEEDS - 1 else f"above {low:g}"
