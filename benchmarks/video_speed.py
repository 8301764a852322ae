"""Frames per second from video to video.

    python benchmarks/video_speed.py [1920x1080 [600 [fast [4 16 …]]]]
                                     # WIDTHxHEIGHT, flows, backend, segments encoded at once

With PyAV, the command `dicl-flow video clip.mp4 -o flow.mp4` is measured: MPEG-4 to H.264. Without
it, OpenCV decodes, and encodes the same segments in the same threads, as MPEG-4; they are not
joined. Prints the speed of decoding alone, of decoding and estimating, of that and drawing, and of
everything; the last line is the end-to-end speed with as many segments at once as there are cores.
"""

import sys
import tempfile
from contextlib import closing
from fractions import Fraction
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import perf_counter

import cv2
import numpy as np
import torch

import dicl_flow
from dicl_flow.estimation.compute import usable_cores
from dicl_flow.video import (
    Checkpoint,
    PictureVideo,
    Selection,
    ahead,
    estimate_flows,
    movies,
    open_source,
    run,
)
from dicl_flow.video.coding import CODINGS
from dicl_flow.video.encoding import Segment
from dicl_flow.video.frames import capture

width, height = map(int, (sys.argv[1] if len(sys.argv) > 1 else "1920x1080").split("x"))
count = int(sys.argv[2]) if len(sys.argv) > 2 else 600
backend = sys.argv[3] if len(sys.argv) > 3 else "fast"
PYAV = find_spec("av") is not None


class OpenCvSegment:
    """Encodes with OpenCV, in one thread."""

    def __init__(self, path, rate, coding=None):
        self.path, self.rate, self.writer = path, float(rate), None

    def __call__(self, picture, number):
        """Encode a picture."""
        if self.writer is None:
            size, code = picture.shape[1::-1], cv2.VideoWriter.fourcc(*"mp4v")
            self.writer = cv2.VideoWriter(str(self.path), code, self.rate, size)
        self.writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))

    def close(self):
        """Finish the file."""
        self.writer.release()


class Nothing:
    """Leaves the pictures in memory."""

    def __init__(self, path, rate, coding):
        path.touch()

    def __call__(self, picture, number):
        """Encode nothing."""

    def close(self):
        """Write nothing."""


class Parts(PictureVideo):
    """A video whose segments are not joined."""

    def finish(self):
        """Leave them; the temporary folder is removed."""
        return self.output


def make_clip(path):
    """Pan over a smooth random texture."""
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 256, (height // 12 + 20, width // 12 + 40, 3), np.uint8)
    texture = cv2.resize(coarse, None, fx=16, fy=16, interpolation=cv2.INTER_CUBIC)
    corners = [[int(100 + 90 * np.sin(n / s)) for s in (31, 23)] for n in range(count + 1)]
    encode = OpenCvSegment(path, 30)
    for number, (y, x) in enumerate(corners):
        encode(np.ascontiguousarray(texture[y : y + height, x : x + width]), number)
    encode.close()


def source():
    return open_source(str(clip)) if PYAV else capture(str(clip), live=False)


def frames():
    return ahead(Selection().frames(source()))


def everything(kind, encoder, at_once):
    output, numbers = Path(folder) / "out.mp4", []
    coding, movies.Segment = CODINGS[".mp4"]._replace(at_once=at_once), encoder
    with Checkpoint(output, {}, restart=True) as checkpoint:
        how = (Fraction(30), ["wheel"], None, coding)
        run(
            *(source(), Selection(), sequence, [kind(output, checkpoint.folder, *how)], checkpoint),
            lambda flow: numbers.append(flow.frame.number) is None,
        )
    return numbers


def clock(name, work):
    start = perf_counter()
    number = len(list(work()))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    print(f"{name:<32}{number / (perf_counter() - start):8.1f} frames/s", flush=True)


def estimate():
    return (flow.frame.number for flow in estimate_flows(frames(), sequence))


with tempfile.TemporaryDirectory() as folder:
    clip = Path(folder) / "clip.mp4"
    make_clip(clip)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sequence = dicl_flow.FlowSequence(dicl_flow.load(device=device, backend=backend))
    library = "PyAV, H.264" if PYAV else "OpenCV, MPEG-4, not joined"
    print(f"{width}x{height}, {count} flows, {device}, {sequence.estimator.precision}, {library}")
    with closing(estimate_flows(frames(), sequence)) as flows:  # record, compile, choose
        list(islice(flows, 2))
    clock("decode", lambda: (frame.number for frame in frames()))
    clock("decode, estimate", estimate)
    clock("decode, estimate, draw", lambda: everything(Parts, Nothing, 1))
    kind, encoder = (PictureVideo, Segment) if PYAV else (Parts, OpenCvSegment)
    for at_once in [*map(int, sys.argv[4:]), usable_cores()]:
        name = f"end to end, {at_once} segments at once"
        clock(name, lambda at_once=at_once: everything(kind, encoder, at_once))
