"""Training: recipe -> batches -> loss -> step -> checkpoint."""

from .checkpoint import RunFolder
from .distributed import Processes, join, leave
from .loop import Limits, Outcome, train
from .loss import end_point_error, pyramid_loss
from .recipe import read_recipe, recipe_names
from .sources import PROCEDURAL, BatchSource, DataSource, FixedSource, SceneSource, open_source
from .trainer import Trainer

__all__ = [
    "BatchSource",
    "DataSource",
    "FixedSource",
    "Limits",
    "Outcome",
    "PROCEDURAL",
    "Processes",
    "RunFolder",
    "SceneSource",
    "Trainer",
    "end_point_error",
    "join",
    "leave",
    "open_source",
    "pyramid_loss",
    "read_recipe",
    "recipe_names",
    "train",
]
