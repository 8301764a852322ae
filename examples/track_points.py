"""Track points through a video.

python examples/track_points.py 'frame*.png' 120,80 300,200

The frames are a video, a folder or a quoted pattern, in natural order. Prints a line for each
frame: its name and each point, or "lost" once the point is hidden or has left the frame.
"""

import argparse

import cv2
import numpy as np

import dicl_flow
from dicl_flow.video import open_source


def point(text: str) -> tuple[float, float]:
    """Read "120,80"."""
    x, y = map(float, text.split(","))
    return x, y


def look_up(values: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Read a map at (N, 2) points, bilinearly."""
    return cv2.remap(values.astype(np.float32), points[None], None, cv2.INTER_LINEAR)[0]


def main(clip: str, points: np.ndarray) -> None:
    """Print where the points are in each frame."""
    shots, lost = open_source(clip).shots(), np.zeros(len(points), bool)
    sequence = dicl_flow.FlowSequence(dicl_flow.load(), backward=True)
    for shot in shots:
        result = sequence.push(image := shot.read())
        if result is None and not (points.min() >= 0 and (points < image.shape[1::-1]).all()):
            raise dicl_flow.InputError("a point lies outside the first frame")
        if result is not None:
            lost |= look_up(result.occlusion, points) > 0.5
            points = points + look_up(result.flow, points)
        places = zip(points, lost, strict=True)
        print(shot.name, *("lost" if gone else f"{x:.1f},{y:.1f}" for (x, y), gone in places))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("clip", help="video, folder or quoted pattern of frames")
parser.add_argument("points", nargs="+", type=point, help="X,Y in the first frame")
given = parser.parse_args()
try:
    main(given.clip, np.array(given.points, np.float32))
except (dicl_flow.InputError, OSError) as error:
    parser.error(str(error))
