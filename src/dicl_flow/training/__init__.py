"""Training: recipe, batches, loss, step, checkpoint."""
# ruff: noqa: F401
# mypy: implicit-reexport

from typing import TYPE_CHECKING

from ..lazy import on_first_use
from .recipe import PROCEDURAL, check_roots, read_recipe, recipe_names
from .run_folder import RunFolder

if TYPE_CHECKING:
    from .batch_sources import BatchSource, DataSource, FixedSource, SceneSource, open_source
    from .distributed import Processes, join, leave
    from .loop import Limits, Outcome, train
    from .loss import end_point_error, pyramid_loss
    from .monitoring import Validation
    from .trainer import Trainer
else:
    _names = {
        "batch_sources": "BatchSource DataSource FixedSource SceneSource open_source",
        "distributed": "Processes join leave",
        "loop": "Limits Outcome train",
        "loss": "end_point_error pyramid_loss",
        "monitoring": "Validation",
        "trainer": "Trainer",
    }
    __getattr__ = on_first_use(__name__, _names)
