"""Settings as data: frozen, checked when created, read strictly from TOML or JSON."""

from .augment import AugmentConfig
from .calibration import CUES, Calibration
from .hosts import HOST_RECORDS, HOSTS, PAPER_LEVELS, HostRecord
from .level import LevelConfig
from .loss import LossConfig
from .model import MATCHERS, PADDINGS, ModelConfig
from .places import PLACES, Crowd, Place, WorldConfig, find_place
from .quality import BEST, NORMAL, QUALITIES, Quality, find_quality
from .render import RenderConfig
from .strict import differences, read_toml_table, structure, to_toml
from .training import (
    DataConfig,
    OptimizerConfig,
    ScheduleConfig,
    SecondPassConfig,
    TrainConfig,
)

__all__ = [
    "BEST",
    "CUES",
    "HOST_RECORDS",
    "HOSTS",
    "MATCHERS",
    "NORMAL",
    "PADDINGS",
    "PAPER_LEVELS",
    "PLACES",
    "QUALITIES",
    "AugmentConfig",
    "Calibration",
    "Crowd",
    "DataConfig",
    "HostRecord",
    "LevelConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Place",
    "Quality",
    "RenderConfig",
    "ScheduleConfig",
    "SecondPassConfig",
    "TrainConfig",
    "WorldConfig",
    "differences",
    "find_place",
    "find_quality",
    "read_toml_table",
    "structure",
    "to_toml",
]
