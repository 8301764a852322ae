"""The optimizer and the learning rate over a run."""

from math import cos, pi

import torch
from torch import nn

from ..config import OptimizerConfig, TrainConfig


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, *, fused: bool = False
) -> torch.optim.Optimizer:
    """Return Adam or AdamW; norms, biases and the projection have no weight decay.

    Frozen parameters are left out.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    decayed = [p for name, p in trained.items() if p.ndim > 1 and "projection" not in name]
    chosen = {id(parameter) for parameter in decayed}
    rest = [parameter for parameter in trained.values() if id(parameter) not in chosen]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.kind]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return kind(
        groups, lr=config.learning_rate, betas=(0.9, 0.999), fused=fused or None, capturable=fused
    )


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Return the learning rate of a step; `progress` goes from 0 to 1 over the run."""
    schedule = config.schedule
    factor = 1.0
    if schedule.kind == "step":
        passed = sum(progress * config.steps >= milestone for milestone in schedule.milestones)
        factor = schedule.factor**passed
    elif schedule.kind == "cosine":
        factor = _cosine((progress - schedule.hold) / (1 - schedule.hold), schedule.final)
    elif schedule.kind == "one-cycle":
        rising = progress / schedule.peak
        falling = (progress - schedule.peak) / (1 - schedule.peak)
        factor = rising if rising < 1 else _cosine(falling, schedule.final)
    warm = min(1.0, (step + 1) / schedule.warmup) if schedule.warmup else 1.0
    return config.optimizer.learning_rate * factor * warm


def _cosine(progress: float, final: float) -> float:
    return final + (1 - final) * (1 + cos(pi * min(max(progress, 0), 1))) / 2
