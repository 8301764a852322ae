"""signal_child.py with segments of 6 flows: a short video has several."""

import sys

import signal_child

from dicl_flow.video import PictureVideo

PIECE = 6


if __name__ == "__main__":
    PictureVideo.piece = PIECE
    signal_child.main(*sys.argv[1:])
