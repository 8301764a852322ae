"""Clips in a folder tree or of a pattern: each video, and each folder of frames."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from glob import glob, has_magic
from pathlib import Path

from ..data.listing import IMAGE_SUFFIXES, image_files, natural_key
from ..data.video_frames import VIDEO_SUFFIXES, open_video
from ..errors import InputError


def clips_below(folder: Path) -> Iterator[str]:
    """Yield what `open_source` takes for each clip in a folder tree."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural_key)
        yield from clips_among(place, names, place)


def clips_of_pattern(pattern: Path) -> Iterator[str]:
    """Do the same for a pattern: its videos, its folders, and its frames by their folder."""
    found = sorted(glob(str(pattern), recursive=True), key=natural_key)  # noqa: PTH207
    folders = [name for name in found if Path(name).is_dir()]
    yield from folders
    frames = f"/{pattern.name}" if has_magic(pattern.name) else ""
    yield from clips_by_folder((name for name in found if name not in {*folders}), frames)


def clips_by_folder(files: Iterable[str], frames: str = "") -> Iterator[str]:
    """Do the same for files; `frames` is added to the folder of images."""
    folders = defaultdict(list)
    for file in files:
        folder, _, name = file.replace(os.sep, "/").rpartition("/")
        folders[folder].append(name)
    for folder in sorted(folders, key=natural_key):
        yield from clips_among(folder, folders[folder], folder + frames)


def clips_among(folder: str, names: Iterable[str], frames: str) -> Iterator[str]:
    """The videos of a folder one by one, then its images as one clip, called `frames`."""
    shown = sorted((name for name in names if not name.startswith(".")), key=natural_key)
    yield from (f"{folder}/{name}" for name in shown if name.lower().endswith(VIDEO_SUFFIXES))
    if sum(name.lower().endswith(IMAGE_SUFFIXES) for name in shown) > 1:
        yield frames


def count_frames(clip: str) -> int | None:
    """How many frames a clip has, as far as its files tell without decoding."""
    path = Path(clip)
    if path.is_dir() or has_magic(clip):
        files = path.iterdir() if path.is_dir() else map(Path, glob(clip))  # noqa: PTH207
        return len(image_files(files))
    try:
        with open_video(path) as container:
            return container.streams.video[0].frames or None
    except (InputError, OSError):
        return None
