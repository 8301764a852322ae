"""A script of the tests, run several times in a row; prints the exit codes.

python forking_child.py SCRIPT ARGUMENTS …

ARGUMENTS is a JSON list, for one run. Each run is forked from this process, which has imported what
takes seconds and computes nothing: no thread is lost.
"""

import json
import os
import runpy
import sys
import traceback

import torch._dynamo  # which the first optimizer imports  # noqa: F401

import dicl_flow.cli
import dicl_flow.training.trainer  # noqa: F401


def live(script: str, arguments: list[str]) -> None:
    code = 1
    try:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main(script: str, *runs: str) -> None:
    codes = []
    for arguments in runs:
        if os.fork() == 0:
            live(script, json.loads(arguments))
        codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    main(*sys.argv[1:])
