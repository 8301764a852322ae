"""GPU memory of a training step of one pair, for each host and matcher.

    python benchmarks/training_memory.py [WIDTHxHEIGHT]

Prints the most memory that torch allocated, weights and optimizer included, for every host with its
own matcher and with the learned one. The paper: 1.9 G for VCN, 1.1 G for DICL, at 384x256.
"""

import sys
from dataclasses import replace
from itertools import product, repeat

import torch

from dicl_flow.config import HOSTS, AugmentConfig, DataConfig, ModelConfig, TrainConfig
from dicl_flow.data import FlowBatch
from dicl_flow.training import Processes, Trainer

width, height = map(int, (sys.argv[1] if len(sys.argv) > 1 else "384x256").split("x"))
device = torch.device("cuda")
images = torch.rand(2, 1, 3, height, width, device=device)
truth = torch.randn(1, 2, height, width, device=device)
batch = FlowBatch(*images, truth, torch.ones(1, height, width, dtype=torch.bool, device=device))
stage = TrainConfig("memory", (DataConfig("rendered"),), batch=1)
stage = replace(stage, augment=AugmentConfig.crop_only((height, width)))
print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {width}x{height}, fp32")
for host, matcher in product(HOSTS, (None, "dicl")):
    if host == matcher:  # that is its own matcher
        continue
    config = replace(stage, model=ModelConfig(host=host, matcher=matcher))
    trainer = Trainer(config, Processes(device))
    trainer.train_step(repeat(batch), 0.0)  # Adam allocates its state
    torch.cuda.reset_peak_memory_stats()
    at_rest = torch.cuda.memory_allocated()
    trainer.train_step(repeat(batch), 0.0)
    peak = torch.cuda.max_memory_allocated()
    name = f"{host}{' + ' + matcher if matcher else ''}"
    print(f"{name:14s} {peak / 2**30:.2f} GiB, {(peak - at_rest) / 2**30:.2f} beyond the weights")
    del trainer
