"""Follow points through frames.

python examples/track_points.py 120,80 300,200 -- frame*.png

Prints a line for each frame: its name and each point, or "lost" once it is hidden or has left.
"""

import sys
from itertools import pairwise

import cv2
import numpy as np

import dicl_flow

split = sys.argv.index("--")
points = np.array([text.split(",") for text in sys.argv[1:split]], np.float32)  # (N, 2), x first
frames = sys.argv[split + 1 :]
lost = np.zeros(len(points), bool)


def look_up(values: np.ndarray) -> np.ndarray:
    """Read a map at the points, bilinearly."""
    return cv2.remap(values.astype(np.float32), points[None], None, cv2.INTER_LINEAR)[0]


def report(name: str) -> None:
    """Print where the points are."""
    places = zip(points, lost, strict=True)
    print(name, *("lost" if gone else f"{x:.1f},{y:.1f}" for (x, y), gone in places))


estimator = dicl_flow.load()
report(frames[0])
for frame1, frame2 in pairwise(frames):
    result = estimator(frame1, frame2, backward=True)
    lost |= look_up(result.occlusion) > 0.5
    points = points + look_up(result.flow)
    report(frame2)
