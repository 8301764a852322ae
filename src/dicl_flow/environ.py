"""What torch's threads and allocator read from the environment, once, when torch is imported.

`import dicl_flow` sets it, so commands, examples, hubs and programs of users all have it. A program
that imports torch first has to set it itself.
"""

import os
import sys

SPIN_COUNT, PURGE_DELAY = "GOMP_SPINCOUNT", "MIMALLOC_PURGE_DELAY"
_set: set[str] = set()  # by us
_spins_long = False


def prepare_torch() -> None:
    """Set what nobody else has set, unless torch is imported already.

    The threads of GNU's OpenMP wait for each other by spinning a thirtieth of their default. Next
    to a busy program, they would spin on a core for most of the time, waiting for one that has
    none. On an idle machine an estimate takes about the same time.

    The allocator of ARM builds returns freed memory to the system after 10 s. Its default is 10 ms;
    the next tensors then wait for new pages: a tenth of an estimate.
    """
    global _spins_long
    wanted = {PURGE_DELAY: "10000"}
    if "OMP_WAIT_POLICY" not in os.environ:
        wanted[SPIN_COUNT] = "10000"
    missing = {name: value for name, value in wanted.items() if name not in os.environ}
    if "torch" in sys.modules:
        _spins_long = SPIN_COUNT in missing
    else:
        os.environ.update(missing)
        _set.update(missing)


def purge_at_once() -> None:
    """Leave the allocator as it is by default: for those who measure how memory grows."""
    if PURGE_DELAY in _set:
        _set.remove(PURGE_DELAY)
        del os.environ[PURGE_DELAY]


def threads_spin_long() -> bool:
    """Whether torch was imported first, with OpenMP's default."""
    return _spins_long
