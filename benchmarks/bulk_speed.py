"""Flows per second of a bulk run, compared with the estimator alone and with a decoded video.

    python benchmarks/bulk_speed.py [1920x1080 [256 [10]]]      # WIDTHxHEIGHT, flows, repeats
    python benchmarks/bulk_speed.py 1920x1080 1024 5            # a GPU takes 256 in a second

Alternating runs over one MPEG-4 clip, read with OpenCV, so PyAV is not needed: the network alone,
on frames in memory; decoding and estimating, as in benchmarks/video_speed.py without encoding; and
a bulk run that writes scores as CSV, by the local engine. Start-up (loading, recording, compiling)
is excluded. Prints each median, and that of the bulk run relative to the others.
"""

import sys
import tempfile
from itertools import count as numbers
from pathlib import Path
from statistics import median
from time import perf_counter

import cv2
import numpy as np
import torch

import dicl_flow
from dicl_flow.bulk.job import Job, Plan, Settings
from dicl_flow.bulk.manifest import read_manifest
from dicl_flow.bulk.worker import Worker
from dicl_flow.video import Selection, ahead, estimate_flows
from dicl_flow.video.frames import capture

width, height = map(int, (sys.argv[1] if len(sys.argv) > 1 else "1920x1080").split("x"))
count = int(sys.argv[2]) if len(sys.argv) > 2 else 256
repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 10
SEGMENT = 64  # flows: several segments in each run
PARTS = 4  # rows of the manifest: parts of the clip


def make_clips(folder):
    """Pan over a smooth random texture; the clips are parts of one pan, for the manifest."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 12 + 20, width // 12 + 40, 3), np.uint8)
    texture = cv2.resize(coarse, None, fx=16, fy=16, interpolation=cv2.INTER_CUBIC)
    for part in range(PARTS):
        code = cv2.VideoWriter.fourcc(*"mp4v")
        writer = cv2.VideoWriter(str(folder / f"{part}.mp4"), code, 30.0, (width, height))
        for number in range(count // PARTS + 1):
            y, x = (int(100 + 90 * np.sin((number + 50 * part) / speed)) for speed in (31, 23))
            writer.write(np.ascontiguousarray(texture[y : y + height, x : x + width]))
        writer.release()
    rows = "".join(f"{part}.mp4,{count // PARTS}\n" for part in range(PARTS))
    (folder / "manifest.csv").write_text(f"path,flows\n{rows}")


def frames(folder):
    for part in range(PARTS):
        yield from Selection().frames(capture(str(folder / f"{part}.mp4"), live=False))


def alone():
    """The estimator on frames in memory, which are shared by consecutive pairs."""
    sequence.restart()
    pushed = in_memory * -(-count // len(in_memory))
    return sum(sequence.advance(frame) is not None for frame in pushed)


def decoded():
    """Decode ahead, estimate; nothing is copied from the device."""
    sequence.restart()
    return sum(1 for _ in estimate_flows(ahead(frames(folder)), sequence))


def bulk():
    """Decode, estimate, measure and write scores, in segments."""
    job = Job(settings, str(folder / f"out{next(runs)}"), manifest.root)
    worker.job, worker._storage = job, job.storage()
    return sum(outcome.marker["flows"] for outcome in worker.run(plan))


def clock(work):
    start = perf_counter()
    flows = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return flows / (perf_counter() - start)


with tempfile.TemporaryDirectory() as temporary:
    folder, runs = Path(temporary), numbers()
    make_clips(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = Settings("benchmark", table="csv", decoder="opencv", device=device, segment=SEGMENT)
    manifest = read_manifest(str(folder / "manifest.csv"))
    plan = Plan(manifest, settings)
    worker = Worker(Job(settings, str(folder / "out"), manifest.root), device)
    sequence = dicl_flow.FlowSequence(worker.estimator)
    in_memory = [frame.image for frame, _ in zip(frames(folder), range(4), strict=False)]
    print(f"{width}x{height}, {count} flows, {device}, {worker.estimator.precision}", flush=True)
    ways = {"estimator alone": alone, "decode, estimate": decoded, "bulk, scores": bulk}
    for work in ways.values():  # record, compile, choose, allocate
        work()
    rates = {name: [] for name in ways}
    for _ in range(repeats):
        for name, work in ways.items():
            rates[name].append(round(clock(work), 2))
    for name, found in rates.items():
        share = median(rates["bulk, scores"]) / median(found)
        print(f"{name:<18}{median(found):8.3g} flows/s; bulk is {share:.1%} of it; runs:", *found)
