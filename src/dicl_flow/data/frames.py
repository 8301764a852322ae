"""Frames of folders and videos: images in natural order, complete pairs, videos frame by frame."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, import_extra, refusing
from ..fence import handed
from ..files import Array
from ..files.reading import check_size, max_size
from .sample import FlowPair

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")
VIDEO_SUFFIXES = (".mp4", ".mov", ".m4v", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".gif")
CAMERA = "camera:"


def natural_key(name: str) -> tuple[list[int | str], str]:
    """Sort key that puts frame_9 before frame_10."""
    words = re.split("([0-9]+)", name)  # text and numbers alternately
    return [int(word) if place % 2 else word for place, word in enumerate(words)], name


def digits(count: int) -> str:
    """Return a glob pattern for exactly `count` digits; copies and hidden files do not match."""
    return "[0-9]" * count


def neighbour(frame: Path, step: int = 1) -> Path:
    """frame_0007.png -> frame_0008.png: add `step` to the number at the end of the name."""
    head = frame.stem.rstrip("0123456789")
    number = frame.stem[len(head) :]
    return frame.with_name(f"{head}{int(number) + step:0{len(number)}d}{frame.suffix}")


def require_folder(folder: Path, advice: str) -> Path:
    """Return a folder; the error for a missing one ends with `advice`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; {advice}")
    return folder


def image_files(files: Iterable[Path]) -> list[Path]:
    """Return the images among `files`: everywhere the order of frames in a folder or pattern."""
    return listed(files, IMAGE_SUFFIXES)


def listed(files: Iterable[Path], suffixes: Iterable[str]) -> list[Path]:
    """Return the files with one of the suffixes, without hidden ones, in natural order."""
    seen = (file for file in files if not file.name.startswith("."))
    wanted = [file for file in seen if file.suffix.lower() in suffixes]
    return sorted(wanted, key=lambda file: natural_key(str(file)))


def complete_pairs(candidates: Iterable[FlowPair], place: Path, advice: str) -> list[FlowPair]:
    """Return the pairs whose frames and truth exist, in natural order; none at all is an error.

    Masks and the truth of visible pixels are optional: what is missing is left out of the pair.
    """

    @cache  # each folder is listed once: checking single files takes minutes on a network disk
    def names(folder: Path) -> frozenset[str]:
        return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()

    def present(path: Path | None) -> Path | None:
        return path if path is not None and path.name in names(path.parent) else None

    pairs = [
        replace(
            pair,
            occlusion=present(pair.occlusion),
            outside=present(pair.outside),
            visible_truth=present(pair.visible_truth),
            invalid=present(pair.invalid),
            regions=tuple((name, path) for name, path in pair.regions if present(path)),
        )
        for pair in candidates
        if all(map(present, pair.needed))
    ]
    if not pairs:
        raise FileNotFoundError(f"no complete pair under {place}; {advice}")
    return sorted(pairs, key=lambda pair: natural_key(pair.name))


def is_video(path: Path) -> bool:
    """Whether `path` has the suffix of a video file."""
    return path.suffix.lower() in VIDEO_SUFFIXES


def check_source(text: str) -> None:
    """Refuse, without opening it, a source that is not a video, folder, pattern or camera."""
    pattern = any(sign in text for sign in "*?[")
    if not (text.startswith(CAMERA) or pattern or Path(text).is_dir() or Path(text).is_file()):
        raise FileNotFoundError(f"no video, folder or camera {text}; a camera is {CAMERA}0")


def pyav() -> Any:
    """Return the module `av`; if it is missing, the error names the extra to install."""
    return import_extra("av", "videos need PyAV", "video")


@contextmanager
def open_video(path: Path, container: str | None = None) -> Iterator[Any]:
    """Open a video for reading; errors of FFmpeg within the block name the file.

    `container` is FFmpeg's name of the file format; None: FFmpeg looks at the file.
    """
    av = pyav()
    _refuse_playlist(path)
    try:
        place = handed(path) or str(path)  # behind the fence, nothing can be opened by its name
        with av.open(place, format=container, metadata_errors="replace") as opened:
            if not opened.streams.video:
                raise InputError(f"{path} has no video stream")
            stream = opened.streams.video[0]
            if stream.codec_context is None:
                raise InputError(f"{path} has a video stream of an unknown codec")
            with refusing(str(path), InputError):
                check_size(stream.width, stream.height)
            stream.thread_type = "AUTO"
            # the size may change later; twice the limit, because coded frames have borders
            stream.codec_context.options = {"max_pixels": str(int(2e6 * max_size()))}
            yield opened
    except av.FFmpegError as error:
        raise InputError(f"{path} cannot be decoded as a video: {error.strerror}") from None


def _refuse_playlist(path: Path) -> None:
    """Refuse a playlist, which would let FFmpeg open whatever files it names."""
    with path.open("rb") if (given := handed(path)) is None else nullcontext(given) as file:
        start = file.read(16).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith((b"#EXTM3U", b"ffconcat")):
        raise InputError(f"{path} is a list of other files, not a video")


class Look(NamedTuple):
    """How a video file stores its pictures."""

    bits: int
    chroma: str
    """4:2:0, 4:2:2 or 4:4:4."""
    tags: tuple[int, int, int, int]
    """FFmpeg's numbers of primaries, transfer, matrix and range; 2, of the range 0: not said."""
    alpha: bool = False
    """Whether it has transparency, which is not read."""

    @property
    def is_deep(self) -> bool:
        """Whether it has more than the usual 8 bits and 4:2:0."""
        return self.bits > 8 or self.chroma != "4:2:0"

    @property
    def stated_tags(self) -> tuple[int, int, int, int] | None:
        """The tags, if primaries, transfer or matrix is said."""
        return None if self.tags[:3] == (2, 2, 2) else self.tags

    def __str__(self) -> str:
        return f"{self.bits} bits, {self.chroma}{' and alpha' if self.alpha else ''}"


def look_of(stream: Any) -> Look | None:
    """Return how a video stream stores its pictures; None if it has no chroma or does not say."""
    context = stream.codec_context
    form = context.format
    if form is None or len(form.components) < 3 or form.is_rgb:
        return None
    halved = form.chroma_width(2) < 2, form.chroma_height(2) < 2
    chroma = {(True, True): "4:2:0", (True, False): "4:2:2"}.get(halved, "4:4:4")
    names = ("color_primaries", "color_trc", "colorspace", "color_range")
    primaries, transfer, matrix, extent = (int(getattr(context, name)) for name in names)
    tags = (primaries, transfer, matrix, extent)
    return Look(form.components[0].bits, chroma, tags, alpha=len(form.components) > 3)


def to_array(frame: Any, deep: bool = False) -> Array:
    """Turn a decoded frame into (H, W, 3) RGB, rotated as the file says; uint8, or uint16."""
    image = frame.to_ndarray(format="rgb48le" if deep else "rgb24")
    return np.ascontiguousarray(np.rot90(image, round(frame.rotation / 90)))
