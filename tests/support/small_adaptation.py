"""An adaptation that a test can afford: a network of one level, small frames, few pairs."""

from dataclasses import replace

import cv2
import fake_trees
import numpy as np
import torch
from conftest import TINY

from dicl_flow.adaptation import acceptance
from dicl_flow.files import write_files
from dicl_flow.models import build
from dicl_flow.weights import Weights, encode_weights

SIZE = (32, 48)
NETWORK = replace(TINY, matcher="dot", projection=False)
CHANGES = [
    "augment.crop=[16,32]",
    "render.sizes=[]",
    "render.num_shapes=8",
    "loss.refined=[1.0]",
    "loss.matched=[0.8]",
    "loss.matching=[]",
    "optimizer.precision=fp32",
    "workers=0",
    "batch=2",
    "log_every=1",
    "save_every=1",
    "adapt.pairs=4",
    "adapt.held_back_pairs=2",
    "adapt.scenes=1",
    "adapt.calibration_scenes=1",
    "adapt.confidence=0.0",
    "adapt.agreement=[1.0,5.0]",  # a network of random weights agrees with nothing
    "adapt.difference=1.0",
]


def moving_picture(count, size=SIZE, speed=1.0, seed=0):
    """Frames (H, W, 3) of a texture that moves to the left by `speed` px a frame."""
    generator = np.random.default_rng(seed)
    height, width = size
    noise = generator.integers(0, 256, (height + 16, width + int(speed * count) + 16, 3), np.uint8)
    wide = cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 2), None, 0, 255, cv2.NORM_MINMAX)
    maps = (np.float32([[1, 0, -8 - speed * n], [0, 1, -8]]) for n in range(count))
    return [cv2.warpAffine(wide, m, (width, height)) for m in maps]


def write_footage(folder, frames):
    for number, frame in enumerate(frames):
        fake_trees.write_image(folder / f"frame_{number:03}.png", frame)
    return folder


def write_weights(path, config=NETWORK, **facts):
    torch.manual_seed(0)
    weights = Weights(config, build(config).state_dict(), **facts)
    write_files({path: encode_weights(weights)})
    return path


def accept_everything(set_attribute=setattr, *, accepted=True):
    """Random weights get better on nothing; what follows on acceptance is to be tested.

    Or refuse everything: weights are not calibrated then.
    """
    judge = acceptance.judge

    def decide(*measured):
        reasons = () if accepted else ("for a test",)
        return replace(judge(*measured), accepted=accepted, reasons=reasons)

    set_attribute(acceptance, "judge", decide)
