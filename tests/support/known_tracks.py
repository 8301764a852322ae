"""Stands in for a `FlowSequence` whose flows are known; and frames of one scene."""

from types import SimpleNamespace

import fake_trees
import numpy as np
import torch

SIZE = (24, 32)
ESTIMATOR = SimpleNamespace(device=torch.device("cpu"))


def scene(count, seed=0, size=SIZE):
    """Frames of a scene that does not move; each has its number in the first pixel."""
    (texture,), _ = fake_trees.moving_frames(1, size, seed)
    frames = [texture.copy() for _ in range(count)]
    for number, frame in enumerate(frames):
        frame[0, 0] = number
    return frames


class KnownFlows:
    """All moves by `flow(before, after)`, numbers of frames -> x, y; `hidden(before, after)` is
    how far the backward flow misses, in px."""

    def __init__(self, flow=lambda before, after: (0.0, 0.0), hidden=lambda before, after: 0.0):
        self.flow, self.hidden, self.pairs, self.held = flow, hidden, [], []

    def prepare(self, image):
        return torch.from_numpy(np.ascontiguousarray(image))

    def match_pairs(self, pairs):
        self.pairs.append([tuple(int(frame[0, 0, 0]) for frame in pair) for pair in pairs])
        for (before, after), frames in zip(self.pairs[-1], pairs, strict=True):
            x, y = self.flow(before, after)
            miss, sure = self.hidden(before, after), 0.99 - 0.98 * bool(self.hidden(before, after))
            values = torch.tensor([x, y, sure, miss - x, -y, sure])
            yield values[None, :, None, None].expand(1, 6, *frames[0].shape[:2]).contiguous()
