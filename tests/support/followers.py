"""A stand-in for the tracker: everything moves by a known step in each frame."""

from typing import ClassVar

import numpy as np
import torch

from dicl_flow.tracking.tracks import Positions


class KnownTracker:
    """Moves all points by `motion` in each frame; what it gives depends on all frames so far.

    The error grows by the brightness of every frame pushed, so that a run that is resumed with
    a wrong state, or frames in a wrong order, is noticed. `hidden` are the places in which no
    point is visible, `cuts` those at which a scene begins, forward in time.
    """

    motion = (3.0, 1.0)
    hidden: ClassVar[set[int]] = set()
    cuts: ClassVar[set[int]] = set()
    pushed: ClassVar[list[int]] = []

    def __init__(self, references):
        self.references = list(references)
        self.begun = [False] * len(self.references)
        self.ended = [False] * len(self.references)
        self.total, self.recent, self.cut = 0.0, [], False

    def push(self, frame, number=None):
        self.pushed.append(number)
        forward = not self.recent or number > self.recent[-1][0]
        self.cut = bool(self.recent) and (number if forward else self.recent[-1][0]) in self.cuts
        self.ended = [e or (self.cut and b) for e, b in zip(self.ended, self.begun, strict=True)]
        self.total += float(frame.mean())
        self.recent = [] if self.cut else self.recent[-2:]
        self.recent.append((number, float(frame.mean())))
        return [self._positions(place, number) for place in range(len(self.references))]

    def _positions(self, place, number):
        reference = self.references[place]
        self.begun[place] = self.begun[place] or reference.frame == number
        if not self.begun[place] or self.ended[place]:
            return None
        steps = number - reference.frame
        points = torch.tensor(reference.points + np.float32(self.motion) * steps)
        count = len(points)
        error = torch.full((count,), self.total if steps else 0.0)
        visible = torch.full((count,), number not in self.hidden)
        return Positions(points, error, visible, torch.full((count,), abs(steps)).short())

    def needs(self):
        return [number for number, _ in self.recent]

    def state(self):
        return {
            "total": np.array(self.total),
            "flags": np.array([self.begun, self.ended]),
            "means": np.array([mean for _, mean in self.recent]),
            "large": np.full((3, 1 << 16), self.total, np.float64),
        }

    def restore(self, state, frames):
        frames = list(frames)
        self.total = float(state["total"])
        assert (state["large"] == self.total).all()
        self.begun, self.ended = state["flags"].tolist()
        means = [float(image.mean()) for _, image in frames]
        assert means == state["means"].tolist(), "other frames than those that were needed"
        self.recent = [(number, mean) for (number, _), mean in zip(frames, means, strict=True)]
