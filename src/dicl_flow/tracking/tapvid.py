"""TAP-Vid, the benchmark for tracking any point (Doersch et al. 2022): metrics, queries, files.

Here, as everywhere in this package, the centre of the first pixel is at 0, 0; in TAP-Vid's raster
coordinates it is at 0.5, 0.5. Positions are converted where files are read and where they are
scaled to frames of 256x256, in which all errors are measured.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import InputError, check_name
from ..files import Array, check_file, decode_image
from ..ops import Size

THRESHOLDS = (1, 2, 4, 8, 16)  # px of a frame of SIDE x SIDE
SIDE = 256
STRIDE = 5  # frames from one query to the next, in the mode "strided"
MODES = ("first", "strided")


@dataclass(frozen=True)
class Truth:
    """Where the points of a clip are."""

    points: Array
    """(N, T, 2) float: x, y in px."""
    occluded: Array
    """(N, T) bool: hidden, or outside the frame."""
    size: Size
    """(height, width) of the frames."""

    def __post_init__(self) -> None:
        if self.points.ndim != 3 or self.points.shape != (*self.occluded.shape, 2):
            shapes = f"{self.points.shape} and {self.occluded.shape}"
            raise InputError(f"points must be (N, T, 2) and occluded (N, T), got {shapes}")


@dataclass(frozen=True)
class Queries:
    """Where tracking begins: points of the truth, each in a frame in which it is visible."""

    points: Array
    """(Q, 3) float32: frame, x, y."""
    tracks: Array
    """(Q,) int64: which track of the truth each belongs to."""

    def __len__(self) -> int:
        return len(self.tracks)


def first_queries(truth: Truth) -> Queries:
    """One query per track: the first frame in which it is visible; never visible, none."""
    visible = ~truth.occluded
    tracks = np.flatnonzero(visible.any(1))
    return _queries_at(truth, visible.argmax(1)[tracks], tracks)


def strided_queries(truth: Truth, stride: int = STRIDE) -> Queries:
    """Every point that is visible in the frames 0, 5, 10 …: a query each time."""
    frames, tracks = np.nonzero(~truth.occluded.T[::stride])
    return _queries_at(truth, frames * stride, tracks)


def draw_queries(truth: Truth, mode: str) -> Queries:
    """The queries of a mode, "first" or "strided"."""
    check_name("query mode", mode, MODES)
    return first_queries(truth) if mode == "first" else strided_queries(truth)


def _queries_at(truth: Truth, frames: Array, tracks: Array) -> Queries:
    places = truth.points[tracks, frames]
    return Queries(np.column_stack([frames, places]).astype(np.float32), tracks)


@dataclass(frozen=True)
class Scores:
    """TAP-Vid's metrics, all in [0, 1]; NaN where no point counts."""

    within: tuple[float, ...]
    """Share of visible points with an error below each threshold, found visible or not."""
    jaccard: tuple[float, ...]
    """True positives over these, false negatives and false positives, at each threshold."""
    occlusion_accuracy: float
    """Share of points that are rightly said to be visible or hidden."""

    @property
    def position_accuracy(self) -> float:
        """The mean over all thresholds."""
        return float(np.mean(self.within))

    @property
    def average_jaccard(self) -> float:
        """The mean over all thresholds."""
        return float(np.mean(self.jaccard))


def score(truth: Truth, queries: Queries, points: Array, visible: Array, mode: str) -> Scores:
    """Compare tracks with the truth: `points` (Q, T, 2) in px, `visible` (Q, T) bool.

    A point that is NaN is wrong; one that is visible in truth counts as found only if it is said
    to be visible and lies within the threshold, and else as missed and, if said to be visible,
    as a false positive too.
    """
    check_name("query mode", mode, MODES)
    shape = (len(queries), truth.points.shape[1])
    if points.shape != (*shape, 2) or visible.shape != shape:
        expected = f"points {(*shape, 2)} and visible {shape}"
        raise InputError(f"expected {expected}, got {points.shape} and {visible.shape}")
    counts = counted_frames(queries, shape[1], mode)
    seen = ~truth.occluded[queries.tracks] & counts
    said = visible & counts
    off = to_raster(points, truth.size) - to_raster(truth.points[queries.tracks], truth.size)
    near = (off**2).sum(-1) < np.square(THRESHOLDS)[:, None, None]  # (5, Q, T)
    found = (near & seen & said).sum((1, 2))
    false = (said & ~(near & seen)).sum((1, 2))
    return Scores(
        within=_shares((near & seen).sum((1, 2)), seen.sum()),
        jaccard=_shares(found, seen.sum() + false),
        occlusion_accuracy=_shares([((seen == said) & counts).sum()], counts.sum())[0],
    )


def counted_frames(queries: Queries, num_frames: int, mode: str) -> Array:
    """(Q, T) bool: "first", the frames after the query's; "strided", all but that one."""
    begin = queries.points[:, :1].astype(np.int64)
    frames = np.arange(num_frames)
    return frames > begin if mode == "first" else frames != begin


def to_raster(points: Array, size: Size) -> Array:
    """(..., 2) in px of a frame -> in TAP-Vid's coordinates, in a frame of 256x256."""
    height, width = size
    return (points.astype(np.float64) + 0.5) * (SIDE / width, SIDE / height)


def mean_scores(clips: Sequence[Scores]) -> Scores:
    """The mean over clips, each with the same weight, as published; without those of NaN."""
    if not clips:
        raise InputError("there are no scores to average")

    def mean(values: Sequence[float]) -> float:
        known = [value for value in values if not np.isnan(value)]
        return float(np.mean(known)) if known else float("nan")

    within, jaccard = (
        tuple(map(mean, zip(*parts, strict=True)))
        for parts in ([clip.within for clip in clips], [clip.jaccard for clip in clips])
    )
    return Scores(within, jaccard, mean([clip.occlusion_accuracy for clip in clips]))


def _shares(parts: Sequence[int] | Array, wholes: int | Array) -> tuple[float, ...]:
    """Each part of its whole; NaN if that is 0."""
    pairs = np.broadcast_arrays(parts, wholes)
    shares = zip(*(values.tolist() for values in pairs), strict=True)
    return tuple(part / whole if whole else float("nan") for part, whole in shares)


@dataclass(frozen=True)
class TapVidClip:
    """A clip of TAP-Vid: frames and truth."""

    name: str
    video: Array | Sequence[bytes]  # (T, H, W, 3) uint8, or T files of images
    truth: Truth

    def frames(self) -> Iterator[Array]:
        """Yield the frames, (H, W, 3) uint8."""
        for number, frame in enumerate(self.video):
            yield _decoded(frame, f"frame {number} of {self.name}")


def read_tapvid(path: str | Path) -> list[TapVidClip]:
    """Read a pickle file of TAP-Vid: DAVIS, Kinetics or RGB-stacking.

    A pickle may contain calls of any function. This reader knows dicts, lists, tuples, strings,
    bytes, numbers and arrays of numbers, and refuses a file that has anything else.
    """
    path = Path(path)
    check_file(path)
    with path.open("rb") as file:
        contents = _unpickle(file, str(path))
    if isinstance(contents, dict):
        named = [(str(name), clip) for name, clip in contents.items()]
    elif isinstance(contents, list | tuple):
        named = [(f"{number:04d}", clip) for number, clip in enumerate(contents)]
    else:
        raise InputError(f"{path} must hold a dict or a list of clips, not {_kind(contents)}")
    return [_clip(name, clip, f"clip {name!r} of {path}") for name, clip in named]


def _clip(name: str, contents: object, where: str) -> TapVidClip:
    """Check one clip; positions are stored as shares of the frame's sides."""
    if not isinstance(contents, dict) or not {"video", "points", "occluded"} <= contents.keys():
        raise InputError(f"{where} must be a dict with video, points and occluded")
    video, points, occluded = (contents[key] for key in ("video", "points", "occluded"))
    video, points, occluded = _value(video), _value(points), _value(occluded)
    if not (isinstance(points, np.ndarray) and isinstance(occluded, np.ndarray)):
        raise InputError(f"{where}: points and occluded must be arrays")
    size = _video_size(video, where)
    if points.dtype.kind != "f" or points.shape != (*occluded.shape, 2) or points.ndim != 3:
        shapes = f"{points.dtype} {points.shape} and {occluded.shape}"
        raise InputError(f"{where}: points must be (N, T, 2), occluded (N, T), got {shapes}")
    if points.shape[1] != len(video):
        raise InputError(f"{where} has {len(video)} frames, its tracks {points.shape[1]}")
    places = points.astype(np.float64) * (size[1], size[0]) - 0.5
    return TapVidClip(name, video, Truth(places, occluded.astype(bool), size))


def _video_size(video: Any, where: str) -> Size:
    if isinstance(video, np.ndarray) and video.dtype == np.uint8:
        if video.ndim == 4 and video.shape[-1] == 3 and len(video):
            return video.shape[1], video.shape[2]
    elif len(video) if isinstance(video, list | tuple | np.ndarray) else False:
        height, width = _decoded(video[0], f"frame 0 of {where}").shape[:2]
        return height, width
    raise InputError(f"{where}: video must be (T, H, W, 3) uint8, or a list of JPEG files")


def _decoded(frame: Any, name: str) -> Array:
    frame = _value(frame)
    if isinstance(frame, np.ndarray):
        return frame
    if not isinstance(frame, bytes):
        raise InputError(f"{name} must be an image file, not {_kind(frame)}")
    return decode_image(frame, name)


def _kind(value: object) -> str:
    return type(_value(value)).__name__


class _Dtype:
    """Stands for a dtype while a file is read: of numbers or bytes only."""

    def __init__(self, code: object, *options: object) -> None:
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or code.lstrip("<>=|")[:1] not in tuple("biufS"):
            raise InputError(f"an array of {code!r}; expected one of numbers")
        self.value = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, *rest = state
        if any(part not in (None, -1, 0, self.value.itemsize, 1) for part in rest):
            raise InputError("an array of structures; expected one of numbers")
        if order in (b"<", b">"):
            order = order.decode()
        if order in ("<", ">"):
            self.value = self.value.newbyteorder(order)


class _Stored:
    """Stands for an array while a file is read."""

    value: Any = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        self.value = _array(data, dtype, shape, "F" if is_fortran else "C")


def _array(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
    if not (isinstance(dtype, _Dtype) and isinstance(data, bytes | bytearray)):
        raise InputError(f"an array made of {_kind(data)}; expected one of numbers")
    return np.frombuffer(data, dtype.value).reshape(shape, order=order)


def _begin_array(kind: Any, *_: object) -> _Stored:
    return _Stored()


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Stored:
    stored = _Stored()
    stored.value = _array(data, dtype, shape, order)
    return stored


def _scalar(dtype: Any, data: Any = b"") -> Any:
    return _array(data, dtype, ())[()]


def _as_bytes(text: Any, encoding: Any = "latin1") -> bytes:
    """Bytes as pickles of protocol 2 store them."""
    if not isinstance(text, str) or encoding != "latin1":
        raise InputError(f"text in the encoding {encoding!r}; expected bytes as 'latin1'")
    return text.encode("latin1")


class _Known:
    """A function that a file may call; nothing in a file can change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise InputError("changes of a function; expected data only")


def _refuse_call(name: str, *arguments: object) -> None:
    raise InputError(f"a call of {name}; expected data only")


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): partial(_refuse_call, "numpy.ndarray"),  # only named, in `_reconstruct`
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _as_bytes,
    **{
        (f"numpy.{core}.{module}", name): function
        for core in ("core", "_core")
        for module, name, function in (
            ("multiarray", "_reconstruct", _begin_array),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    """Replaces every name in a file by a function of this module, or refuses it.

    So numpy's own unpickling, whose functions take any object, is not used either.
    """

    def find_class(self, module: str, name: str) -> _Known:
        if (module, name) not in _KNOWN:
            raise InputError(f"{module}.{name}; expected dicts, lists, text, numbers and arrays")
        return _Known(_KNOWN[module, name])

    def persistent_load(self, pid: object) -> None:
        raise InputError(f"a reference {pid!r}; expected data only")


def _unpickle(file: BinaryIO, name: str) -> object:
    try:
        return _Unpickler(file).load()
    except InputError as error:
        raise InputError(f"{name} is refused, because it contains {error}") from None
    except OSError:
        raise
    except Exception as error:
        cut_off = any(word in str(error) for word in ("truncated", "exhausted"))
        if isinstance(error, EOFError) or cut_off:
            raise InputError(f"{name} is truncated: it ends too early; copy it again") from None
        raise InputError(f"{name} is not a pickle file, or damaged: {error}") from None


def _value(stored: Any) -> Any:
    """What was read: the array itself."""
    return stored.value if isinstance(stored, _Stored) else stored
