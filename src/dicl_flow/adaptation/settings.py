"""The settings of an adaptation besides the recipe of the student."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..config import ModelConfig, TrainConfig, structure
from ..config.strict import check_ranges
from ..errors import InputError
from ..training import read_recipe
from ..training.recipe import parse_change

_PREFIX = "adapt."
RECIPE = "adapt"


@dataclass(frozen=True)
class AdaptConfig:
    """What the teacher keeps, what the student sees, and what is accepted.

    On the command line: `--set adapt.new_frames=0.3`.
    """

    pairs: int = 400
    """Most pairs of frames to train on."""
    distances: tuple[int, ...] = (1, 2, 4)
    """Frames from the first to the second of a pair."""
    held_back: float = 0.2
    """Share of the frames that are never trained on, to judge the result by."""
    held_back_pairs: int = 40
    """Most pairs of them that are judged."""
    disk: float = 4.0
    """Most GB that frames and flows may take on disk while the run lasts."""

    agreement: tuple[float, float] = (0.005, 0.3)
    """A pixel is kept if |f + b| is below the first times (|f| + |b|), plus the second in px."""
    confidence: float = 0.6
    """Least confidence of a kept pixel."""
    difference: float = 0.04
    """Largest difference of colour, smoothed, between a kept pixel and where it leads; 1 is from
    black to white. In noise, four times the median difference of the pair if that is more."""
    balance: float = 0.5
    """How far speeds are balanced: 0, not at all; 1, all are as frequent as the middle one."""

    views: float = 0.33
    """Share of the batches that are views of the footage; the others are rendered scenes."""
    new_frames: float = 0.0
    """Share of the footage's views whose second frame is made from the first, with exact flow."""
    footage_textures: float = 0.5
    """Share of the rendered batches that are textured with the footage's own frames."""
    footage_motion: bool = True
    """Whether these batches move as fast as the footage does."""
    look: float = 0.8
    """Share of the rendered pairs that get the contrast, the colours and the noise of the footage.
    """

    share: float = 0.5
    """How far the weights go from those before to the trained ones, which forget more. If even
    that forgets too much, three fifths of it."""
    scenes: int = 32
    """Rendered scenes, which are never trained on, that show what is forgotten."""
    forgotten: float = 0.03
    """Largest accepted rise of the error on these scenes, relative."""
    calibration_scenes: int = 64
    """Rendered scenes to calibrate accepted weights with, for each quality."""

    def __post_init__(self) -> None:
        check_ranges(self, _RANGES)
        if not self.distances or min(self.distances) < 1 or max(self.distances) > 64:
            raise InputError(f"distances must be from 1 to 64, got {list(self.distances)}")


_RANGES = {  # of what is not in [0, 1]
    "pairs": (1, 100_000),
    "distances": None,
    "held_back": (0.05, 0.5),
    "held_back_pairs": (2, 10_000),
    "disk": (0.001, 100_000),
    "agreement": (0, 10),
    "scenes": (1, 10_000),
    "calibration_scenes": (1, 10_000),
}


def read_settings(
    changes: Sequence[str], model: ModelConfig, seed: int, steps: int | None = None
) -> tuple[AdaptConfig, TrainConfig]:
    """Return the settings and the student's recipe, for a network, with `key=value` changes.

    Keys that start with "adapt." are those of `AdaptConfig`.
    """
    own = [change.removeprefix(_PREFIX) for change in changes if change.startswith(_PREFIX)]
    table: dict[str, Any] = {}
    for change in own:
        parse_change(table, change)
    settings: AdaptConfig = structure(AdaptConfig, table, "adapt")
    others = [change for change in changes if not change.startswith(_PREFIX)]
    fixed = [f"seed={seed}", *([] if steps is None else [f"steps={steps}"])]
    recipe = read_recipe(RECIPE, [*_loss_changes(model), *others, *fixed], model)
    return settings, recipe


def _loss_changes(model: ModelConfig) -> list[str]:
    """The weights of the loss for other levels than the recipe's: those of the same strides."""
    record = model.host_record
    if model.host != "dicl" or model.strides == tuple(level.stride for level in record.levels):
        return []
    known = [level.stride for level in record.levels]
    places = [known.index(max(stride, known[-1])) for stride in model.strides]
    weights = {
        "refined": record.loss.refined if model.context else (),
        "matched": record.loss.matched,
        "matching": tuple(float(stride >= 16) for stride in known),
    }
    return [
        f"loss.{key}={[values[place] for place in places] if values else []}"
        for key, values in weights.items()
    ]
