"""The camera's motion from points that were followed, a calmer path for it, and its crop.

Plain arrays only. A motion is a 3x3 matrix for positions (x, y, 1) in px from the middle of the
frame, x right, y down; it leads from one frame to another and moves what stands still.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from ..files import Array, encode_arrays
from ..ops import Size

MOTIONS = ("shift", "similarity", "homography")
"""What a camera can do: shift; rotate and zoom besides; change the perspective besides."""
INTERVALS = (1, 2, 4, 8)  # frames over which what stands still must agree
LEAST_CROP = 0.8
"""The share of a side that a crop keeps, at least."""
_FEW = {"shift": 6, "similarity": 8, "homography": 16}  # points that must agree
_SHARE = 0.3  # of the usable points must agree
_SPREAD = 0.05  # of the diagonal: points closer together do not show rotation and zoom
_ZOOM = 1.5  # from one frame to the next, at most
_LONGEST = 250  # frames, of the smoothing that replaces a camera that cannot be held still


# --- the motion between two frames ----------------------------------------------------------------


class Fit(NamedTuple):
    """A motion and the points that agree with it."""

    matrix: Array
    """(3, 3) float64."""
    agree: Array
    """(N,) bool."""


def fit(before: Array, after: Array, motion: str, tolerance: float) -> Fit | None:
    """The motion that most of the (N, 2) points share, within `tolerance` px; None if too few do.

    The same points give the same result: OpenCV's RANSAC begins with the same random numbers.
    """
    if len(before) < _FEW[motion]:
        return None
    agree = _agreeing(before.astype(np.float64), after.astype(np.float64), motion, tolerance)
    if agree is None or agree.sum() < max(_FEW[motion], _SHARE * len(before)):
        return None
    matrix = least_squares(before[agree], after[agree], motion)
    return None if matrix is None else Fit(matrix, agree)


def _agreeing(before: Array, after: Array, motion: str, tolerance: float) -> Array | None:
    """(N,) bool: the largest group of points with one motion; None if there is none."""
    if motion == "shift":
        moved = after - before
        near = np.linalg.norm(moved[:, None] - moved, axis=2) <= tolerance  # (N, N)
        middle = moved[near[near.sum(1).argmax()]].mean(0)
        return np.asarray(np.linalg.norm(moved - middle, axis=1) <= tolerance)
    if motion == "similarity":
        matrix, inside = cv2.estimateAffinePartial2D(
            *(before, after),
            method=cv2.RANSAC,
            ransacReprojThreshold=tolerance,
            maxIters=1000,
            confidence=0.999,
        )
    else:
        matrix, inside = cv2.findHomography(before, after, cv2.USAC_MAGSAC, tolerance)
    return None if matrix is None else inside.ravel().astype(bool)


def least_squares(before: Array, after: Array, motion: str) -> Array | None:
    """The (3, 3) motion with the smallest squared error; None if the points do not show it."""
    before, after = before.astype(np.float64), after.astype(np.float64)
    if motion == "homography":
        matrix, _ = cv2.findHomography(before, after, 0)
        return None if matrix is None else matrix / matrix[2, 2]
    middle, target = before.mean(0), after.mean(0)
    matrix = np.eye(3)
    if motion == "similarity":
        (x, y), (u, v) = (before - middle).T, (after - target).T
        size = (x * x + y * y).sum()
        if size == 0:
            return None
        a, b = (x * u + y * v).sum() / size, (x * v - y * u).sum() / size
        matrix[:2, :2] = [[a, -b], [b, a]]
    matrix[:2, 2] = target - matrix[:2, :2] @ middle
    return matrix


class Step(NamedTuple):
    """The camera's motion from a frame to the next."""

    matrix: Array
    """(3, 3) float64: positions in the frame before -> positions in this frame."""
    points: int
    """How many points agree; 0: too few did, and the camera goes on as before."""


_STILL = Step(np.eye(3), 0)


class CameraMotion:
    """Finds the steps of the camera from positions that come frame by frame.

    Things that move by themselves are left out: the camera's motion is that of the largest group
    of points that agree over several intervals, in which slow things move away from the rest.
    With `hold`, steps follow from the motion since the points were seeded, which does not drift.
    """

    def __init__(self, size: Size, motion: str, tolerance: float, *, hold: bool = False) -> None:
        self.motion, self.tolerance, self.hold = motion, tolerance, hold
        self._spread = _SPREAD * float(np.hypot(*size))
        self._past: deque[tuple[Array, Array]] = deque(maxlen=max(INTERVALS))
        self._seed: Array = np.zeros((0, 2))
        self._since = np.eye(3)  # the motion since the seed
        self._steps: deque[Array] = deque(maxlen=max(INTERVALS))  # those that were found
        self._last: tuple[Array, Array] | None = None  # points, and which of them stood still

    def begin_scene(self) -> None:
        """Forget the steps before a cut."""
        self._steps.clear()
        self._last = None

    def seed(self, points: Array) -> None:
        """Follow other (P, 2) points from the present frame on."""
        self._seed, self._since = points, np.eye(3)
        self._past.clear()
        self._past.append((points, self._beside_still(points)))

    def add(self, points: Array, usable: Array) -> Step:
        """(P, 2) positions in the next frame, (P,) bool which of them can be used -> the step."""
        still = self._standing_still(points, usable)
        step = self._go_on() if still is None else self._step(points, still)
        self._last = None if still is None else (points[usable], still[usable])
        self._since = step.matrix @ self._since
        self._past.append((points, usable))
        if step.points:
            self._steps.append(step.matrix)
        return step

    def _beside_still(self, points: Array) -> Array:
        """(P,) bool: points nearest to one that stood still; all, if that is not known.

        New points have no past yet that tells them from a large thing that moves.
        """
        if self._last is None:
            return np.ones(len(points), bool)
        known, still = self._last
        distance = np.linalg.norm(points[:, None] - known, axis=2)
        return np.asarray(still[distance.argmin(1)])

    def _standing_still(self, points: Array, usable: Array) -> Array | None:
        """(P,) bool: points of this frame and the last one that agree over all intervals."""
        still = None
        for interval in INTERVALS[: len(self._past).bit_length()]:
            before, usable_before = self._past[-interval]
            both = usable & usable_before if still is None else still & usable_before
            found = fit(before[both], points[both], self.motion, self.tolerance)
            if found is not None:
                agree = both.copy()
                agree[both] = found.agree
                unknown = still & ~usable_before if still is not None else np.zeros_like(both)
                still = agree | unknown
            elif still is None:
                return None
        return still if still is not None and self._is_spread(points[still]) else None

    def _is_spread(self, points: Array) -> bool:
        return self.motion == "shift" or float(points.std(0).max()) >= self._spread

    def _step(self, points: Array, still: Array) -> Step:
        before, _ = self._past[-1]
        matrix = least_squares(before[still], points[still], self.motion)
        if self.hold:
            found = fit(self._seed[still], points[still], self.motion, self.tolerance)
            if found is not None:
                matrix = found.matrix @ np.linalg.inv(self._since)
        if matrix is None or not 1 / _ZOOM < zoom_of(matrix) < _ZOOM:
            return self._go_on()
        return Step(matrix / matrix[2, 2], int(still.sum()))

    def _go_on(self) -> Step:
        """The mean of the last steps: one of them alone may be a shake."""
        return Step(np.mean(self._steps, 0), 0) if self._steps else _STILL


def zoom_of(matrix: Array) -> float:
    """How much a motion enlarges the middle of the frame; 0 if it turns it over."""
    return float(np.sqrt(max(0.0, np.linalg.det(matrix[:2, :2]))))


# --- the path -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CameraPath:
    """The camera's motion through T frames of a clip."""

    size: Size
    """(height, width) of the frames."""
    numbers: Array
    """(T,) int64: the numbers of the frames; those that are lost are left out."""
    steps: Array
    """(T, 3, 3) float64: the motion from the frame before; at the first of a scene, none."""
    points: Array
    """(T,) int64: how many points agree with it."""
    begins: Array
    """(T,) bool: whether a scene begins."""

    @property
    def num_scenes(self) -> int:
        """How many scenes there are."""
        return int(self.begins.sum())

    @property
    def num_unknown(self) -> int:
        """In how many frames the camera's motion was not found."""
        return int((~self.begins & (self.points == 0)).sum())

    def scenes(self) -> Iterator[slice]:
        """The frames of each scene."""
        starts = [*np.flatnonzero(self.begins).tolist(), len(self.begins)]
        yield from (slice(*pair) for pair in pairwise(starts))

    def encode(self) -> bytes:
        """The path as the bytes of a .npz file."""
        return encode_arrays({**vars(self), "size": np.array(self.size)})

    @classmethod
    def read(cls, path: Path) -> "CameraPath":
        """Read what `encode` returned."""
        with np.load(path, allow_pickle=False) as saved:
            arrays = dict(saved)
        height, width = arrays.pop("size").tolist()
        return cls(size=(height, width), **arrays)

    def table(self) -> str:
        """The path as .csv: how the background moves in the picture, from the frame before.

        dx, dy in px, of the middle of the frame; the angle in degrees, clockwise; the zoom as a
        factor.
        """
        lines = ["frame,scene,dx,dy,angle,zoom,points"]
        scenes = np.cumsum(self.begins) - 1
        for number, scene, step, points in zip(
            self.numbers, scenes, self.steps, self.points, strict=True
        ):
            dx, dy = step[:2, 2]
            angle = np.degrees(np.arctan2(step[1, 0] - step[0, 1], step[0, 0] + step[1, 1]))
            moved = f"{dx:.4f},{dy:.4f},{angle:.5f},{zoom_of(step):.6f}"
            lines.append(f"{number},{scene},{moved},{points}")
        return "\n".join(lines) + "\n"


def smoothed(steps: Array, sigma: float) -> Array:
    """(T, 3, 3) of one scene: where the pixels of a calm camera are in each frame.

    The calm camera is on a straight line that is fitted to the frames around, which a Gaussian of
    `sigma` frames weights: their mean, except near the ends of the scene, where a mean would take
    a pan for a shake.
    """
    count = len(steps)
    reach = min(ceil(3 * sigma), count - 1)
    if reach < 1 or sigma < 0.1:
        return np.tile(np.eye(3), (count, 1, 1))
    weights = _line_weights(count, reach, sigma)  # (2 * reach + 1, T)
    earlier, later = steps[1:], np.linalg.inv(steps[1:])  # from frame t to t + 1, and back
    total, logs = weights[reach][:, None, None] * np.eye(3), np.zeros(count)
    forward = backward = np.tile(np.eye(3), (count, 1, 1))
    for k in range(1, reach + 1):
        forward = _scaled(forward[: count - k] @ later[k - 1 :])  # from frame t + k to t
        backward = _scaled(backward[1:] @ earlier[: count - k])  # from frame t - k to t
        for part, frames, row in (
            (forward, slice(0, count - k), reach + k),
            (backward, slice(k, count), reach - k),
        ):
            weight = weights[row, frames]
            total[frames] += weight[:, None, None] * part
            logs[frames] += weight * np.log(_area(part))
    # the mean of rotations is smaller than each of them
    total[:, :2, :2] *= np.sqrt(np.exp(logs) / _area(total))[:, None, None]
    return _scaled(total)


def _line_weights(count: int, reach: int, sigma: float) -> Array:
    """(2 * reach + 1, T): what each frame around adds to the line's value at frame t."""
    k, t = np.arange(-reach, reach + 1)[:, None], np.arange(count)
    weight = np.exp(-0.5 * (k / sigma) ** 2) * ((t + k >= 0) & (t + k < count))
    sum0, sum1, sum2 = (weight.sum(0), (weight * k).sum(0), (weight * k * k).sum(0))
    return np.asarray(weight * (sum2 - k * sum1) / (sum0 * sum2 - sum1**2))


def _area(matrices: Array) -> Array:
    """(T,) how much each enlarges areas."""
    return np.asarray(np.linalg.det(matrices[:, :2, :2]).clip(1e-6))


def held(steps: Array) -> Array:
    """(T, 3, 3) of one scene: where the pixels of its first frame are in each frame."""
    places = [np.eye(3)]
    for step in steps[1:]:
        places.append(_scaled(step @ places[-1]))
    return np.array(places)


def _scaled(matrices: Array) -> Array:
    return np.asarray(matrices / matrices[..., 2:, 2:])


# --- the crop -------------------------------------------------------------------------------------


class Crop(NamedTuple):
    """A rectangle with the clip's aspect."""

    share: float
    """Of the side of a frame."""
    middle: Array
    """(2,) px, from the middle of the calm camera's frame."""


def largest_crop(warps: Array, size: Size) -> Crop:
    """The largest rectangle that (T, 3, 3) `warps` keep inside the frames; at most all of it.

    That corners are inside is linear in the share and the middle, also with perspective: each of
    the four edges limits the share by (distance of the middle) / (reach of the corners).
    """
    half = np.maximum(np.array(size[::-1]) - 1, 1) / 2  # x, y; a side of one pixel has room too
    edges = np.array([[1, 0, -half[0]], [-1, 0, -half[0]], [0, 1, -half[1]], [0, -1, -half[1]]])
    limits = (edges @ warps).reshape(-1, 3)  # inside: limits @ (x, y, 1) <= 0
    front = np.concatenate([-warps[:, 2, :2], 0.1 - warps[:, 2, 2:]], 1)  # not behind the camera
    limits = np.concatenate([limits, front])
    reach = np.maximum(np.abs(limits[:, :2]) @ half, 1e-9)

    def share(middle: Array) -> float:
        return min(1.0, float((-(limits[:, :2] @ middle + limits[:, 2]) / reach).min()))

    best = Crop(share(np.zeros(2)), np.zeros(2))
    around = np.array([(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y])
    length = float(half.max()) / 4
    while length > 0.01 and best.share < 1:  # the share is concave in the middle
        tried = [Crop(share(m), m) for m in best.middle + length * around]
        better = max(tried, key=lambda crop: crop.share)
        best, length = (better, length) if better.share > best.share else (best, length / 2)
    return best


@dataclass(frozen=True)
class Steady:
    """How each frame is warped."""

    warps: Array
    """(T, 3, 3) float64: pixels of the output -> pixels of the frame."""
    share: float
    """Of the side of a frame that is kept; 1: all of it."""
    reduced: dict[int, float]
    """By the first frame of a scene: the smoothing in frames, if the wanted one did not fit."""


def calm_path(path: CameraPath, sigma: float, *, lock: bool = False, crop: bool = True) -> Steady:
    """Smooth the path over `sigma` frames, or `lock` the camera, and find the crop.

    Where a crop would keep less than `LEAST_CROP`, the scene is smoothed less.
    """
    warps, reduced = np.empty_like(path.steps), {}
    crops: list[tuple[slice, Crop]] = []
    for scene in path.scenes():
        steps = path.steps[scene]
        warps[scene] = held(steps) if lock else smoothed(steps, sigma)
        found = Crop(1.0, np.zeros(2))
        if crop:
            found = largest_crop(warps[scene], path.size)
        if crop and found.share < LEAST_CROP:
            fits = _fitting(steps, path.size, min(len(steps), _LONGEST) if lock else sigma)
            reduced[int(path.numbers[scene.start])] = fits
            warps[scene] = smoothed(steps, fits)
            found = largest_crop(warps[scene], path.size)
        crops.append((scene, found))
    share = min(found.share for _, found in crops)
    for scene, found in crops:
        warps[scene] = _in_pixels(warps[scene], path.size, Crop(share, found.middle))
    return Steady(warps, share, reduced)


def _fitting(steps: Array, size: Size, sigma: float) -> float:
    """The strongest smoothing up to `sigma` that leaves `LEAST_CROP`; none always does."""
    low, high = 0.0, float(sigma)
    while high - low > 0.02 * sigma:
        middle = (low + high) / 2
        fits = largest_crop(smoothed(steps, middle), size).share >= LEAST_CROP
        low, high = (middle, high) if fits else (low, middle)
    return low


def _in_pixels(warps: Array, size: Size, crop: Crop) -> Array:
    """From the pixels of the scaled crop to the pixels of a frame, counted from the first."""
    middle = (np.array(size[::-1]) - 1) / 2
    cropped = np.diag([crop.share, crop.share, 1.0])
    cropped[:2, 2] = crop.middle
    from_middle, to_middle = np.eye(3), np.eye(3)
    from_middle[:2, 2], to_middle[:2, 2] = middle, -middle
    return _scaled(from_middle @ warps @ cropped @ to_middle)
