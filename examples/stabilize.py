"""Stabilise a shaky video.

python examples/stabilize.py shaky.mp4 steady.mp4
"""

import argparse

import dicl_flow
from dicl_flow.tracking.stabilize import stabilize

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shaky", help="video, or folder of frames")
parser.add_argument("steady", help="video to write, as steady.mp4, or folder")
try:
    print(stabilize(**vars(parser.parse_args())))
except (dicl_flow.InputError, OSError) as error:
    parser.error(str(error))
