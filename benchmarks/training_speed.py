"""Plain and fused training on the same rendered scenes: python benchmarks/training_speed.py PHOTOS.

Prints milliseconds per step without and with rendering, then the loss of both, ten steps a line.
"""

import sys
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from time import perf_counter

import torch

from dicl_flow.training import Processes, Trainer, open_source, read_recipe

photos, *changes = sys.argv[1:]  # changes: key=value of the recipe
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
processes = Processes(device)
config = replace(read_recipe("rendered-0", ["steps=120", *changes]), log_every=10)
backends = ("fused", "plain") if device.type == "cuda" else ("plain",)


def milliseconds(trainer, batches, steps=20):
    trainer.train_step(batches, 0.5)
    start = perf_counter()
    for _ in range(steps):
        trainer.train_step(batches, 0.5)  # waits for the device to know the loss
    return (perf_counter() - start) / steps * 1000


losses = {}
for backend in backends:
    stage = replace(config, backend=backend)
    source = open_source(stage, {"rendered": Path(photos)})
    batches = source.batches(stage.batch, 0, processes)
    trainer = Trainer(stage, processes)
    steps = range(stage.steps)
    losses[backend] = [trainer.train_step(batches, s / stage.steps)["loss"] for s in steps]
    with_rendering = milliseconds(trainer, batches, min(20, stage.steps))
    alone = milliseconds(trainer, repeat(trainer.batch), min(20, stage.steps))
    rate = stage.batch * 1000 / with_rendering
    print(f"{backend}: {alone:.1f} ms, {with_rendering:.1f} ms with rendering, {rate:.0f} pairs/s")
for first in range(0, config.steps, config.log_every):
    part = slice(first, first + config.log_every)
    means = (f"{name} {sum(v[part]) / len(v[part]):.2f}" for name, v in losses.items())
    print(f"steps {first:4d} on: {'  '.join(means)}")
