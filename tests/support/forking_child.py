"""Scripts of the tests, each run in a fork of this process, which has imported what takes seconds.

python forking_child.py DEADLINE

Each line of stdin is a JSON list: a folder to work in, a script, its arguments. Each line of stdout
is the answer: the exit code, what was printed, and the errors. A script that takes more than
DEADLINE seconds is killed.
"""

import json
import os
import runpy
import signal
import sys
from contextlib import suppress
from functools import partial

import small_training  # noqa: F401
import torch._dynamo  # which the first optimizer imports  # noqa: F401

import dicl_flow.bulk.run
import dicl_flow.cli.video
import dicl_flow.training.trainer
import dicl_flow.video  # noqa: F401
from campaigns.forked import run_forked, workplace

with suppress(ImportError):  # of an extra
    import av  # noqa: F401


def run(deadline: int, folder: str, script: str, *arguments: str) -> None:
    signal.alarm(deadline)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def main(deadline: str) -> None:
    with workplace() as folder:
        for line in sys.stdin:
            ended = run_forked(partial(run, int(deadline), *json.loads(line)), folder / "run")
            print(json.dumps([ended.code, ended.printed, ended.errors]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
