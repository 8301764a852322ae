"""Track points through a video.

python examples/track_points.py 'frame*.png' 120,80 300,200

The frames are a video, a folder or a quoted pattern, in natural order. Prints a line for each
frame: its number and each point, or "hidden" where the point cannot be seen.
"""

import argparse

import dicl_flow


def point(text: str) -> tuple[float, float]:
    """Read "120,80"."""
    x, y = map(float, text.split(","))
    return x, y


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("clip", help="video, folder or quoted pattern of frames")
parser.add_argument("points", nargs="+", type=point, help="X,Y in the first frame")
given = parser.parse_args()
try:
    tracks = dicl_flow.track(given.clip, given.points)
except (dicl_flow.InputError, OSError) as error:
    parser.error(str(error))
for frame, points, visible in zip(
    tracks.frames, tracks.points.swapaxes(0, 1), tracks.visible.T, strict=True
):
    places = zip(points, visible, strict=True)
    print(frame, *(f"{x:.1f},{y:.1f}" if seen else "hidden" for (x, y), seen in places))
