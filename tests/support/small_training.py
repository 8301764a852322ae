"""A training that a test can afford: recipe, batches, and the run that children are killed in."""

from dataclasses import replace

import torch
from conftest import SMALL, TINY, TINY_LEVEL

from dicl_flow.config import (
    AugmentConfig,
    DataConfig,
    LossConfig,
    OptimizerConfig,
    TrainConfig,
)
from dicl_flow.data import FlowBatch
from dicl_flow.training import Processes

CPU = Processes(torch.device("cpu"))
CONFIG = TrainConfig(
    name="small",
    data=(DataConfig("chairs"),),
    steps=6,
    batch=2,
    workers=0,
    save_every=2,
    log_every=2,
    picture_every=4,
    model=SMALL,
    augment=AugmentConfig(crop=(16, 32)),
    loss=LossConfig(refined=(0.5, 1.0), matched=(0.4, 0.8)),
    optimizer=OptimizerConfig(average=0.9, clip=1.0),
)
# What a run leaves, and what survives a kill, does not depend on the network: one level without a
# matching net is quick.
QUICK = replace(
    CONFIG, model=replace(TINY, matcher="dot"), loss=LossConfig(refined=(1.0,), matched=(0.8,))
)
KILLED = replace(QUICK, steps=8, save_every=1, log_every=1, picture_every=0)


def small_changes(name):
    """What makes a recipe small: one level, tiny frames; the rest of it stays."""
    changes = [TINY_LEVEL, "model.multiple=1", "augment.crop=[16,32]", "loss.matched=[0.8]"]
    if name not in ("chairs-0", "figures"):  # without context nets
        changes.append("loss.refined=[1.0]")
    if name in ("every-level", "solid", "figures"):
        changes.append("loss.matching=[1.0]")
    # reduced precision has separate tests
    changes += ["render.sizes=[]", "optimizer.precision=fp32", "backend=plain"]
    return [*changes, "validate_every=0"]


class RandomSource:
    """Batches made from the step's number alone; optionally with something wrong in them."""

    def __init__(self, poison=()):
        self.poison = set(poison)

    def batches(self, size, start_step, processes):
        step = start_step
        while True:
            generator = torch.Generator().manual_seed(step)
            image1 = torch.rand(size, 3, 16, 32, generator=generator)
            flow = torch.full((size, 2, 16, 32), 2.0)
            if step in self.poison:
                image1[0, 0, 0, 0] = torch.nan
            yield FlowBatch(image1, image1.roll(2, -1), flow, torch.ones(size, 16, 32).bool())
            step += 1
