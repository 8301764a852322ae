"""Settings as data: frozen, checked when created, read strictly from TOML or JSON."""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from .hosts import HOST_RECORDS, HOSTS, PAPER_LEVELS, HostRecord, LevelConfig, LossConfig
from .model import (
    BEST,
    CUES,
    MATCHERS,
    NORMAL,
    PADDINGS,
    QUALITIES,
    Calibration,
    ModelConfig,
    Quality,
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
