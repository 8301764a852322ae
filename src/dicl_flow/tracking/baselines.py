"""Simple trackers, to compare with: chained flow, direct flow, and Lucas and Kanade's method."""

from collections.abc import Callable, Iterator, Sequence

import cv2
import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..estimation.confidence import find_occlusion
from ..estimation.estimator import FlowEstimator, FlowSequence
from ..estimation.result import unpack
from ..files import Array
from ..ops import Size, sample_clamped
from .tracks import Tracks, check_points, inside, references_of

Move = Callable[[int, int, Array], tuple[Array, Array]]
"""Points (P, 2) of a frame in another: (P, 2), and (P,) bool, whether they were lost."""

_WINDOW, _LEVELS = (21, 21), 3  # of Lucas and Kanade's method: OpenCV's defaults
_STOP = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 30, 0.01)  # 30 rounds, or 0.01 px
_RETURNS = 1.0  # px: a point that is tracked back to farther away is lost


def chained(estimator: FlowEstimator, images: Sequence[Array], queries: Array) -> Tracks:
    """Follow the flow from frame to frame; a point once hidden stays hidden.

    `images` are (H, W, 3) uint8, `queries` (N, 3): frame, x, y.
    """
    return _follow(_flow_moves(estimator, images), images, queries)


def direct(estimator: FlowEstimator, images: Sequence[Array], queries: Array) -> Tracks:
    """Follow the flow from the query's frame to every other; nothing is remembered."""
    return _follow(_flow_moves(estimator, images), images, queries, from_query=True)


def lucas_kanade(images: Sequence[Array], queries: Array) -> Tracks:
    """Search windows from frame to frame, and back; a point once lost stays where it was."""
    grays = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in images]

    def search(source: int, target: int, points: Array) -> tuple[Array, Array]:
        moved, found = _search(grays[source], grays[target], points)
        back, found_back = _search(grays[target], grays[source], moved)
        returns = np.linalg.norm(back - points, axis=1) < _RETURNS
        kept = found & found_back & returns
        return np.where(kept[:, None], moved, points), ~kept

    return _follow(search, images, queries)


def _search(image1: Array, image2: Array, points: Array) -> tuple[Array, Array]:
    """(P, 2) points of one image in the other, and (P,) bool, whether they were found."""
    moved, found, _ = cv2.calcOpticalFlowPyrLK(
        image1, image2, points, points.copy(), winSize=_WINDOW, maxLevel=_LEVELS, criteria=_STOP
    )
    return np.asarray(moved), np.asarray(found)[:, 0] > 0


def _follow(
    move: Move, images: Sequence[Array], queries: Array, *, from_query: bool = False
) -> Tracks:
    """Follow points forward and backward in time, from frame to frame or from the query's."""
    size, begin = _checked(images, queries), queries[:, 0].astype(np.int64)
    shape, rows = (len(queries), len(images)), np.arange(len(queries))
    points, visible = np.full((*shape, 2), np.nan, np.float32), np.zeros(shape, bool)
    interval = np.zeros(shape, np.int16)
    points[rows, begin], visible[rows, begin] = queries[:, 1:], True
    for source, target, chosen in _steps(begin, len(images), from_query):
        places, lost = move(source, target, points[chosen, source])
        points[chosen, target], interval[chosen, target] = places, target - source
        visible[chosen, target] = visible[chosen, source] & ~lost & inside(places, size)
    return Tracks(
        points=points,
        visible=visible,
        error=np.full(shape, np.nan, np.float32),  # not known
        interval=interval,
        queries=queries.astype(np.float32),
        times=np.full(len(images), np.nan),
        cuts=np.empty(0, np.int64),
        size=size,
    )


def _steps(begin: Array, num_frames: int, from_query: bool) -> Iterator[tuple[int, int, Array]]:
    """Yield source and target frames, and which points go from one to the other."""
    for step, targets in (1, range(1, num_frames)), (-1, range(num_frames - 2, -1, -1)):
        for target in targets:
            going = (target - begin) * step > 0
            sources = np.unique(begin[going]).tolist() if from_query else [target - step]
            for source in sources:
                chosen = np.flatnonzero(going & (begin == source) if from_query else going)
                if len(chosen):
                    yield source, target, chosen


def _flow_moves(estimator: FlowEstimator, images: Sequence[Array]) -> Move:
    """Points move as the flow says; they are lost where it does not lead back."""
    sequence, prepared = FlowSequence(estimator, backward=True), dict[int, Tensor]()

    def features(frame: int) -> Tensor:
        if frame not in prepared:
            prepared[frame] = sequence.prepare(images[frame]).clone()
        return prepared[frame]

    @torch.inference_mode()
    def move(source: int, target: int, points: Array) -> tuple[Array, Array]:
        forward, backward = unpack(sequence.match(features(source), features(target)))
        hidden = find_occlusion(forward.flow, backward.flow)
        maps = torch.cat([forward.flow, hidden.to(forward.flow.dtype)], 1)
        found = sample_at(maps, torch.from_numpy(points).to(maps.device)).cpu().numpy()
        return points + found[:, :2], found[:, 2] > 0.5

    return move


def sample_at(maps: Tensor, points: Tensor) -> Tensor:
    """(1, C, H, W) at (P, 2) points in px -> (P, C); outside, at the nearest edge."""
    height, width = maps.shape[-2:]
    middle = points.new_tensor([max(width - 1, 1), max(height - 1, 1)]) / 2
    return sample_clamped(maps, (points / middle - 1)[None, None])[0, :, 0].T


def _checked(images: Sequence[Array], queries: Array) -> Size:
    """(height, width) of the frames; refuse queries outside the clip or the frame."""
    if queries.ndim != 2 or queries.shape[1] != 3:
        raise InputError(f"queries must be (N, 3): frame, x, y; got {queries.shape}")
    frames = queries[:, 0]
    if not ((frames >= 0) & (frames < len(images)) & (frames == np.floor(frames))).all():
        raise InputError(f"frames of queries must be whole numbers from 0 to {len(images) - 1}")
    height, width = images[0].shape[:2]
    check_points(references_of(queries), (height, width))
    return height, width
