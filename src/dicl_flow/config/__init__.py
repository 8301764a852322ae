"""Config is data: frozen, checked when it is made, read strictly from TOML or JSON."""

from .augment import AugmentConfig
from .calibration import CUES, Calibration
from .model import HOST_LEVELS, HOSTS, MATCHERS, PADDINGS, PAPER_LEVELS, LevelConfig, ModelConfig
from .quality import NORMAL, QUALITIES, Quality, find_quality
from .render import RenderConfig
from .strict import differences, read_toml_table, structure, to_toml
from .training import DataConfig, LossConfig, OptimizerConfig, ScheduleConfig, TrainConfig

__all__ = [
    "CUES",
    "HOST_LEVELS",
    "HOSTS",
    "MATCHERS",
    "NORMAL",
    "PADDINGS",
    "PAPER_LEVELS",
    "QUALITIES",
    "AugmentConfig",
    "Calibration",
    "DataConfig",
    "LevelConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Quality",
    "RenderConfig",
    "ScheduleConfig",
    "TrainConfig",
    "differences",
    "find_quality",
    "read_toml_table",
    "structure",
    "to_toml",
]
