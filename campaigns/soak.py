"""Estimate the flow of videos for a long time, and watch memory and open files.

    python -m campaigns.soak --minutes 40 -o report.json
    python -m campaigns.soak --minutes 8 --device cuda -o report.json

One estimator serves all rounds; a round is a clip that is read, estimated and written as an array,
a folder and a table. Numbers are taken after each round, when nothing but the estimator should be
left. It ends after `--minutes` and at least `--count` flows. On a CPU the network and the frames
are small; on a GPU they are the packaged weights and frames of 512x384.

Memory is that of the first ten minutes (at most a third of the run) and what was added later.
"""

import ctypes
import gc
import shutil
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dicl_flow.estimation.estimator import FlowEstimator, load
from dicl_flow.estimation.sequence import FlowSequence
from dicl_flow.video import Checkpoint, Outputs, Selection, Source, open_source, run
from dicl_flow.video.sources import capture

from .inputs import SMALL, moving_frames, small_weights, write_clip
from .report import Options, Part, main

FLOWS = 100  # of a round
QUICK = replace(SMALL, matcher="dot")  # 10,000 flows in minutes
WARM_UP = 10.0  # minutes, at most
SLOPE = 5.0  # MB an hour that memory may grow
Sample = dict[str, float]


def soak(options: Options) -> dict[str, Part]:
    """Run rounds until time is up and enough flows were estimated; judge the samples."""
    minutes, device = float(options.more["--minutes"]), options.more["--device"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = (384, 512) if device == "cuda" else (32, 48)
        clip = write_clip(folder / "clip.avi", moving_frames(FLOWS + 1, *size))
        weights = None if device == "cuda" else small_weights(folder / "small.safetensors", QUICK)
        estimator = load(weights, device=device, precision="auto" if device == "cuda" else "fp32")
        _round(estimator, clip, folder)  # opens what stays open, such as libraries
        before, samples, start = _sample(0, 0), list[Sample](), time.monotonic()
        while (
            time.monotonic() - start < 60 * minutes or len(samples) < (options.count or 0) / FLOWS
        ):
            _round(estimator, clip, folder)
            samples.append(_sample((time.monotonic() - start) / 3600, len(samples) + 1))
    return {"video": judge(before, samples)}


def _round(estimator: FlowEstimator, clip: Path, folder: Path) -> None:
    out = folder / "out"
    out.mkdir()
    wanted = Outputs((out / "flow.npy", out / "flows"), stats=out / "motion.csv")
    with Checkpoint(out / "flow.npy", {}) as checkpoint:
        sequence, writers = FlowSequence(estimator), wanted.writers(checkpoint.folder, 25)
        run(_open(clip), Selection(), sequence, writers, checkpoint)
    flows = np.load(out / "flow.npy", mmap_mode="r")
    assert len(flows) == len(list((out / "flows").iterdir())) == FLOWS
    assert np.isfinite(flows).all()
    shutil.rmtree(out)


def _open(clip: Path) -> Source:
    try:
        import av  # noqa: F401
    except ImportError:
        return capture(str(clip), live=False)
    return open_source(str(clip))


def _sample(hours: float, rounds: int) -> Sample:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what malloc holds for later is no leak
    # without mapped files, which the system may drop and read again
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("RssAnon:")[1].split()[0]) * 1024
    sample = {
        "hours": hours,
        "rounds": rounds,
        "memory_mb": resident / 1e6,
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
    }
    if torch.cuda.is_initialized():
        sample["cuda_bytes"] = torch.cuda.memory_allocated()
    return sample


def judge(before: Sample, samples: list[Sample]) -> Part:
    """Compare the samples after the warm-up with each other, and the last with the first."""
    part = Part()
    hours = samples[-1]["hours"]
    later = [s for s in samples if s["hours"] >= min(WARM_UP / 60, hours / 3)]
    times = np.array([sample["hours"] for sample in later])
    line = np.stack([times, np.ones_like(times)], 1)
    slope = float(np.linalg.lstsq(line, [sample["memory_mb"] for sample in later])[0][0])
    part.measured = {"minutes": round(60 * hours, 1), "flows": len(samples) * FLOWS}
    part.measured |= {
        "memory_slope_mb_per_hour": round(slope, 2),
        "memory_mb": [round(s["memory_mb"], 1) for s in (before, later[0], samples[-1])],
    }
    part.outcomes["flows estimated"] = len(samples) * FLOWS
    if slope > SLOPE:
        part.failures.append(f"memory grows by {slope:.1f} MB an hour")
    for name in ("files", "threads", "cuda_bytes"):
        found = sorted({sample[name] for sample in later if name in sample})
        part.measured[name] = found
        allowed: Any = {before.get(name)} if name != "cuda_bytes" else set(found[:1])
        if set(found) - allowed:
            part.failures.append(f"{name}: {before.get(name)} before, then {found[:5]}")
    return part


if __name__ == "__main__":
    more = {"--minutes": "40", "--device": "cpu"}
    main("soak", __doc__, soak, count=10_000, more=more)
