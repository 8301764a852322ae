"""Rows of a manifest from a folder tree or a pattern."""

from collections.abc import Iterator
from pathlib import Path

from ..errors import InputError
from ..video.sources import (
    clips_among,
    clips_below,
    clips_by_folder,
    clips_of_pattern,
    count_frames,
)
from .manifest import MANIFEST_SUFFIXES, Row
from .storage import is_address, local_path
from .stores import RemoteFolder


def list_rows(text: str) -> Iterator[Row]:
    """Yield a row for each clip of a folder tree, a pattern or a video."""
    yield from (Row(path=clip) for clip in _clips(text))


def with_flows(row: Row, place: str) -> Row:
    """Fill in how many flows the clip at `place` will have, if that can be told."""
    frames = None if is_address(place) else count_frames(place)
    return row if frames is None else row._replace(flows=str(max(1, frames - 1)))


def _clips(text: str) -> Iterator[str]:
    path = local_path(text)
    if is_address(text):
        address = text.rstrip("/")
        files = RemoteFolder(address).sizes("")
        return clips_by_folder(f"{address}/{name.lstrip('/')}" for name in files)
    if path.is_dir():
        return clips_below(path.resolve())
    if path.is_file():
        return _one_video(path.resolve())
    return clips_of_pattern(path.absolute())


def _one_video(path: Path) -> Iterator[str]:
    found = [*clips_among(str(path.parent), [path.name], "")]
    if not found:
        raise InputError(
            f"{path} is neither a manifest ({', '.join(MANIFEST_SUFFIXES)}) nor a video"
        )
    return iter(found)
