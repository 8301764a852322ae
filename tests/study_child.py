"""signal_child.py with the textures of small_study.py."""

import sys

import signal_child
from small_study import use_small_textures

if __name__ == "__main__":
    use_small_textures()
    signal_child.main(*sys.argv[1:])
