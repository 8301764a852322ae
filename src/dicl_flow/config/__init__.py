"""Settings as data: frozen, checked when created, read strictly from TOML or JSON."""
# ruff: noqa: F401
# mypy: implicit-reexport

from .model import (
    BEST,
    CUES,
    HOST_RECORDS,
    HOSTS,
    LIVE,
    MATCHERS,
    NORMAL,
    PADDINGS,
    PAPER_LEVELS,
    QUALITIES,
    Calibration,
    LevelConfig,
    LossConfig,
    ModelConfig,
    Quality,
    Radii,
    find_quality,
)
from .render import PLACES, Crowd, Place, RenderConfig, WorldConfig, find_place
from .strict import differences, read_toml_table, structure, to_toml
from .training import (
    AugmentConfig,
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    SecondPassConfig,
    TrainConfig,
)
