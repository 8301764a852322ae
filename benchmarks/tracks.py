"""Tracks against the truth of rendered clips, beside three baselines; speed and memory.

    python benchmarks/tracks.py PHOTOS -o tracks.json --jobs 6           # 32 clips of 48 frames
    python benchmarks/tracks.py PHOTOS -o tracks.json --again tracks     # keeps the baselines
    python benchmarks/tracks.py PHOTOS -o tracks.json --query strided
    python benchmarks/tracks.py PHOTOS -o speed.json --speed             # every pixel of frame 0
    python benchmarks/tracks.py PHOTOS -o memory.json --long 2000

PHOTOS are held-out photographs, or "procedural". Kinds of places take turns; no weights and no
calibration have seen these seeds. All methods get the same queries. The metrics are TAP-Vid's, the
mean over clips; errors are in px of the frame, of visible points, from the first frame to the last.
Tracks that end too early count as if the point had stayed where it began. Intervals of 95 % are
those of a bootstrap over clips. The file is written after each clip; the same command goes on.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import dicl_flow  # isort: skip (first: torch reads what it sets)

import numpy as np
import torch

from dicl_flow.config import PLACES
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.files import Array, check_writable, to_uint8, write_files
from dicl_flow.lab.speed import describe_machine
from dicl_flow.render import Clip, TextureAtlas, load_textures, tracking_clip
from dicl_flow.tracking import baselines
from dicl_flow.tracking.tapvid import (
    MODES,
    THRESHOLDS,
    Queries,
    Scores,
    Truth,
    draw_queries,
    mean_scores,
    score,
)
from dicl_flow.tracking.tracker import Tracker, track
from dicl_flow.tracking.tracks import Reference, Tracks, grid

SEED = 30_000  # of the first clip
METHODS = OURS, CHAINED, DIRECT, SEARCH = "tracks", "chained flow", "direct flow", "Lucas-Kanade"
RESAMPLINGS = 10_000
WARM = 40  # frames, more than the longest interval
TIMED = 60
IRRELEVANT = ("photos", "output", "jobs", "again")  # options that do not change what is found
EARLY = 100  # frames after which memory should not grow

Method = Callable[[list[Array], Array], Tracks]


@dataclass(frozen=True)
class Result:
    """What a method did on one clip."""

    kind: str
    seed: int
    queries: int
    scores: Scores
    errors: list[float]  # px, in the last frame
    seconds: float


@dataclass(frozen=True)
class Bench:
    """What all clips share."""

    options: argparse.Namespace
    estimator: FlowEstimator
    textures: TextureAtlas

    def clip(self, number: int) -> Clip:
        """Kinds of places take turns."""
        kind, seed = [*PLACES][number % len(PLACES)], self.options.seed + number
        width, height = map(int, self.options.size.split("x"))
        device, frames = self.textures.images.device, self.options.frames
        return tracking_clip((height, width), self.textures, kind, frames, device, seed)


def main() -> None:
    options = parse()
    check_writable(options.output)
    if options.speed or options.long:
        bench = set_up(options)
        measured = speed(bench) if options.speed else memory(bench)
        write(options, describe_machine(bench.estimator.device)["device"], measured)
    else:
        accuracy(options)
    print(f"wrote {options.output}")


def settings(options: argparse.Namespace) -> dict:
    """The options that belong to a measurement."""
    return {key: value for key, value in vars(options).items() if key not in IRRELEVANT}


def write(options: argparse.Namespace, machine: str, measured: dict) -> None:
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}
    contents = {**about, "options": settings(options), **measured}
    write_files({options.output: (json.dumps(contents) + "\n").encode()})


def set_up(options: argparse.Namespace) -> Bench:
    estimator = dicl_flow.load(options.weights, device=options.device, quality=options.quality)
    photos = None if options.photos == "procedural" else Path(options.photos)
    # processes that share a GPU draw slowly on it
    device = torch.device("cpu") if options.jobs > 1 else estimator.device
    textures = load_textures(photos, device, options.seed, limit=options.textures)
    return Bench(options, estimator, textures)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", help="a folder of held-out photographs, or procedural")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("-w", "--weights")
    parser.add_argument("--clips", type=int, default=32)
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--size", default="512x512")
    parser.add_argument("--points", type=int, default=256, help="of a clip")
    parser.add_argument("--query", choices=MODES, default="first")
    parser.add_argument("--quality", default="normal")
    parser.add_argument("--textures", type=int, default=400, help="photographs, at most")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--jobs", type=int, default=1, help="processes; frames/s are then lower")
    parser.add_argument("--again", choices=METHODS, action="append", help="measure these anew")
    parser.add_argument("--speed", action="store_true", help="frames/s of dense tracking")
    parser.add_argument("--long", type=int, metavar="FRAMES", help="memory of so many frames")
    options = parser.parse_args()
    if options.clips < 1 or options.frames < 2 or options.jobs < 1:
        raise InputError("at least 1 clip of 2 frames and 1 process are needed")
    return options


def images_of(clip: Clip) -> list[Array]:
    """(H, W, 3) uint8, as a camera would store them."""
    return [to_uint8(image) for image in clip.frames().permute(0, 2, 3, 1).cpu().numpy()]


def truth_of(clip: Clip, num_points: int) -> Truth:
    points, hidden = (part.cpu().numpy() for part in clip.tracks(num_points))
    return Truth(points.astype(np.float64), hidden, clip.size)


def accuracy(options: argparse.Namespace) -> None:
    """Every method on every clip: a table, and the numbers of each clip."""
    found, again = read_clips(options), options.again or []
    missing = {number: METHODS for number in range(options.clips) if number not in found}
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), start, [options]) as pool:
        running = [
            pool.submit(clip_results, number, missing.get(number, again))
            for number in range(options.clips)
            if number in missing or again
        ]
        for done in as_completed(running):
            number, machine, results = done.result()
            found[number] = found.get(number, {}) | results
            write(options, machine, table_of(found, options.frames))
    results = by_method(found)
    print_table(results, options.frames)
    for what, (ratio, low, high) in compare(results).items():
        print(f"{what}, ours / chained: {ratio:.2f} [{low:.2f}, {high:.2f}]")


def by_method(found: dict[int, dict[str, Result]]) -> dict[str, list[Result]]:
    """The results of each method, in the order of the clips."""
    ordered = [found[number] for number in sorted(found)]
    return {name: [results[name] for results in ordered] for name in ordered[0]}


def table_of(found: dict[int, dict[str, Result]], num_frames: int) -> dict:
    """What is stored: means of each method, ratios, and the results of each clip by its number."""
    results = by_method(found)
    means = {name: summary(parts, num_frames) for name, parts in results.items()}
    clips = {
        number: {name: asdict(result) for name, result in found[number].items()}
        for number in sorted(found)
    }
    return {"thresholds": THRESHOLDS, "means": means, "ratios": compare(results), "clips": clips}


def read_clips(options: argparse.Namespace) -> dict[int, dict[str, Result]]:
    """The clips that a run with the same options has finished, by their number."""
    if not options.output.exists():
        return {}
    stored = json.loads(options.output.read_text())
    if {**stored["options"], "clips": options.clips} != settings(options):
        raise InputError(f"{options.output} was measured with other options; choose another -o")
    return {
        int(number): {
            name: Result(**{**result, "scores": Scores(**result["scores"])})
            for name, result in results.items()
        }
        for number, results in stored["clips"].items()
    }


_bench: Bench  # of a process of the pool


def start(options: argparse.Namespace) -> None:
    """Open the network, once in each process; compile kernels before the clock starts."""
    global _bench
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.jobs))
    _bench = set_up(options)
    width, height = map(int, options.size.split("x"))
    images = list(np.random.default_rng(0).integers(0, 256, (3, height, width, 3), np.uint8))
    for method in methods_of(_bench).values():
        method(images, np.array([[0, 8, 8]], np.float32))


def methods_of(bench: Bench) -> dict[str, Method]:
    estimator, both = bench.estimator, bench.options.query == "strided"
    return {
        OURS: partial(track, estimator=estimator, backward=both),
        CHAINED: partial(baselines.chained, estimator),
        DIRECT: partial(baselines.direct, estimator),
        SEARCH: baselines.lucas_kanade,
    }


def clip_results(number: int, methods: Sequence[str]) -> tuple[int, str, dict[str, Result]]:
    """The number of a clip, the device, and what each of these methods found."""
    bench, options, began = _bench, _bench.options, perf_counter()
    clip = bench.clip(number)
    images, truth = images_of(clip), truth_of(clip, options.points)
    queries, kind = draw_queries(truth, options.query), [*PLACES][number % len(PLACES)]
    hidden = f"{truth.occluded.mean():.0%} hidden, rendered in {perf_counter() - began:.1f} s"
    results = {
        name: Result(
            kind, clip.seed, len(queries), *run(method, images, truth, queries, options.query)
        )
        for name, method in methods_of(bench).items()
        if name in methods
    }
    scores = ", ".join(f"{n} {100 * r.scores.average_jaccard:.1f}" for n, r in results.items())
    print(f"clip {number}: {kind}, {len(queries)} queries, {hidden}; AJ: {scores}", flush=True)
    return number, describe_machine(bench.estimator.device)["device"], results


def run(
    method: Method, images: list[Array], truth: Truth, queries: Queries, mode: str
) -> tuple[Scores, list[float], float]:
    """Scores, errors in the last frame of points of the first, and seconds."""
    start = perf_counter()
    tracks = method(images, queries.points)
    seconds = perf_counter() - start
    scores = score(truth, queries, tracks.points, tracks.visible, mode)
    counts = (queries.points[:, 0] == 0) & ~truth.occluded[queries.tracks, -1]
    ends = tracks.points[counts, -1]
    ends = np.where(np.isfinite(ends), ends, queries.points[counts, 1:])
    errors = np.linalg.norm(ends - truth.points[queries.tracks[counts], -1], axis=1)
    return scores, [round(value, 3) for value in errors.tolist()], seconds


def summary(results: list[Result], num_frames: int) -> dict[str, float]:
    scores = mean_scores([result.scores for result in results])
    errors = np.concatenate([result.errors for result in results])
    within = zip(THRESHOLDS, scores.within, scores.jaccard, strict=True)
    values = {
        "average_jaccard": scores.average_jaccard,
        "position_accuracy": scores.position_accuracy,
        "occlusion_accuracy": scores.occlusion_accuracy,
        "mean_error": float(errors.mean()) if len(errors) else float("nan"),
        "median_error": float(np.median(errors)) if len(errors) else float("nan"),
        "frames_per_second": num_frames * len(results) / sum(r.seconds for r in results),
    }
    for threshold, near, jaccard in within:
        values |= {f"within_{threshold}": near, f"jaccard_{threshold}": jaccard}
    return values


def print_table(results: dict[str, list[Result]], num_frames: int) -> None:
    """Shares in percent, errors in px of the frame."""
    heads = ["AJ", *(f"<{t} px" for t in THRESHOLDS), "mean", "OA", "error", "median", "frames/s"]
    print(f"{'':14}" + "".join(f"{head:>9}" for head in heads))
    for name, parts in results.items():
        found = summary(parts, num_frames)
        shares = ["average_jaccard", *(f"within_{t}" for t in THRESHOLDS)]
        shares += ["position_accuracy", "occlusion_accuracy"]
        row = [f"{100 * found[key]:9.1f}" for key in shares]
        row += [f"{found[key]:9.2f}" for key in ("mean_error", "median_error")]
        print(f"{name:14}" + "".join(row) + f"{found['frames_per_second']:9.1f}")


def compare(results: dict[str, list[Result]]) -> dict[str, tuple[float, float, float]]:
    """Ratios of ours and chained flow, with the bounds of 95 %."""
    pair = results[OURS], results[CHAINED]
    jaccard = [[result.scores.average_jaccard for result in parts] for parts in pair]
    total = [[sum(result.errors) for result in parts] for parts in pair]  # of the same points
    return {"average Jaccard": bootstrap(*jaccard), "error in the last frame": bootstrap(*total)}


def bootstrap(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """The ratio of sums over clips, and its 2.5 and 97.5 % quantiles if clips are redrawn."""
    values = np.array([ours, theirs])
    values = values[:, np.isfinite(values).all(0)]
    if not values.size or not values[1].any():
        return (float("nan"),) * 3
    drawn = np.random.default_rng(0).integers(values.shape[1], size=(RESAMPLINGS, values.shape[1]))
    sums = values[:, drawn].sum(-1)
    ratios = sums[0] / np.where(sums[1] > 0, sums[1], np.nan)
    low, high = np.nanquantile(ratios, [0.025, 0.975])
    return float(values[0].sum() / values[1].sum()), float(low), float(high)


def dense(estimator: FlowEstimator, images: list[Array]) -> Tracker:
    """A tracker of every pixel of the first frame."""
    height, width = images[0].shape[:2]
    return Tracker(estimator, [Reference(0, grid((height, width), 1))])


def to_and_fro(images: list[Array]) -> Iterator[Array]:
    """Frames without end: forward, backward, forward …, so that there is no cut."""
    return cycle([*images, *images[-2:0:-1]])


def speed(bench: Bench) -> dict:
    """Frames/s of every pixel of frame 0, after the longest interval has been reached."""
    estimator, options, images = bench.estimator, bench.options, images_of(bench.clip(0))
    tracker, frames = dense(estimator, images), to_and_fro(images)
    for frame in islice(frames, WARM):
        tracker.push(frame)
    finish(estimator)
    start = perf_counter()
    for frame in islice(frames, TIMED):
        (found,) = tracker.push(frame)
        if found is None:
            raise RuntimeError("a cut ended the tracks: the speed would be that of nothing")
    finish(estimator)
    rate = TIMED / (perf_counter() - start)
    intervals = [*tracker.intervals, "direct"]
    print(f"{rate:.1f} frames/s, every pixel of {options.size}, intervals {intervals}")
    return {"frames_per_second": rate, "intervals": intervals}


def memory(bench: Bench) -> dict:
    """Memory after a few frames, and after many."""
    estimator, options, images = bench.estimator, bench.options, images_of(bench.clip(0))
    tracker, measured = dense(estimator, images), {}
    early, start = min(EARLY, options.long), perf_counter()
    for number, frame in enumerate(islice(to_and_fro(images), options.long), 1):
        (found,) = tracker.push(frame)
        if found is None:
            raise RuntimeError(f"a cut ended the tracks at frame {number - 1}")
        if number in (early, options.long):
            finish(estimator)
            measured[number] = {"gpu_peak": gpu_peak(estimator), "process": process_memory()}
            held = ", ".join(f"{key} {value:.3f} GiB" for key, value in measured[number].items())
            print(f"{number} frames, {perf_counter() - start:.0f} s: {held}", flush=True)
    return {"gibibytes_after": measured}


def finish(estimator: FlowEstimator) -> None:
    if estimator.device.type == "cuda":
        torch.cuda.synchronize(estimator.device)


def gpu_peak(estimator: FlowEstimator) -> float:
    """The most that tensors have taken on the GPU so far, in GiB."""
    if estimator.device.type != "cuda":
        return 0.0
    return torch.cuda.max_memory_allocated(estimator.device) / 2**30


def process_memory() -> float:
    """What the process holds in main memory now, in GiB; Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(line for line in lines if line.startswith("VmRSS"))
    return int(held.split()[1]) / 2**20


if __name__ == "__main__":
    main()
