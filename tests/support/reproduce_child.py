"""`dicl-flow reproduce` in a process that kills itself at a step of a stage.

python reproduce_child.py STAGE STEP ARGUMENT …
"""

import os
import signal
import sys

import torch

from dicl_flow.cli import main
from dicl_flow.training import Trainer
from dicl_flow.training import chain as pace


def main_child(stage: str, step: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    pace.measure_pace = lambda *_: pace.Pace(1.0, 1.0)  # which would take steps, too
    real = Trainer.train_step

    def dying(self, batches, progress):
        if (self.config.name, self.step) == (stage, int(step)):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, batches, progress)

    Trainer.train_step = dying
    main(list(arguments))


if __name__ == "__main__":
    main_child(*sys.argv[1:])
