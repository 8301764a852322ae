"""One process of test_distributed.py: a training step of a host in float64; what came out."""

import sys
from dataclasses import replace

import torch
from small_training import CONFIG, RandomSource

from dicl_flow.config import OptimizerConfig
from dicl_flow.data import FlowBatch
from dicl_flow.training import Trainer, join, leave

BATCH = 4


class ShareOfFour:
    """Four fixed pairs with uneven validity, divided among the processes."""

    def batches(self, size, start_step, processes):
        whole = next(RandomSource().batches(BATCH, 0, processes))
        valid = whole.valid.clone()
        valid[0, :16] = False  # the mean must be over all processes' pixels, not of means
        parts = (whole.image1.double(), whole.image2.double(), whole.flow.double(), valid)
        first = processes.rank * size
        yield FlowBatch(*(part[first : first + size] for part in parts))


def main(host: str, output: str) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    processes = join(torch.device("cpu"))
    found = take_step(host, processes)
    if processes.is_first:
        torch.save(found, output)
    leave(processes)


def take_step(host, processes):
    """Loss, gradients and statistics of one step of the small network of `host`."""
    config = replace(CONFIG, batch=BATCH, optimizer=OptimizerConfig())
    kind = {"dicl": "averaged", "pwcnet": "multi-scale", "vcn": "summed"}[host]
    model, loss = CONFIG.model.with_host(host), replace(CONFIG.loss, kind=kind)
    trainer = Trainer(replace(config, model=model, loss=loss), processes)
    gradients = {}
    trainer.optimizer.step = lambda: gradients.update(
        {name: p.grad.clone() for name, p in trainer.model.named_parameters()}
    )
    size = processes.share(BATCH, 1)
    values = trainer.train_step(ShareOfFour().batches(size, 0, processes), 0.0)
    buffers = dict(trainer.model.named_buffers())
    return {"values": values, "gradients": gradients, "buffers": buffers}


if __name__ == "__main__":
    main(*sys.argv[1:])
