"""A training step of a host in float64, by one process and by two; what came out.

python distributed_worker.py HOST FOLDER PORT
"""

import os
import sys
from dataclasses import replace
from multiprocessing import get_context

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


def work(host: str, folder: str, port: str, world_size: int, rank: int) -> None:
    """Be one of the processes; the first of them saves what it found."""
    place = {"WORLD_SIZE": world_size, "RANK": rank, "LOCAL_RANK": rank}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ |= {name: str(value) for name, value in place.items()}
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    processes = join(torch.device("cpu"))
    found = take_step(host, processes)
    if processes.is_first:
        torch.save(found, f"{folder}/{world_size}.pt")
    leave(processes)


def main(*arguments: str) -> None:
    context = get_context("fork")  # all is imported, nothing is computed yet
    places = ((1, 0), (2, 0), (2, 1))
    parts = [context.Process(target=work, args=(*arguments, *place)) for place in places]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    sys.exit(any(part.exitcode for part in parts))


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
