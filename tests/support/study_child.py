"""signal_child.py with the scenes of small_study.py."""

import sys

import signal_child
from small_study import use_small_scenes

if __name__ == "__main__":
    use_small_scenes()
    signal_child.main(*sys.argv[1:])
