"""Stabilise a shaky video.

python examples/stabilize.py shaky.mp4 steady.mp4
"""

import argparse
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np

import dicl_flow
from dicl_flow.cli.inputs_outputs import check_outputs
from dicl_flow.video import open_source

STEP, SMOOTH = 8, 15  # px between the fitted points; frames over which the path is smoothed


def camera_motion(result: dicl_flow.FlowResult) -> np.ndarray:
    """(dx, dy, angle) of the camera: the shift and rotation that most confident pixels share."""
    height, width = result.confidence.shape
    y, x = np.mgrid[:height:STEP, :width:STEP].reshape(2, -1)
    confident = result.confidence[y, x] >= np.median(result.confidence)
    start = np.stack([x, y], 1)[confident].astype(np.float32)
    matrix, _ = cv2.estimateAffinePartial2D(start, start + result.flow[y, x][confident])
    return np.array([*matrix[:, 2], np.arctan2(matrix[1, 0], matrix[0, 0])])


def main(shaky: Path, steady: Path) -> None:
    """Smooth the camera's path, and shift and rotate each frame by the difference."""
    check_outputs([steady], inputs=[shaky])
    source = open_source(str(shaky))
    frames, estimator = [shot.read() for shot in source.shots()], dicl_flow.load()
    motions = [camera_motion(estimator(*pair)) for pair in pairwise(frames)]
    path = np.cumsum([np.zeros(3), *motions], 0)  # (N, 3)
    calm = cv2.GaussianBlur(path, (1, 0), 1, sigmaY=SMOOTH, borderType=cv2.BORDER_REPLICATE)
    size, code = frames[0].shape[1::-1], cv2.VideoWriter.fourcc(*"mp4v")
    video = cv2.VideoWriter(str(steady), code, source.rate or 25.0, size)
    if not video.isOpened():
        raise dicl_flow.InputError(f"OpenCV cannot write {steady}; give a name that ends in .mp4")
    for frame, (dx, dy, angle) in zip(frames, calm - path, strict=True):
        turn = np.array([[np.cos(angle), -np.sin(angle), dx], [np.sin(angle), np.cos(angle), dy]])
        still = cv2.warpAffine(frame, turn, size, borderMode=cv2.BORDER_REPLICATE)
        video.write(cv2.cvtColor(still, cv2.COLOR_RGB2BGR))
    video.release()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("shaky", type=Path, help="video, or folder of frames")
parser.add_argument("steady", type=Path, help="video to write, .mp4")
try:
    main(**vars(parser.parse_args()))
except (dicl_flow.InputError, OSError) as error:
    parser.error(str(error))
