"""Run every command on frames of odd sizes and contents; measure the estimator on known motion.

    OMP_NUM_THREADS=1 python -m campaigns.numbers -o report.json
    python -m campaigns.numbers --only shifts --figure docs/reliability/shifts.svg --device cuda

Commands (in forked children, with a small network): an exit code of 0, nothing on the standard
error, finite numbers, at most `MEMORY` above the process; or one sentence and exit code 2. The
estimator (with the packaged weights): equal frames, blank frames, noise, shifts, mirrored and
rotated frames, hard cuts.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from dicl_flow.files import Array, encode_image, read_flow, write_files, write_flow

from .commands import COMMANDS, Pair
from .forked import Ended, command, preload, run_forked, workplace
from .inputs import MOTION, SMALL, moving_frames, small_weights, texture
from .known_motion import PARTS
from .report import Options, Part, main

SIZES = (
    *((1, 1), (2, 1), (3, 5), (8, 8), (1, 64), (64, 1), (33, 31), (127, 129)),
    *((8, 512), (512, 8), (256, 256), (32, 2048)),
)
"""(height, width); the longest are 1:64."""
LARGE = (2048, 2048)
ESTIMATING = ("flow", "video", "interpolate", "interpolate a clip", "track", "stabilize")
ESTIMATING += ("bulk", "eval")
"""Commands that are run on frames of all contents."""
MEMORY = 2 * 2**30  # bytes of `--memory-limit`; what is read, drawn and written comes on top
SLACK = 1 * 2**30
HUGE = (8192, 8192)


def contents(height: int, width: int) -> dict[str, tuple[Array, Array]]:
    """Pairs of frames by name."""
    first, second = moving_frames(2, height, width)
    noise = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), np.uint8)
    deep = [(image.astype(np.uint16) * 257) for image in (first, second)]
    plain = {name: np.full_like(first, grey) for name, grey in (("black", 0), ("white", 255))}
    return {
        "texture": (first, second),
        "16 bits": (deep[0], deep[1]),
        "equal frames": (first, first),
        "a hard cut": (first, texture(height, width, seed=7)),
        "a turn of 180 degrees": (first, first[::-1, ::-1]),
        "noise": (noise[0], noise[1]),
        "constant": (np.full_like(first, 97), np.full_like(first, 97)),
        "constant, then texture": (np.full_like(first, 97), first),
        **{name: (grey, grey) for name, grey in plain.items()},
        "black, then white": (plain["black"], plain["white"]),
    }


def numbers(options: Options) -> dict[str, Part]:
    """Run all parts; those that fork come first, because computing in the parent starts threads."""
    preload()
    parts: dict[str, Part] = {}
    with workplace() as work:
        weights = small_weights(work / "small.safetensors")
        quick = small_weights(work / "quick.safetensors", replace(SMALL, matcher="dot"))
        for name in COMMANDS:
            if options.wants("commands") or options.wants(name):
                parts[name] = part = Part()
                for size in SIZES[: options.count]:
                    _try(part, work, name, size, "texture", weights)
                for kind in contents(8, 8) if name in ESTIMATING and not options.count else ():
                    _try(part, work, name, (37, 51), kind, weights)
                if not options.count:
                    _try(part, work, name, LARGE, "texture", quick, limit=2)
                print(name, dict(part.outcomes), *part.failures, flush=True)
        if options.wants("huge"):
            parts["flow at 8192x8192"] = _huge(work)
        if options.wants("NaN"):
            parts["NaN"] = _not_numbers(work, weights)
    for name, measure in PARTS.items():
        if options.wants(name):
            parts[name] = measure(options)
            print(name, parts[name].measured, *parts[name].failures, flush=True)
    return parts


def _try(
    part: Part,
    work: Path,
    name: str,
    size: tuple[int, int],
    kind: str,
    weights: Path,
    limit: int | None = None,
) -> None:
    """Run a command; with a memory limit in GiB it takes long, and would tell its progress."""
    pair = _fresh(work, weights, size)
    for path, image in zip((pair.first, pair.second), contents(*size)[kind], strict=True):
        write_files({path: encode_image(path, image)})
    write_flow(pair.truth, np.full((*size, 2), MOTION, np.float32))
    arguments = pair.words(name)
    if limit is not None:
        arguments += ["--quiet"]
        if "-w" in arguments and arguments[0] != "analyze":
            arguments += ["--memory-limit", str(limit)]
    ended = run_forked(command(arguments), pair.out)
    label = f"{arguments[0]} {size[1]}x{size[0]} {kind}"
    _judge(part, label, ended, pair.out)


def _fresh(work: Path, weights: Path, size: tuple[int, int]) -> Pair:
    pair = Pair(work / "pair", weights, size)
    for folder in (pair.folder, pair.out):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    return pair


def _judge(part: Part, label: str, ended: Ended, out: Path) -> None:
    """Count an outcome: done, refused, or broken."""
    peak = round(ended.peak / 2**20)
    part.measured["peak_mib"] = max(peak, part.measured.get("peak_mib", 0))
    lines = ended.errors.strip().splitlines()
    if ended.code == 2 and len(lines) == 1 and lines[0].startswith("error: "):
        part.outcomes["refused"] += 1
        said = lines[0].removeprefix("error: ").replace(f"{out.parent}/", "")
        part.measured.setdefault("refused", {}).setdefault(said, label)
    elif ended.code or lines:
        last = lines[-1] if lines else ""
        part.failures.append(f"{label}: exit code {ended.code}, {len(lines)} lines, {last[:300]}")
    elif ended.peak > MEMORY + SLACK:
        part.failures.append(f"{label}: {peak} MiB above the process")
    elif strange := _not_finite(ended.printed, out):
        part.failures.append(f"{label}: {strange}")
    else:
        part.outcomes["done"] += 1


def _not_finite(printed: str, out: Path) -> str:
    """Say where a number is not finite, or the output is not JSON; "" if all is well."""
    try:
        json.loads(printed, parse_constant=_refuse)
    except ValueError as error:
        return f"printed {error}: {printed[:200]}"
    flows = [*out.rglob("*.flo"), *out.glob("*.npz"), *out.glob("*.npy")]
    for path in flows:
        flow = np.load(path) if path.suffix == ".npy" else read_flow(path)
        if not np.isfinite(flow).all():
            return f"{path.name} is not finite"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} in JSON")


def _huge(work: Path) -> Part:
    """Estimate one pair of 8192x8192 with the packaged weights, which scale it down."""
    part, folder = Part(), work / "huge"
    folder.mkdir()
    small = moving_frames(2, HUGE[0] // 8, HUGE[1] // 8)
    paths = [folder / f"{number}.png" for number in (1, 2)]
    for path, image in zip(paths, small, strict=True):
        write_files({path: encode_image(path, cv2.resize(image, HUGE))})
    words = ["flow", *paths, "-o", folder / "out.flo", "--memory-limit", 2]
    ended = run_forked(command([*words, "--device", "cpu", "--json"]), folder, deadline=3000)
    # two frames, flow and confidence are there at any size, some of them twice
    arrays = 2 * HUGE[0] * HUGE[1] * (2 * 3 + 3 * 4)
    part.measured["cpu_seconds"] = round(ended.seconds)
    _judge(part, "flow 8192x8192", replace(ended, peak=ended.peak - arrays), folder)
    part.measured["peak_mib"] = round(ended.peak / 2**20)
    if not part.failures:
        found = read_flow(folder / "out.flo").mean((0, 1), dtype=np.float64)
        part.measured["mean_flow"] = [round(float(side), 2) for side in found]
        if np.abs(found - 8 * np.array(MOTION)).max() > 1:
            part.failures.append(f"mean flow {part.measured['mean_flow']}")
    return part


def _not_numbers(work: Path, weights: Path) -> Part:
    """NaN and infinite values in .tiff frames are refused."""
    part = Part()
    for bad in (np.nan, np.inf, -np.inf):
        for name in ("flow", "interpolate"):
            pair = _fresh(work, weights, (24, 32))
            pair.first, pair.second = pair.folder / "1.tiff", pair.folder / "2.tiff"
            for path in (pair.first, pair.second):
                image = texture(24, 32).astype(np.float32) / 255
                image[3, 4, 1] = bad
                cv2.imwrite(str(path), image, (cv2.IMWRITE_TIFF_COMPRESSION, 1))  # without loss
            ended = run_forked(command(pair.words(name)), pair.out)
            before = part.outcomes["done"]
            _judge(part, f"{name} {bad}", ended, pair.out)
            if part.outcomes["done"] > before:
                part.failures.append(f"{name} took {bad}")
    return part


if __name__ == "__main__":
    main("numbers", __doc__, numbers, more={"--figure": "", "--device": "cpu"})
