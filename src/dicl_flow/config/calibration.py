"""The calibration that turns the cues of a network into a confidence."""

import dataclasses
import json
from dataclasses import dataclass
from math import inf, isfinite

from ..errors import InputError
from .strict import read_json, structure

CUES = (
    "entropy",
    "refinement",
    "disagreement",
    "length",
    "edge",
    "difference",
    "outside",
)


@dataclass(frozen=True)
class Calibration:
    """A logistic regression: sigmoid(bias + sum of weight x cue).

    The result is the probability that the error of the flow is at most `threshold` px, in pixels
    of the frame that the network sees. There is one weight for each cue, under the name of the
    cue; see `estimation.confidence`.
    """

    bias: float
    entropy: float
    refinement: float
    disagreement: float
    length: float
    edge: float
    difference: float
    outside: float
    threshold: float = 1.0
    scenes: int = 0
    """Number of rendered scenes it was fitted to."""

    def __post_init__(self) -> None:
        if not 0 < self.threshold < inf:
            raise InputError(f"the threshold must be positive, got {self.threshold}")
        if not all(map(isfinite, (self.bias, *self.weights))):
            raise InputError("the calibration contains NaN or infinite values")

    @property
    def weights(self) -> tuple[float, ...]:
        """One for each of `CUES`."""
        return tuple(getattr(self, cue) for cue in CUES)

    @property
    def meaning(self) -> str:
        """The meaning of a confidence, in words."""
        return f"probability of an error of at most {self.threshold:g} px"

    def to_json(self) -> str:
        """One line of JSON that `Calibration.from_json` reads back as an equal calibration."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Calibration":
        """Read what `to_json` wrote; unknown keys and wrong types are refused."""
        return structure(cls, read_json(text, "the calibration"))
