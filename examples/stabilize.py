"""Steady a shaky video.

python examples/stabilize.py shaky.mp4 steady.mp4
"""

import sys
from itertools import pairwise

import cv2
import numpy as np

import dicl_flow

STEP, SMOOTH = 8, 15  # px between the points that are fitted; frames over which motion is smoothed


def camera_motion(estimator: dicl_flow.FlowEstimator, frame1, frame2) -> np.ndarray:
    """(dx, dy, angle) of the camera: the shift and turn that most of the sure pixels share."""
    result = estimator(frame1[..., ::-1], frame2[..., ::-1])  # OpenCV says BGR
    y, x = np.mgrid[: len(frame1) : STEP, : frame1.shape[1] : STEP].reshape(2, -1)
    sure = result.confidence[y, x] >= np.median(result.confidence)
    start = np.stack([x, y], 1)[sure].astype(np.float32)
    matrix, _ = cv2.estimateAffinePartial2D(start, start + result.flow[y, x][sure])
    return np.array([*matrix[:, 2], np.arctan2(matrix[1, 0], matrix[0, 0])])


source, frames = cv2.VideoCapture(sys.argv[1]), []
while (found := source.read())[0]:
    frames.append(found[1])
estimator = dicl_flow.load()
motions = [camera_motion(estimator, *pair) for pair in pairwise(frames)]
path = np.cumsum([np.zeros(3), *motions], 0)  # (N, 3)
calm = cv2.GaussianBlur(path, (1, 0), 1, sigmaY=SMOOTH, borderType=cv2.BORDER_REPLICATE)
rate, size = source.get(cv2.CAP_PROP_FPS), frames[0].shape[1::-1]
video = cv2.VideoWriter(sys.argv[2], cv2.VideoWriter_fourcc(*"mp4v"), rate, size)
for frame, (dx, dy, angle) in zip(frames, calm - path, strict=True):
    turn = np.array([[np.cos(angle), -np.sin(angle), dx], [np.sin(angle), np.cos(angle), dy]])
    video.write(cv2.warpAffine(frame, turn, size, borderMode=cv2.BORDER_REPLICATE))
video.release()
