"""Settings as data: frozen, checked when created, read strictly from TOML or JSON."""

from .augment import AugmentConfig
from .calibration import CUES, Calibration
from .hosts import HOST_RECORDS, HOSTS, PAPER_LEVELS, HostRecord
from .level import LevelConfig
from .loss import LossConfig
from .model import MATCHERS, PADDINGS, ModelConfig
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
    "QUALITIES",
    "AugmentConfig",
    "Calibration",
    "DataConfig",
    "HostRecord",
    "LevelConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Quality",
    "RenderConfig",
    "ScheduleConfig",
    "SecondPassConfig",
    "TrainConfig",
    "differences",
    "find_quality",
    "read_toml_table",
    "structure",
    "to_toml",
]
