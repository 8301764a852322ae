"""Fits the expected error and the visibility of tracks to rendered clips, and judges the fit.

    python benchmarks/calibrate_tracks.py TRAIN_PHOTOS -o calibration.json --jobs 12

Solid scenes of every kind of place. From random frames of each clip, flows over 1, 2, 4 … 64 frames
are compared with the truth, both ways, at pixels that are visible and pixels that are hidden. Every
fourth clip is left out of the fit; the tables are of these. Then points are followed through other
clips: how sure a flow must be, from which expected error on a point is lost, and how errors add up,
are chosen by the average Jaccard. The result
belongs in src/dicl_flow/tracking/calibration.json. Photographs that are held out for tests are left
out; "procedural" uses none.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice, pairwise, repeat
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import dicl_flow  # isort: skip (first: torch reads what it sets)

import numpy as np
import torch
from torch import Tensor

from dicl_flow.config import PLACES
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator, FlowSequence
from dicl_flow.files import Array, to_uint8, write_files
from dicl_flow.render import (
    Clip,
    TextureAtlas,
    is_held_out,
    list_photos,
    load_textures,
    tracking_clip,
)
from dicl_flow.tracking.reliability import CUES, LARGEST, TrackCalibration, fit, read_flow_at
from dicl_flow.tracking.tapvid import Queries, Scores, Truth, draw_queries, mean_scores, score
from dicl_flow.tracking.tracker import Tracker
from dicl_flow.tracking.tracks import references_of
from dicl_flow.weights import read_weights, resolve

INTERVALS = (1, 2, 4, 8, 16, 32, 64)
SEED = 5000  # of the first clip; no packaged weights were trained with it
TUNING = 1000  # the number of the first clip on which points are followed
TRIED = {  # by average Jaccard, each with the others as they are
    "sure": (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95),
    "lost": (0.005, 0.0075, 0.01, 0.015, 0.02, 0.04, 1.0),  # 1: hardly ever
    "alike": (1.0, 1.2, 1.4, 2.0),
}
EVERY = 4  # one clip of so many is left out of the fit
BOUNDS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LARGEST + 1)  # px
# rows of a sample: the cues, then these
ERROR, SEEN, SHARE, INTERVAL = range(len(CUES), len(CUES) + 4)


def main() -> None:
    options = parse()
    began = perf_counter()
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), start, [options]) as pool:
        parts = list(pool.map(clip_samples, range(options.clips)))
        print(f"{perf_counter() - began:.0f} s")
        to_fit, to_judge = divided(parts)
        calibration = fitted(to_fit, options)
        report(calibration, torch.cat(to_judge, 1))
        if options.tuning:
            numbers = range(TUNING, TUNING + options.tuning)
            tries = [*attempts(calibration)]
            calibration = best_of(tries, list(pool.map(scores_of, numbers, repeat(tries))))
    text = json.dumps(asdict(calibration), indent=2) + "\n"
    write_files({options.output: text.encode()})
    print(f"wrote {options.output}")


def fitted(parts: list[Tensor], options: argparse.Namespace) -> TrackCalibration:
    """The calibration of some clips' samples, with what it was fitted to."""
    seen = torch.cat(parts, 1)
    calibration = fit(seen[: len(CUES)], seen[ERROR], seen[SEEN] > 0, seen[SHARE])
    return replace(
        calibration,
        clips=len(parts),
        quality=options.quality,
        weights=read_weights(resolve(options.weights)).sha256,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of photographs, or procedural")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-w", "--weights")
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--frames", type=int, default=65)
    parser.add_argument("--tuning", type=int, default=12, help="clips on which points are followed")
    parser.add_argument("--points", type=int, default=1000, help="of a clip, for tuning")
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--starts", type=int, default=4, help="pairs of each interval in a clip")
    parser.add_argument("--pixels", type=int, default=2000, help="of a pair, in each direction")
    parser.add_argument("--textures", type=int, default=400, help="photographs, at most")
    parser.add_argument("--quality", default="normal")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=1, help="processes, which render on the CPU")
    options = parser.parse_args()
    if options.clips < 2 or options.frames < 2:
        raise InputError("a fit needs at least 2 clips of 2 frames: one clip judges it")
    return options


def trained_on(folder: Path) -> list[Path]:
    """The photographs of a folder without those that are held out for tests."""
    photos = list_photos(folder)
    return [p for p in photos if not is_held_out(sha256(p.read_bytes()).hexdigest())]


# --- in a process of the pool ---------------------------------------------------------------------

_options: argparse.Namespace
_estimator: FlowEstimator
_textures: TextureAtlas


def start(options: argparse.Namespace) -> None:
    """Open the network and the photographs, once in each process."""
    global _options, _estimator, _textures
    _options = options
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.jobs))
    _estimator = dicl_flow.load(options.weights, device=options.device, quality=options.quality)
    photos = None if options.photos == "procedural" else trained_on(Path(options.photos))
    # processes that share a GPU draw slowly on it
    device = torch.device("cpu") if options.jobs > 1 else _estimator.device
    _textures = load_textures(photos, device, options.seed, limit=options.textures)


def draw_clip(number: int) -> Clip:
    """Kinds of places take turns."""
    kind, seed = [*PLACES][number % len(PLACES)], _options.seed + number
    width, height = map(int, _options.size.split("x"))
    device = _textures.images.device
    return tracking_clip((height, width), _textures, kind, _options.frames, device, seed)


def clip_samples(number: int) -> Tensor:
    """(C + 4, N) samples of all pairs of a clip."""
    clip = draw_clip(number)
    found = torch.cat([*samples(clip, FlowSequence(_estimator, backward=True), _options)], 1)
    share = float(found[SEEN].mean())
    print(f"clip {number}: {found.shape[1]} pixels, {share:.0%} visible", flush=True)
    return found


def scores_of(number: int, tries: Sequence[TrackCalibration]) -> list[Scores]:
    """Scores of points of frame 0, followed with each calibration."""
    clip, sequence = draw_clip(number), Remembered(_estimator)
    truth, queries = questions(clip, _options.points)
    images = images_of(clip)
    return [follow(images, truth, queries, sequence, attempt) for attempt in tries]


def samples(clip: Clip, sequence: FlowSequence, options: argparse.Namespace) -> Iterator[Tensor]:
    """Yield (C + 4, N) samples of each pair, in each direction."""
    dice = torch.Generator().manual_seed(clip.seed)
    images = images_of(clip)
    pairs = [
        (start, start + interval)
        for interval in INTERVALS
        if interval < clip.num_frames
        for start in sorted(
            torch.randperm(clip.num_frames - interval, generator=dice)[: options.starts].tolist()
        )
    ]
    prepared = {number: sequence.prepare(images[number]) for number in {*sum(pairs, ())}}
    matched = sequence.match_pairs([(prepared[one], prepared[two]) for one, two in pairs])
    for (one, two), packed in zip(pairs, matched, strict=True):
        there, back = packed.chunk(2, 1)
        yield sample(clip, one, two, packed, options.pixels, dice)
        yield sample(clip, two, one, torch.cat([back, there], 1), options.pixels, dice)


@torch.no_grad()
def sample(
    clip: Clip, start: int, end: int, packed: Tensor, pixels: int, dice: torch.Generator
) -> Tensor:
    """(C + 4, N): half of the pixels visible, half hidden, each with the share it stands for."""
    true, hidden = clip.flow(start, end), clip.occluded(start, end)
    groups = [(~hidden & clip.valid(true)).cpu().flatten(), hidden.cpu().flatten()]
    places, share = [], []
    for group in groups:
        indices = group.nonzero()[:, 0]
        some = indices[torch.randperm(len(indices), generator=dice)[: pixels // 2]]
        places.append(some)
        share.append(torch.full((len(some),), len(indices) / max(len(some), 1) / group.numel()))
    place = torch.cat(places)
    points = torch.stack([place % clip.size[1], place // clip.size[1]], 1).float()
    flow = read_flow_at(packed, points.to(packed.device), abs(end - start))
    error = (flow.vectors.cpu() - true.cpu().flatten(1)[:, place].T).norm(dim=1)
    known = [
        error.clamp(max=LARGEST),  # of a hidden pixel it is not used
        (torch.arange(len(place)) < len(places[0])).float(),
        torch.cat(share),
        torch.full((len(place),), float(abs(end - start))),
    ]
    return torch.cat([flow.cues.cpu(), torch.stack(known)])


def divided(parts: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Those to fit, and those to judge; of fewer than `EVERY`, the last one judges."""
    out = [n for n in range(len(parts)) if n % EVERY == EVERY - 1] or [len(parts) - 1]
    return [p for n, p in enumerate(parts) if n not in out], [parts[n] for n in out]


def report(calibration: TrackCalibration, samples: Tensor) -> None:
    """Print tables of clips that were left out of the fit."""
    cues, (error, seen, share, interval) = samples[: len(CUES)], samples[len(CUES) :]
    visible, expected = seen > 0, calibration.expected_error(cues)
    print("\nexpected error, px       share  expected    mean  median")
    for low, high in pairwise(BOUNDS):
        inside = visible & (expected >= low) & (expected < high)
        if inside.any():
            print(
                f"{low:7.2f} to {min(high, LARGEST):5.2f}   "
                f"{mean(inside[visible].float(), share[visible]):9.1%} "
                f"{mean(expected[inside], share[inside]):9.2f} "
                f"{mean(error[inside], share[inside]):7.2f} {float(error[inside].median()):7.2f}"
            )
    chance = calibration.visibility(cues)
    said = (chance >= 0.5) & (cues[CUES.index("outside")] == 0)
    print("\ninterval  visible  accuracy  hidden found  Brier  expected    mean, px")
    for value in (*INTERVALS, None):
        mine = torch.ones_like(visible) if value is None else interval == value
        if mine.any():
            hidden, shown = mine & ~visible, mine & visible
            print(
                f"{value or 'all':>8} {mean(visible[mine].float(), share[mine]):8.1%} "
                f"{mean((said == visible)[mine].float(), share[mine]):9.1%} "
                f"{mean((~said)[hidden].float(), share[hidden]):13.1%} "
                f"{mean((chance - seen).square()[mine], share[mine]):6.3f} "
                f"{mean(expected[shown], share[shown]):9.2f} "
                f"{mean(error[shown], share[shown]):11.2f}"
            )


class Remembered(FlowSequence):
    """A sequence that prepares each frame, and matches each pair, once."""

    def __init__(self, estimator: FlowEstimator) -> None:
        super().__init__(estimator, backward=True)
        self.frames: dict[int, Tensor] = {}
        self.flows: dict[tuple[int, int], Tensor] = {}

    def prepare(self, frame: Array) -> Tensor:
        """See `FlowSequence`."""
        if id(frame) not in self.frames:
            self.frames[id(frame)] = super().prepare(frame)
        return self.frames[id(frame)]

    def match_pairs(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[Tensor]:
        """See `FlowSequence`."""
        new = [(one, two) for one, two in pairs if (id(one), id(two)) not in self.flows]
        for (one, two), flow in zip(new, super().match_pairs(new), strict=True):
            self.flows[id(one), id(two)] = flow.clone()
        return (self.flows[id(one), id(two)] for one, two in pairs)


# --- values that are tried ------------------------------------------------------------------------


def attempts(calibration: TrackCalibration) -> Iterator[TrackCalibration]:
    """Calibrations that each differ in one of the values that are tried."""
    for name, values in TRIED.items():
        yield from (replace(calibration, **{name: value}) for value in values)


def best_of(
    tries: Sequence[TrackCalibration], scores: Sequence[Sequence[Scores]]
) -> TrackCalibration:
    """Choose each value by the average Jaccard; scores of each clip."""
    means = [mean_scores(parts) for parts in zip(*scores, strict=True)]
    print("\n" + "".join(f"{name:>8}" for name in TRIED) + "  average Jaccard  occlusion accuracy")
    for attempt, found in zip(tries, means, strict=True):
        values = "".join(f"{getattr(attempt, name):8g}" for name in TRIED)
        print(f"{values}{found.average_jaccard:17.4f} {found.occlusion_accuracy:19.4f}")
    left, chosen = iter(means), {}
    for name, values in TRIED.items():
        jaccard = [found.average_jaccard for found in islice(left, len(values))]
        chosen[name] = values[int(np.argmax(jaccard))]
    return replace(tries[0], **chosen)


def questions(clip: Clip, points: int) -> tuple[Truth, Queries]:
    """The truth of points, and those that are visible in frame 0."""
    places, hidden = (part.cpu().numpy() for part in clip.tracks(points))
    truth = Truth(places.astype(np.float64), hidden, clip.size)
    queries = draw_queries(truth, "first")
    at_first = queries.points[:, 0] == 0
    return truth, Queries(queries.points[at_first], queries.tracks[at_first])


def follow(
    images: list[Array],
    truth: Truth,
    queries: Queries,
    sequence: Remembered,
    calibration: TrackCalibration,
) -> Scores:
    """Scores of the tracks of a calibration."""
    references = references_of(queries.points)
    tracker = Tracker(sequence.estimator, references, calibration=calibration, sequence=sequence)
    found = [positions for image in images if (positions := tracker.push(image)[0])]
    places = np.full((len(queries), len(images), 2), np.nan)  # beyond a cut
    visible = np.zeros(places.shape[:2], bool)
    places[:, : len(found)] = torch.stack([f.points for f in found], 1).cpu().numpy()
    visible[:, : len(found)] = torch.stack([f.visible for f in found], 1).cpu().numpy()
    return score(truth, queries, places, visible, "first")


def images_of(clip: Clip) -> list[Array]:
    """(H, W, 3) uint8, as a camera would store them."""
    return [to_uint8(image) for image in clip.frames().permute(0, 2, 3, 1).cpu().numpy()]


def mean(values: Tensor, share: Tensor) -> float:
    return float((values * share).sum() / share.sum())


if __name__ == "__main__":
    main()
