"""Mark what moves by itself, not with the camera.

python examples/moving_objects.py frame1.png frame2.png out.png

The camera's motion is the homography that most pixels follow; the rest is painted red.
"""

import sys

import cv2
import numpy as np

import dicl_flow

LIMIT, SURE = 2.0, 0.3  # px beside the camera's motion; chance of being right
frame1, frame2, output = sys.argv[1:]
result = dicl_flow.load()(frame1, frame2)

height, width = result.flow.shape[:2]
grid = np.dstack(np.meshgrid(np.arange(width), np.arange(height))).astype(np.float32)
some = np.s_[::8, ::8]
start, end = grid[some].reshape(-1, 2), (grid + result.flow)[some].reshape(-1, 2)
camera, _ = cv2.findHomography(start, end, cv2.RANSAC, LIMIT)
expected = cv2.perspectiveTransform(grid, camera) - grid
beside = np.linalg.norm(result.flow - expected, axis=2)

image = dicl_flow.read_image(frame1)
moving = (beside > LIMIT) & (result.confidence > SURE)
image[moving] = image[moving] // 2 + np.array([127, 0, 0], image.dtype)
cv2.imwrite(output, image[..., ::-1])
print(f"{moving.mean():.1%} of {width}x{height} px move beside the camera")
