"""What campaigns feed: frames that really move, clips of them, weights of a small network."""

from pathlib import Path

import cv2
import numpy as np
import torch

from dicl_flow import LevelConfig, ModelConfig, build
from dicl_flow.files import Array, encode_image, write_files
from dicl_flow.weights import Weights, encode_weights

SMALL = ModelConfig(levels=(LevelConfig(8, 2, ((8, 1),)), LevelConfig(4, 1, ((8, 1), (8, 2)))))
"""A network of two levels: what survives a kill or a strange frame does not depend on its size."""
MOTION = (2, 1)  # px to the right and down, from one frame to the next


def small_weights(path: Path, config: ModelConfig = SMALL) -> Path:
    """Write random weights of a small network."""
    torch.manual_seed(0)
    state = build(config).state_dict()
    path.write_bytes(encode_weights(Weights(config, state, {"recipe": "none"})))
    return path


def texture(height: int, width: int, seed: int = 0) -> Array:
    """(height, width, 3) uint8: noise of several scales, so that every level can match it."""
    dice, layers = np.random.default_rng(seed), []
    for cell in (2, 8, 32):
        noise = dice.random((height // cell + 2, width // cell + 2, 3), np.float32)
        layers.append(cv2.resize(noise, (width, height), interpolation=cv2.INTER_CUBIC))
    return np.rint(np.clip(np.mean(layers, 0), 0, 1) * 255).astype(np.uint8)


def moving_frames(count: int, height: int, width: int, seed: int = 0) -> list[Array]:
    """Frames in which what is at x in one is at x + MOTION in the next."""
    room = count * max(MOTION)
    whole = texture(height + room, width + room, seed)
    tops = [(count - number) * MOTION[1] for number in range(count)]
    lefts = [(count - number) * MOTION[0] for number in range(count)]
    return [whole[t : t + height, s : s + width] for t, s in zip(tops, lefts, strict=True)]


def write_images(folder: Path, frames: list[Array]) -> Path:
    """Write frames as f000.png and so on."""
    folder.mkdir()
    for number, frame in enumerate(frames):
        path = folder / f"f{number:03d}.png"
        write_files({path: encode_image(path, frame)})
    return folder


def write_clip(path: Path, frames: list[Array]) -> Path:
    """Write an .avi file, whose codec OpenCV has itself."""
    size = frames[0].shape[1::-1]
    file = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 25, size)
    for frame in frames:
        file.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))
    file.release()
    return path
