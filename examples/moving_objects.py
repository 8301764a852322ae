"""Mark what moves independently of the camera.

python examples/moving_objects.py frame1.png frame2.png out.png

The camera's motion is the homography that most pixels follow. Pixels that move differently and are
not occluded are painted red. Confidence would not do here: it asks for an error of at most 1 px.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np

import dicl_flow
from dicl_flow.cli.inputs_outputs import check_outputs
from dicl_flow.files import encode_image, to_uint8, write_files

LIMIT = 2.0  # px of motion relative to the camera's


def main(frame1: Path, frame2: Path, output: Path) -> None:
    """Paint the pixels whose flow differs from the camera's."""
    check_outputs(pictures=[output], inputs=[frame1, frame2])
    image = to_uint8(dicl_flow.read_image(frame1))
    result = dicl_flow.load()(frame1, frame2, backward=True)
    height, width = result.flow.shape[:2]
    grid = np.dstack(np.meshgrid(np.arange(width), np.arange(height))).astype(np.float32)
    some = np.s_[::8, ::8]
    start, end = grid[some].reshape(-1, 2), (grid + result.flow)[some].reshape(-1, 2)
    camera, _ = cv2.findHomography(start, end, cv2.RANSAC, LIMIT)
    if camera is None:
        raise dicl_flow.InputError("no motion is shared by many pixels; is this one scene?")
    expected = cv2.perspectiveTransform(grid, camera) - grid
    own_motion = np.linalg.norm(result.flow - expected, axis=2)
    moving = (own_motion > LIMIT) & ~result.occlusion
    image[moving] = image[moving] // 2 + np.array([127, 0, 0], np.uint8)
    write_files({output: encode_image(output, image)})
    print(f"{moving.mean():.1%} of {width}x{height} px move independently of the camera")


parser = argparse.ArgumentParser(description=__doc__)
for name in ("frame1", "frame2", "output"):
    parser.add_argument(name, type=Path)
try:
    main(**vars(parser.parse_args()))
except (dicl_flow.InputError, OSError) as error:
    parser.error(str(error))
