"""Frames per second from video to video.

    python benchmarks/video_speed.py [1920x1080 [600 [fast]]]      # WIDTHxHEIGHT, flows, backend

Decodes and encodes with OpenCV (MPEG-4), so PyAV is not needed. OpenCV's encoder uses one core, so
segments of the video are encoded in parallel. Prints the speed of decoding alone, of decoding and
estimating, and of everything; the last line is the end-to-end speed.
"""

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import islice
from pathlib import Path
from time import perf_counter

import cv2
import numpy as np
import torch

import dicl_flow
from dicl_flow.video import Checkpoint, PictureVideo, Selection, ahead, estimate_flows, run
from dicl_flow.video.sources import capture

width, height = map(int, (sys.argv[1] if len(sys.argv) > 1 else "1920x1080").split("x"))
count = int(sys.argv[2]) if len(sys.argv) > 2 else 600
backend = sys.argv[3] if len(sys.argv) > 3 else "fast"


def encode(path, pictures, rate=30.0):
    size, code = pictures[0].shape[1::-1], cv2.VideoWriter.fourcc(*"mp4v")
    writer = cv2.VideoWriter(str(path), code, rate, size)
    for picture in pictures:
        writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    writer.release()


class Segments:
    """Collects pictures and encodes every `LENGTH` of them as a file, several files in parallel."""

    LENGTH, AT_ONCE = 32, 4

    def __init__(self, path, rate):
        self.path, self.pictures, self.tasks = path, [], []
        self.pool = ThreadPoolExecutor(self.AT_ONCE)

    def __call__(self, picture, number):
        """Add a picture."""
        self.pictures.append(picture)
        if len(self.pictures) == self.LENGTH:
            self.flush()

    def flush(self):
        """Encode the collected pictures; wait if too many segments are being encoded."""
        if len(self.tasks) >= self.AT_ONCE:
            self.tasks[-self.AT_ONCE].result()
        number = len(self.tasks)  # the first one has the given name
        path = self.path.with_stem(f"{self.path.stem}_{number}") if number else self.path
        self.tasks.append(self.pool.submit(encode, path, self.pictures))
        self.pictures = []

    def close(self):
        """Finish the files."""
        if self.pictures:
            self.flush()
        for task in self.tasks:
            task.result()


class OneVideo(PictureVideo):
    """A video whose segments are files of the encoder; they are not joined."""

    piece = 1 << 40

    def finish(self):
        """Leave the segments where they are; the temporary folder is removed."""
        return self.output


def make_clip(path):
    """Pan over a smooth random texture."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 12 + 20, width // 12 + 40, 3), np.uint8)
    texture = cv2.resize(coarse, None, fx=16, fy=16, interpolation=cv2.INTER_CUBIC)
    corners = [[int(100 + 90 * np.sin(n / s)) for s in (31, 23)] for n in range(count + 1)]
    encode(path, [texture[y : y + height, x : x + width] for y, x in corners])


def frames():
    return ahead(Selection().frames(capture(str(clip), live=False)))


def everything(output):
    checkpoint, numbers = Checkpoint(output, {}, restart=True), []
    writer = OneVideo(output, checkpoint.folder, Fraction(30), ["wheel"], encoder=Segments)
    source = capture(str(clip), live=False)
    run(
        *(source, Selection(), sequence, [writer], checkpoint),
        lambda flow: numbers.append(flow.frame.number) is None,
    )
    return numbers


def clock(name, work):
    start = perf_counter()
    number = len(list(work()))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    print(f"{name:<22}{number / (perf_counter() - start):8.1f} frames/s", flush=True)


def estimate():
    return (flow.frame.number for flow in estimate_flows(frames(), sequence))


with tempfile.TemporaryDirectory() as folder:
    clip = Path(folder) / "clip.mp4"
    make_clip(clip)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sequence = dicl_flow.FlowSequence(dicl_flow.load(device=device, backend=backend))
    print(f"{width}x{height}, {count} flows, {device}, {sequence.estimator.precision}")
    for frame in islice(frames(), 3):  # record, compile, choose
        sequence.advance(frame.image)
    sequence.restart()
    clock("decode", lambda: (frame.number for frame in frames()))
    clock("decode, estimate", estimate)
    sequence.restart()
    clock("end to end", lambda: everything(Path(folder) / "out.mp4"))
