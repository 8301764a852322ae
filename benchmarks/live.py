"""Time against error of estimates that search less far: what quality "live" is chosen from.

    python -m benchmarks.live FOLDER -o live.json --picture live.png

A combination is RADII[xSCALE]: the search radius at the strides 64, 32, 16, 8 and 4, and how large
the network sees the frames: 33333 is quality "normal", 33333x0.7 is "fast", 33221x0.85 searches
5x5 displacements at the strides 16 and 8 and 3x3 at 4. `best` and `dis` (OpenCV) are measured too.
The error is the mean EPE on the real pairs of FOLDER, as in `yardstick.py`; the time, the least of
runs that alternate between all combinations, on a pair of `--size`. Other programs disturb the time
that passes, less so that of the processor: both are written, and the picture shows the latter.

An output that exists is continued, combination by combination.

    python -m benchmarks.live --speed --size 640x360

prints the pairs/s of live, fast, normal and DIS (or of each `--combination`), and the frames/s of a
video, where the features of a frame are computed once; runs alternate, on the demo's frames.

    python -m benchmarks.live --clip CLIP --combination 33221

compares, on the frames of a video, estimates that start from the flow of the pair before, moved
along itself, with those that start afresh: the mean difference of brightness between frame 1 and
frame 2 moved back, and the time of the processor.
"""

import dicl_flow  # isort: skip (first: torch reads what it sets)

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import cv2
import numpy as np
import torch

from benchmarks.yardstick import (
    SETS,
    Method,
    find_pairs,
    measure,
    open_method,
    renamed,
    summarize,
)
from dicl_flow.config import LIVE, QUALITIES, Quality, find_quality
from dicl_flow.data import FlowPair, demo_pairs, read_frames
from dicl_flow.errors import InputError
from dicl_flow.estimation.estimator import FlowEstimator, FlowSequence
from dicl_flow.estimation.warping import splat, warp
from dicl_flow.evaluation import BASELINES
from dicl_flow.files import Array, write_files
from dicl_flow.lab.speed import describe_machine
from dicl_flow.pictures.figures import draw_figure, encode_figure
from dicl_flow.weights import read_weights, resolve

STRIDES, FULL = (64, 32, 16, 8, 4), 3
CHOSEN = [
    *("normal", "fast", "best", "dis", "33331", "33221", "22221", "33211"),
    *("33321x0.85", "33331x0.7", "33221x0.7"),
]
RADII_OF_LIVE = "".join(str(dict(LIVE.radii).get(stride, FULL)) for stride in STRIDES)
NAMES = {"normal": "normal", "fast": "fast", "best": "best", "dis": "OpenCV's DIS"}
NAMES |= {RADII_OF_LIVE: f"live ({RADII_OF_LIVE})"}
TIMED_ON = "Sintel clean"  # of its first pair
Timed = dict[str, dict[str, float]]
"""By combination: `seconds` and `processor_seconds`."""


def parse_combination(text: str) -> str:
    """Refuse what is neither a quality, a baseline, nor RADII[xSCALE]."""
    if text not in BASELINES and text not in QUALITIES:
        quality_of(text)
    return text


def quality_of(text: str) -> Quality:
    """Read "33221x0.7", or find a quality by its name."""
    if text in QUALITIES:
        return find_quality(text)
    found = re.fullmatch(r"([1-3]{5})(?:x([\d.]+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"RADII[xSCALE], as 33221x0.7, got {text!r}")
    radii = tuple(one for one in zip(STRIDES, map(int, found[1]), strict=True) if one[1] < FULL)
    return Quality(text, (float(found[2] or 1),), radii=radii)


def open_combination(text: str, weights: str, precision: str) -> Method:
    """Open a combination on the CPU."""
    if text in BASELINES:
        return open_method(text, "normal", "cpu", precision)
    quality = quality_of(text)
    estimator, stored = dicl_flow.load(weights, "cpu", precision, quality=quality), resolve(weights)
    about = {
        "weights": read_weights(stored).sha256,
        "trained": read_weights(stored).trained_for(quality),
        "precision": estimator.precision,
        "calibrated": False,
        **describe_machine(estimator.device),
        "date": date.today().isoformat(),
    }
    return Method(text, about, lambda *frames: (estimator(*frames).flow, None))


def time_all(methods: Sequence[Method], frames: tuple[Array, Array], repeats: int) -> Timed:
    """Seconds of each method on one pair: the least of runs that alternate between the methods.

    On a shared machine, a median measures the other programs as well.
    """
    runs: dict[str, list[tuple[float, float]]] = {method.name: [] for method in methods}
    for number in range(repeats + 1):
        for method in methods:
            passed, used = perf_counter(), process_time()
            method.estimate(*frames)
            if number:  # the first run prepares
                runs[method.name].append((perf_counter() - passed, process_time() - used))
    return {
        name: {"seconds": min(passed), "processor_seconds": min(used)}
        for name, (passed, used) in ((n, zip(*r, strict=True)) for n, r in runs.items())
    }


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all combinations, and return the document."""
    pairs = {name: find_pairs(arguments.folder, name) for name in SETS}
    cv2.setNumThreads(torch.get_num_threads())
    output = arguments.output
    document = json.loads(output.read_text()) if output and output.exists() else {"methods": {}}
    methods = []
    for text in arguments.combination or CHOSEN:
        method = open_combination(text, arguments.weights, arguments.precision)
        methods.append(method)
        stored = document["methods"].get(method.name, {})
        known = {key: stored.get(key) for key in ("weights", "precision")}
        same = known == {key: method.about.get(key) for key in known}
        scores = stored.get("scores", {}) if same else {}
        entry = {**method.about, "scores": scores}
        document["methods"][method.name] = entry
        known_scores = known_errors(arguments.errors, text, method)
        if known_scores:
            scores |= known_scores
            entry["errors_from"] = arguments.errors.name
        measure(method, pairs, scores, partial(save, output, document))
        entry["epe"] = summarize(scores)["mean of the sets"]["mean"]
        save(output, document)
    frames = timed_frames(pairs[TIMED_ON][0], arguments.size)
    for name, seconds in time_all(methods, frames, arguments.repeats).items():
        document["methods"][name].update(seconds)
    document["timed"] = {"size": arguments.size, "repeats": arguments.repeats}
    save(output, document)
    return document


def known_errors(path: Path | None, text: str, method: Method) -> dict[str, Any]:
    """Return the scores that `yardstick.py` has stored for the same weights, if any."""
    if path is None or text not in ("normal", "best", "dis"):
        return {}
    stored = json.loads(path.read_text())["methods"]
    same = [one for one in stored.values() if one.get("weights") == method.about.get("weights")]
    found = [one for one in same if one.get("quality", "dis") == text]
    return {name: renamed(one) for name, one in found[0]["scores"].items()} if found else {}


def timed_frames(pair: FlowPair, size: str) -> tuple[Array, Array]:
    """Return the pair whose time is measured, scaled to WIDTHxHEIGHT."""
    width, height = map(int, size.split("x"))
    first, second = (cv2.resize(frame, (width, height)) for frame in read_frames(pair))
    return first, second


def save(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write the document, a line for each pair."""
    if path is not None:
        text = re.sub(r"\s*\n {5,}\s*", " ", json.dumps(document, indent=1))
        write_files({path: f"{text}\n".encode()})


def markdown(document: Mapping[str, Any]) -> str:
    """Return a table: time and error of each combination, relative to "normal" too."""
    methods = document["methods"]
    normal = methods["normal"]
    lines = ["| | s | processor s | times faster | EPE | of normal |", "|---|---|---|---|---|---|"]
    for name, one in sorted(methods.items(), key=lambda item: item[1]["processor_seconds"]):
        faster = normal["processor_seconds"] / one["processor_seconds"]
        share = one["epe"] / normal["epe"]
        cells = [f"{one['seconds']:.3f}", f"{one['processor_seconds']:.3f}", f"{faster:.2f}"]
        cells += [f"{one['epe']:.3f}", f"{share:.3f}"]
        lines.append(f"| {' | '.join([NAMES.get(name, name), *cells])} |")
    return "\n".join(lines) + "\n"


DOWNWARD = ("22221", "33331")  # their labels, so that they stay apart


def draw(document: Mapping[str, Any]) -> bytes:
    """Draw error against time, as a PNG: qualities as dots with names, combinations as circles."""
    figure = draw_figure(8, 4.6)
    axes = figure.subplots()
    methods = sorted(document["methods"].items(), key=lambda item: item[1]["processor_seconds"])
    for name, one in methods:
        milliseconds, named = 1000 * one["processor_seconds"], name in NAMES
        face = {RADII_OF_LIVE: "C3"}.get(name, "C0" if named else "none")
        axes.plot(milliseconds, one["epe"], "o", mfc=face, mec="C1" if face == "none" else face)
        below, turned = name == RADII_OF_LIVE, -75 if name in DOWNWARD else 40
        axes.annotate(
            NAMES.get(name, name).replace("x", " at ×"),
            (milliseconds, one["epe"]),
            (-5, -12) if below else (6, 5) if named else (4, 4 if turned > 0 else -3),
            textcoords="offset points",
            ha="right" if below else "left",
            va="baseline" if named else "center",
            rotation=0 if named else turned,
            rotation_mode="anchor",
            fontsize=9 if named else 7,
            weight="bold" if named else "normal",
        )
    axes.set(xscale="log", xlabel=f"processor time of a pair of {document['timed']['size']}, ms")
    axes.set(ylabel="mean EPE over the sets of real pairs, px")
    ticks = [n * 10**k for k in range(1, 5) for n in (1, 2, 5)]
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    times = [1000 * one["processor_seconds"] for _, one in methods]
    axes.set_xlim(min(times) / 1.3, 1.6 * max(times))
    axes.grid(alpha=0.3, which="both")
    return encode_figure(figure)


def compare_speeds(arguments: argparse.Namespace) -> None:
    """Print pairs/s and frames/s of each combination: the least of runs that alternate."""
    names = arguments.combination or ["live", "fast", "normal", "dis"]
    methods = []
    for name in names:
        alone = open_combination(name, arguments.weights, arguments.precision)
        methods.append(alone._replace(name=f"{name} pair"))
        if name not in BASELINES:
            estimator = dicl_flow.load(
                arguments.weights, "cpu", arguments.precision, quality=quality_of(name)
            )
            methods.append(alone._replace(name=f"{name} video", estimate=in_a_video(estimator)))
    frames = timed_frames(demo_pairs()[0], arguments.size)
    timed = time_all(methods, frames, arguments.repeats)
    machine = describe_machine(torch.device("cpu"))
    print(f"{machine['device']}, {arguments.size}, {date.today().isoformat()}\n")
    print("| | pair, ms | processor, ms | pairs/s | in a video, ms | processor, ms | frames/s |")
    print("|---" * 7 + "|")
    for name in names:
        cells = []
        for kind in ("pair", "video"):
            one = timed.get(f"{name} {kind}")
            seconds = (one["seconds"], one["processor_seconds"]) if one else ()
            cells += [*(f"{1000 * s:.0f}" for s in seconds), *(f"{1 / s:.2f}" for s in seconds[:1])]
        print(f"| {name} | {' | '.join([*cells, *[''] * (6 - len(cells))])} |")
    if arguments.output is not None:
        about = {**machine, "size": arguments.size, "repeats": arguments.repeats}
        save(arguments.output, {**about, "date": date.today().isoformat(), "timed": timed})


def in_a_video(estimator: FlowEstimator) -> Callable[[Array, Array], tuple[Array, None]]:
    """Two frames that follow each other again and again: each call pushes one."""
    sequence, number = FlowSequence(estimator), count()

    def push(*frames: Array) -> tuple[Array, None]:
        result = sequence.push(frames[next(number) % 2]) or sequence.push(frames[next(number) % 2])
        assert result is not None  # only the very first frame has no flow
        return result.flow, None

    return push


def compare_starts(arguments: argparse.Namespace) -> None:
    """Print, for each stride to start at, the error of moved frames and the time; 0: afresh."""
    frames = read_clip(arguments.clip, arguments.frames)
    for text in arguments.combination or ["33221"]:
        quality = quality_of(text)
        for start in (0, 16, 8):
            chosen = Quality(text, quality.scales, start or 8, quality.radii)
            estimator = dicl_flow.load(
                arguments.weights, "cpu", arguments.precision, quality=chosen
            )
            error, seconds = follow(estimator, frames, warm=start > 0)
            way = f"from stride {start}" if start else "afresh"
            print(f"{arguments.clip.name}, {text}, {way}: {error:.3f}, {seconds:.3f} s", flush=True)


def read_clip(path: Path, count: int) -> list[Array]:
    """Return the first frames of a video, RGB."""
    video, frames = cv2.VideoCapture(str(path)), list[Array]()
    while len(frames) < count and (read := video.read())[0]:
        frames.append(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB))
    return frames


def follow(estimator: FlowEstimator, frames: list[Array], *, warm: bool) -> tuple[float, float]:
    """The mean error of moved frames, in grey levels, and the median time of the processor."""
    errors, seconds, before = list[float](), list[float](), None
    for first, second in pairwise(frames):
        start = process_time()
        initial = moved(before) if warm and before is not None else None
        before = estimator(first, second, initial=initial).flow
        seconds.append(process_time() - start)
        inside = (warp(np.ones_like(first[..., :1]), before) > 0)[..., 0]
        distance = np.abs(warp(second.astype(np.float32), before) - first).mean(-1)
        errors.append(float(distance[inside].mean()))
    return float(np.mean(errors[1:])), median(seconds[1:])


def moved(flow: Array) -> Array:
    """A flow (H, W, 2), carried to where it leads; where nothing arrives, as it was."""
    there = torch.from_numpy(flow).permute(2, 0, 1)[None]
    arrived = splat(torch.cat([there, torch.ones_like(there[:, :1])], 1), there)
    value = torch.where(arrived[:, 2:] > 0.1, arrived[:, :2] / arrived[:, 2:], there)
    return value[0].permute(1, 2, 0).contiguous().numpy()


def main() -> None:
    """Print a table, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("DICL_FLOW_DATASETS")
    parser.add_argument("folder", type=Path, nargs="?", default=folder and Path(folder))
    parser.add_argument("-w", "--weights", default="rendered")
    parser.add_argument("--combination", type=parse_combination, action="append")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--size", default="640x384", help="WIDTHxHEIGHT of the pair that is timed")
    parser.add_argument("--repeats", type=int, default=7, help="timed runs of each combination")
    parser.add_argument("--errors", type=Path, help="take known ones from yardstick.py's JSON")
    parser.add_argument("--speed", action="store_true", help="compare speeds alone")
    parser.add_argument("--clip", type=Path, help="compare starts on a video instead")
    parser.add_argument("--frames", type=int, default=40, help="of the video")
    parser.add_argument("-o", "--output", type=Path, help="JSON file, continued if it exists")
    parser.add_argument("--picture", type=Path, help="also draw error against time, .png")
    arguments = parser.parse_args()
    try:
        if arguments.speed:
            compare_speeds(arguments)
            return
        if arguments.clip is not None:
            compare_starts(arguments)
            return
        if arguments.folder is None:
            raise InputError("give the folder of the sets, or set DICL_FLOW_DATASETS")
        document = run(arguments)
        if arguments.picture is not None:
            write_files({arguments.picture: draw(document)})
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(markdown(document), end="")


if __name__ == "__main__":
    main()
