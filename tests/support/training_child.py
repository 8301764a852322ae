"""The run KILLED in a process that kills itself at a given moment, or not at all.

python training_child.py FOLDER [in-write COUNT SIZE | at-rename COUNT | at-batch COUNT]
"""

import os
import signal
import sys
from itertools import count
from pathlib import Path

import torch
from small_training import CPU, KILLED, RandomSource

from dicl_flow.training import RunFolder, train


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_write(number: int, size: int) -> None:
    """Inside the `number`-th write, after `size` bytes."""
    import dicl_flow.files.atomic as atomic

    real, calls = os.fdopen, count(1)

    def dying(handle, mode):
        file = real(handle, mode)
        if next(calls) == number:
            file.write(b"x" * size)
            file.flush()
            die()
        return file

    atomic.os.fdopen = dying


def die_at_rename(number: int) -> None:
    real, calls = Path.replace, count(1)

    def dying(self, target):
        if next(calls) == number:
            die()
        return real(self, target)

    Path.replace = dying


def die_at_batch(number: int) -> None:
    real = RandomSource.batches

    def dying(self, size, start_step, processes):
        for index, batch in enumerate(real(self, size, start_step, processes)):
            if index == number:
                die()
            yield batch

    RandomSource.batches = dying


MOMENTS = {"in-write": die_in_write, "at-rename": die_at_rename, "at-batch": die_at_batch}


def main(folder: str, moment: str = "", *numbers: str) -> None:
    torch.set_num_threads(1)
    if moment:
        MOMENTS[moment](*map(int, numbers))
    train(KILLED, RandomSource(), RunFolder(folder), CPU, resume=True, quiet=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
