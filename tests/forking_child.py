"""A script of the tests, run several times in a row; prints the exit codes.

python forking_child.py SCRIPT ARGUMENTS …

ARGUMENTS is a JSON list, for one run. The runs are forked from this process, which has imported
what takes seconds.
"""

import json
import runpy
import sys
from functools import partial

import torch._dynamo  # which the first optimizer imports  # noqa: F401

import dicl_flow.training.trainer  # noqa: F401
from campaigns.forked import run_forked, workplace


def run(script: str, arguments: list[str]) -> None:
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def main(script: str, *lists: str) -> None:
    with workplace() as folder:
        calls = [partial(run, script, json.loads(arguments)) for arguments in lists]
        runs = [run_forked(call, folder / "run") for call in calls]
    print(json.dumps([ended.code for ended in runs]))
    print("".join(ended.errors for ended in runs), file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
