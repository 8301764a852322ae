"""A run is killed before changes of files, run again, and compared with one that was left alone."""

import signal
from functools import partial

from campaigns.forked import Moment, run_forked


def check_kills(work, write, contents, chosen):
    """Kill `write(folder)` before each of `chosen(count)` of its changes, in a folder of its own.

    The second run must end with the same `contents(folder)`.
    """
    alone = work / "alone"
    alone.mkdir()
    count = run_forked(partial(write, alone), alone).operations
    assert count > 40
    codes = []
    for operation in chosen(count):
        folder = work / str(operation)
        folder.mkdir()
        call = partial(write, folder)
        killed = run_forked(call, folder, Moment(operation=operation))
        assert killed.code in (-signal.SIGKILL, 0), (operation, killed.errors)
        codes.append(killed.code)
        for path in folder.glob("*.np[yz]"):  # whole, or not there
            assert path.read_bytes() == (alone / path.name).read_bytes(), operation
        ended = run_forked(call, folder)
        assert ended.code == 0, (operation, ended.errors)
        assert contents(folder) == contents(alone), operation
    # how often progress is saved depends on the time: the last changes may not come
    assert -signal.SIGKILL in codes
