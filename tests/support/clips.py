"""Write and read clips; a stand-in for the network that returns their true motion."""

import csv

import av
import cv2
import fake_trees
import numpy as np
import torch
from conftest import SMALL

from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build


def write_video(path, frames, rate=10, codec="ffv1", pix_fmt="bgr0", rotation=0):
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = *frames[0].shape[:2], pix_fmt
        if rotation:
            stream.set_display_rotation(rotation)
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    return path


def read_video(path):
    """Pictures and their times."""
    with av.open(str(path)) as container:
        return [(frame.to_ndarray(format="rgb24"), frame.time) for frame in container.decode()]


def write_images(folder, frames, suffix=".png"):
    for number, frame in enumerate(frames):
        fake_trees.write_image(folder / f"shot_{number}{suffix}", frame)
    return folder


def read_rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def connect_camera(monkeypatch, frames):
    """Let OpenCV find a camera that has these frames, RGB."""

    class Camera:
        def __init__(self, number):
            self.frames = iter(frames)

        def isOpened(self):
            return True

        def get(self, name):
            return 30.0 if name == cv2.CAP_PROP_FPS else -1.0

        def read(self):
            frame = next(self.frames, None)
            return frame is not None, None if frame is None else frame[..., ::-1]

    monkeypatch.setattr(cv2, "VideoCapture", Camera)


class KnownMotion:
    """Stands in for a `FlowSequence`: says that all moves by `motion`, and back.

    To tell the flows apart, each is longer by a fortieth of its second frame's brightness.
    """

    motion = (4.0, 0.0)

    def __init__(self, estimator=None, *, backward=True, sharpness=False):
        self.estimator, self.backward, self.sharpness = estimator, backward, sharpness

    def fresh(self):
        return type(self)(self.estimator, backward=self.backward, sharpness=self.sharpness)

    def at_once(self, size):
        return 1

    def prepare(self, image):
        return image

    def match(self, before, after):
        assert before.shape == after.shape
        brightness = float(after.mean()) / np.iinfo(after.dtype).max
        channels = 3 + self.sharpness
        answer = torch.ones(1, channels * (1 + self.backward), *after.shape[:2])
        for channel, sign in ((0, 1), (channels, -1))[: 1 + self.backward]:
            there = torch.tensor(self.motion) + brightness / 40
            answer[:, channel : channel + 2] = sign * there[:, None, None]
        return answer


def know_motion(monkeypatch, sequence=KnownMotion):
    """Let commands estimate with the stand-in; the network, a small one, is not used."""
    estimator = FlowEstimator(build(SMALL), "cpu", "fp32", "plain")
    monkeypatch.setattr("dicl_flow.estimation.estimator.load", lambda *choices, **more: estimator)
    monkeypatch.setattr("dicl_flow.estimation.estimator.FlowSequence", sequence)


class KnownShifts:
    """Stands in for the `FlowSequence` of a tracker, for frames that move evenly.

    `scenes` lists them: [(frames, motion), …]. Between scenes, the way back leads elsewhere.
    """

    scenes = ()
    pairs = 0
    """How many were matched."""

    def __init__(self, estimator=None, *, backward=True):
        pass

    def prepare(self, image):
        return image

    def match_pairs(self, pairs):
        return [self._match(*pair) for pair in pairs]

    def _match(self, before, after):
        type(self).pairs += 1
        (scene1, number1), (scene2, number2) = self._find(before), self._find(after)
        answer = torch.ones(1, 6, *after.shape[:2])  # two flows, each with its confidence
        motion = (number2 - number1) * torch.tensor(self.scenes[scene1][1], dtype=torch.float32)
        back = -motion if scene1 == scene2 else 20 - motion
        answer[:, 0:2], answer[:, 3:5] = motion[:, None, None], back[:, None, None]
        return answer

    def _find(self, image):
        places = ((s, n) for s, (frames, _) in enumerate(self.scenes) for n in range(len(frames)))
        return next((s, n) for s, n in places if np.array_equal(self.scenes[s][0][n], image))
