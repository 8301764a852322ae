"""Estimate the flow of videos for a long time, and watch memory and open files.

    python -m campaigns.soak --minutes 60 -o report.json
    python -m campaigns.soak --minutes 8 --count 0 --device cuda -o report.json

One estimator serves all rounds; a round is a clip that is read, estimated and written as an array,
a folder and a table. Numbers are taken after each round, when nothing but the estimator should be
left. It ends after `--minutes` and at least `--count` flows. On a CPU the network and the frames
are small; on a GPU they are the packaged weights and frames of 512x384.

The slope of memory is that after the first ten minutes; a run of less than twenty has none. The
numbers are printed every minute, too.
"""

import ctypes
import gc
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from dicl_flow import FlowEstimator, FlowSequence, load
from dicl_flow.video import Checkpoint, Outputs, Selection, Source, open_source, run
from dicl_flow.video.frames import capture

from .inputs import moving_frames, small_weights, write_clip
from .report import Options, Part, main

FLOWS = 100  # of a round
WARM_UP = 10.0  # minutes
SLOPE = 5.0  # MB an hour that memory may grow
Sample = dict[str, float]
_NO_HUGE_PAGES = 41  # PR_SET_THP_DISABLE


def soak(options: Options) -> dict[str, Part]:
    """Run rounds until time is up and enough flows were estimated; judge the samples."""
    minutes, device = float(options.more["--minutes"]), options.more["--device"]
    _LIBRARY.prctl(_NO_HUGE_PAGES, 1, 0, 0, 0)  # which come and go, 2 MB each
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = (384, 512) if device == "cuda" else (32, 48)
        clip = write_clip(folder / "clip.avi", moving_frames(FLOWS + 1, *size))
        weights = None if device == "cuda" else small_weights(folder / "small.safetensors")
        estimator = load(weights, device=device, precision="auto" if device == "cuda" else "fp32")
        _round(estimator, clip, folder)  # opens what stays open, such as libraries
        _fill_interned()
        before, samples, start = _sample(0), list[Sample](), time.monotonic()
        flows = options.count or 0
        while time.monotonic() - start < 60 * minutes or len(samples) * FLOWS < flows:
            _round(estimator, clip, folder)
            samples.append(_sample((time.monotonic() - start) / 3600))
            _tell(samples)
    return {"video": judge(before, samples)}


def _tell(samples: list[Sample]) -> None:
    """Print the last sample once a minute: what is known if the run is cut off."""
    last, minutes = samples[-1], [int(60 * sample["hours"]) for sample in samples]
    if len(minutes) < 2 or minutes[-1] > minutes[-2]:
        numbers = ", ".join(f"{name} {value:.9g}" for name, value in last.items())
        print(f"{len(samples) * FLOWS:,} flows: {numbers}", file=sys.stderr, flush=True)


def _fill_interned() -> None:
    """Let Python's table of interned strings double now: `pathlib` does it after 10,000 flows."""
    for number in range(300_000):
        sys.intern(f"interned {number}")


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


class _Malloc(ctypes.Structure):
    """What mallinfo2 of the C library returns."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


_LIBRARY = ctypes.CDLL(None)
_LIBRARY.mallinfo2.restype = _Malloc


def _sample(hours: float) -> Sample:
    gc.collect()
    _LIBRARY.malloc_trim(0)  # what malloc holds for later is no leak
    malloc = _LIBRARY.mallinfo2()
    # without mapped files, which the system may drop and read again
    status = Path("/proc/self/status").read_text()
    resident = int(status.split("RssAnon:")[1].split()[0]) * 1024
    sample = {
        "hours": hours,
        "memory_mb": resident / 1e6,
        "malloc_mb": (malloc.uordblks + malloc.hblkhd) / 1e6,  # in use: grows with a leak only
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
    }
    if torch.cuda.is_initialized():
        sample["cuda_bytes"] = torch.cuda.memory_allocated()
    return sample


def judge(before: Sample, samples: list[Sample]) -> Part:
    """Compare all samples with the first, and the memory of those after the warm-up."""
    part, hours = Part(), samples[-1]["hours"]
    part.outcomes["flows estimated"] = len(samples) * FLOWS
    part.measured = {"minutes": round(60 * hours, 1)}
    for name in ("memory_mb", "malloc_mb"):
        part.measured[name] = [round(sample[name], 2) for sample in (before, samples[-1])]
    later = [sample for sample in samples if sample["hours"] >= WARM_UP / 60]
    if hours >= 2 * WARM_UP / 60:  # the slope of a few minutes is noise
        slope = _slope(later, "memory_mb")
        part.measured["memory_slope_mb_per_hour"] = round(slope, 2)
        part.measured["malloc_slope_mb_per_hour"] = round(_slope(later, "malloc_mb"), 2)
        if slope > SLOPE:
            part.failures.append(f"memory grows by {slope:.1f} MB an hour")
    for name in ("files", "threads", "cuda_bytes"):
        if name in before:
            part.measured[name] = found = sorted({sample[name] for sample in samples})
            if found != [before[name]]:
                part.failures.append(f"{name}: {before[name]} before, then {found[:5]}")
    return part


def _slope(samples: list[Sample], name: str) -> float:
    """Of the line through the samples, per hour."""
    hours, values = ([sample[key] for sample in samples] for key in ("hours", name))
    return float(np.polyfit(hours, values, 1)[0])


if __name__ == "__main__":
    more = {"--minutes": "60", "--device": "cpu"}
    main("soak", __doc__, soak, count=10_000, more=more)
