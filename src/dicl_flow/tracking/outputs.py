"""What is made of tracks to be looked at or composited: an overlay video, and ST maps.

An ST map says where each pixel of the reference is in another frame: sampling that frame there
brings it into the place of the reference.
"""

from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import cv2
import numpy as np

from ..errors import InputError, check_name
from ..files import Array, write_files
from ..files.exr import encode_channels, openexr
from ..video.movies import Movie
from ..video.writers import FolderWriter
from .tracks import Positions, Tracks

# --- ST maps --------------------------------------------------------------------------------------

MAP_FORMATS = ("st.exr",)
ERROR_CHANNEL = "track.expected_error"


def check_map_format(name: str) -> None:
    """Refuse, before any work is done, maps of another format, or without the library."""
    check_name("`format`", name, MAP_FORMATS)
    openexr()


def encode_map(points: Array, visible: Array, error: Array, *, error_scale: float = 1.0) -> bytes:
    """Return an ST map: (H, W, 2) positions in px, (H, W) bool, (H, W) px -> the bytes of an EXR.

    R = (x + ½) / width, G = 1 - (y + ½) / height, as in Nuke; B is 1 where the pixel is visible.
    """
    height, width = points.shape[:2]
    samples = (points.astype(np.float64) + 0.5) / [width, -height] + [0, 1]
    if not np.isfinite(samples).all():
        raise ValueError("a position of a dense track is not a finite number")
    channels = {
        "R": samples[..., 0].astype(np.float32),
        "G": samples[..., 1].astype(np.float32),
        "B": visible.astype(np.float32),
        ERROR_CHANNEL: (error * error_scale).astype(np.float32),
    }
    return encode_channels(channels)


class MapFolder(FolderWriter):
    """A folder with an ST map for each frame in which the pixels of a reference have positions."""

    def __init__(self, folder: Path, size: tuple[int, int], error_scale: float = 1.0) -> None:
        super().__init__(folder, ".*.st.exr.*")
        self._size, self._error_scale = size, error_scale

    def save(self, name: str, positions: Positions) -> None:
        """Write the map of the frame called `name`."""
        self.make_folder()
        height, width = self._size
        points, error, visible = (
            part.reshape(height, width, *part.shape[1:])
            for part in (np.asarray(each) for each in positions[:3])
        )
        data = encode_map(points, visible, error, error_scale=self._error_scale)
        write_files({self.folder / f"{name}.st.exr": data})


def map_folders(folder: Path, numbers: Sequence[int]) -> list[Path]:
    """The folder of each reference: `folder` itself, or one in it for each of several."""
    if len(numbers) == 1:
        return [folder]
    return [folder / f"reference_{number:06d}" for number in numbers]


# --- the overlay video ----------------------------------------------------------------------------

TAIL = 24
"""How many frames of its past a point shows."""
_COLORS = np.array(
    [(255, 221, 110), (247, 150, 92), (214, 92, 118), (140, 76, 156), (72, 84, 170)], np.float32
)
"""Of a tail, RGB: the present, then the past."""
_FIRM, _FAINT = 0.95, 0.12  # opacity of a tail at the point and at its end
_HIDDEN = 0.45  # opacity of the tail of a hidden point, compared with that of a visible one
_DARK = (18, 20, 28)  # around points, which must be seen on any colour
_SHIFT = 4  # bits of the fraction of a pixel in which OpenCV draws


def tail_color(age: float) -> tuple[Array, float]:
    """The RGB colour and opacity of a tail, at an age of 0 (the present) to 1 (its end)."""
    places = np.linspace(0, 1, len(_COLORS))
    color = np.array([np.interp(age, places, channel) for channel in _COLORS.T])
    return color, _FIRM + (_FAINT - _FIRM) * age


def point_radius(size: tuple[int, int], count: int) -> float:
    """The radius of a drawn point in px: readable at any size, and smaller if points are dense."""
    height, width = size
    room = 0.17 * sqrt(height * width / max(count, 1))
    return max(min(0.0065 * min(size) + 1.0, room), 1.3)


def draw_tracks(image: Array, points: Array, visible: Array, radius: float) -> Array:
    """Draw points and their tails on an (H, W, 3) RGB image.

    `points` is (N, K, 2) in px and `visible` (N, K): the last K frames, the present one last.
    """
    layer = np.zeros((*image.shape[:2], 4), np.uint8)  # premultiplied RGB, and opacity
    _draw_tails(layer, points, visible, max(1, round(0.75 * radius)))
    _draw_points(layer, points[:, -1], visible[:, -1], radius)
    opacity = layer[..., 3:].astype(np.uint16)
    below = (image * (255 - opacity) + 127) // 255
    return np.minimum(below + layer[..., :3], 255).astype(np.uint8)


def _draw_tails(layer: Array, points: Array, visible: Array, thickness: int) -> None:
    """Draw the steps of all points, the oldest first, so that later ones lie above."""
    steps = points.shape[1] - 1
    drawable = _drawable(points, layer.shape)
    for step in range(steps):
        color, opacity = tail_color((steps - 1 - step) / max(TAIL - 1, 1))
        there = drawable[:, step] & drawable[:, step + 1]
        seen = visible[:, step] & visible[:, step + 1]
        for which, share in ((there & ~seen, _HIDDEN), (there & seen, 1.0)):
            lines = _fixed(points[which, step : step + 2])
            paint = _premultiplied(color, opacity * share)
            cv2.polylines(layer, [*lines], False, paint, thickness, cv2.LINE_AA, _SHIFT)


def _draw_points(layer: Array, points: Array, visible: Array, radius: float) -> None:
    """Draw where the points are now: filled if visible, hollow if hidden."""
    color, _ = tail_color(0)
    paint, dark = _premultiplied(color, 1), _premultiplied(np.array(_DARK), 0.85)
    edge = max(1.0, 0.28 * radius)
    there = _drawable(points, layer.shape)
    for center, seen in zip(_fixed(points), there & visible, strict=True):
        if seen:
            _disc(layer, center, radius + edge, dark)
            _disc(layer, center, radius, paint)
    width = max(1, round(0.3 * radius))
    for center in _fixed(points[there & ~visible]):
        _disc(layer, center, 1.15 * radius, (0, 0, 0, 0))  # no tail inside
        _ring(layer, center, 1.15 * radius, dark, width + 2 * max(1, round(0.6 * edge)))
        _ring(layer, center, 1.15 * radius, paint, width)


def _disc(layer: Array, center: Array, radius: float, paint: tuple[float, ...]) -> None:
    cv2.circle(layer, center.tolist(), round(radius * 2**_SHIFT), paint, -1, cv2.LINE_AA, _SHIFT)


def _ring(layer: Array, center: Array, radius: float, paint: tuple[float, ...], width: int) -> None:
    cv2.circle(layer, center.tolist(), round(radius * 2**_SHIFT), paint, width, cv2.LINE_AA, _SHIFT)


def _premultiplied(color: Array, opacity: float) -> tuple[float, ...]:
    return *(color * opacity).round().tolist(), round(255 * opacity)


def _fixed(points: Array) -> Array:
    """Points as OpenCV draws fractions of a pixel."""
    return np.rint(np.nan_to_num(points) * 2**_SHIFT).astype(np.int32)


def _drawable(points: Array, shape: tuple[int, ...]) -> Array:
    """Whether points exist, and lie not further from the frame than its own size."""
    height, width = shape[:2]
    with np.errstate(invalid="ignore"):
        near = (points > [-width, -height]) & (points < [2 * width, 2 * height])
    return np.asarray(near.all(-1))


class OverlayVideo(Movie):
    """A video of the frames with their tracks; frames that are lost have no picture."""

    def draw(self, image: Array, place: int, tracks: Tracks) -> None:
        """Encode the frame at a place among the T of the tracks, which are in px of the image."""
        if tracks.size != image.shape[:2]:
            raise InputError("tracks and frames of an overlay must have one size")
        past = slice(max(0, place - TAIL), place + 1)
        points, visible = tracks.points[:, past], tracks.visible[:, past]
        radius = point_radius(tracks.size, len(points))
        self.add(draw_tracks(image, points, visible, radius), place)
