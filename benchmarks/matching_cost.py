"""What the matching loss adds to a step: python benchmarks/matching_cost.py PHOTOS [KEY=VALUE …].

Two trainings of the recipe `every-level` on one repeated batch, with and without the loss, in
turns; frames of one size, no rendering. Prints milliseconds per step of each turn.
"""

import sys
from itertools import repeat
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from dicl_flow.training import Processes, Trainer, open_source, read_recipe

photos, *changes = sys.argv[1:]
processes = Processes(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
settings = {"with": [], "without": ["loss.matching=[]"]}
trainers, batch = {}, None
for name, change in settings.items():
    config = read_recipe("every-level", ["render.sizes=[]", *changes, *change])
    if batch is None:
        source = open_source(config, {"rendered": Path(photos)})
        batch = next(source.batches(config.batch, 0, processes))
    trainers[name] = Trainer(config, processes)
    trainers[name].train_step(repeat(batch), 0.5)  # compiled and recorded

times = {name: [] for name in trainers}
for _ in range(5):
    for name, trainer in trainers.items():
        start = perf_counter()
        for _ in range(10):
            trainer.train_step(repeat(batch), 0.5)  # waits for the device to know the loss
        times[name].append((perf_counter() - start) * 100)
for name, found in times.items():
    print(f"{name:8} {'  '.join(f'{time:.1f}' for time in found)}  median {median(found):.1f} ms")
more = median(times["with"]) / median(times["without"]) - 1
print(f"the matching loss adds {100 * more:.1f} %")
