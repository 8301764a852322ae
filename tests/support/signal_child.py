"""`dicl-flow` in a process that sends itself a signal right after some call of a method.

python signal_child.py SIGKILL 70 dicl_flow.cli.clips:VideoProgress.__call__ video clip.mkv …

"group-SIGTERM" goes to the process and then to its whole group, as `timeout` sends it.
"""

import os
import signal
import sys
from importlib import import_module
from itertools import count

from dicl_flow.cli import main as run_command


def send(name: str) -> None:
    number = getattr(signal, name.removeprefix("group-"))
    os.kill(os.getpid(), number)
    if name.startswith("group-"):
        os.killpg(0, number)


def signal_after(name: str, number: int, place: str, set_attribute=setattr) -> None:
    """Send a signal after the `number`-th call of the method at `place`, "module:Class.method"."""
    module, _, path = place.partition(":")
    owner_name, method = path.split(".")
    owner = getattr(import_module(module), owner_name)
    real, calls = getattr(owner, method), count(1)

    def counted(*arguments, **options):
        result = real(*arguments, **options)
        if next(calls) == number:
            send(name)
        return result

    set_attribute(owner, method, counted)


def main(name: str, number: str, place: str, *command: str) -> None:
    if name.startswith("group-"):
        os.setpgid(0, 0)  # a separate group
    signal_after(name, int(number), place)
    run_command(list(command))


if __name__ == "__main__":
    main(*sys.argv[1:])
