"""Helpers for listing pairs: natural order, next frames, errors that name what is missing."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from .sample import FlowPair

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".bmp", ".tif", ".tiff", ".webp")


def digits(count: int) -> str:
    """Return a glob pattern for exactly `count` digits; copies and hidden files do not match."""
    return "[0-9]" * count


def natural_key(name: str) -> tuple[list[int | str], str]:
    """Sort key that puts frame_9 before frame_10."""
    words = re.split("([0-9]+)", name)  # text and numbers alternately
    return [int(word) if place % 2 else word for place, word in enumerate(words)], name


def image_files(files: Iterable[Path]) -> list[Path]:
    """Return the images among `files`, without hidden ones, in natural order.

    This is the order of the frames of a folder or a pattern everywhere.
    """
    return listed(files, IMAGE_SUFFIXES)


def listed(files: Iterable[Path], suffixes: Iterable[str]) -> list[Path]:
    """Return the files with one of the suffixes, without hidden ones, in natural order."""
    seen = (file for file in files if not file.name.startswith("."))
    wanted = [file for file in seen if file.suffix.lower() in suffixes]
    return sorted(wanted, key=lambda file: natural_key(str(file)))


def neighbour(frame: Path, step: int = 1) -> Path:
    """frame_0007.png -> frame_0008.png: add `step` to the number at the end of the name."""
    stem = frame.stem
    head = stem.rstrip("0123456789")
    number = int(stem[len(head) :]) + step
    return frame.with_name(f"{head}{number:0{len(stem) - len(head)}d}{frame.suffix}")


def require_folder(folder: Path, advice: str) -> Path:
    """Return `folder`; if it is missing, raise an error with `advice`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; {advice}")
    return folder


def complete_pairs(candidates: Iterable[FlowPair], place: Path, advice: str) -> list[FlowPair]:
    """Return the pairs whose frames and truth exist, in natural order; none at all is an error.

    Masks and the truth of visible pixels are optional: they become None where they are missing.
    """

    @cache  # each folder is listed once: checking single files takes minutes on a network disk
    def names(folder: Path) -> frozenset[str]:
        return frozenset(path.name for path in folder.iterdir()) if folder.is_dir() else frozenset()

    def present(path: Path | None) -> Path | None:
        return path if path is not None and path.name in names(path.parent) else None

    def complete(pair: FlowPair) -> bool:
        needed = (pair.image1, pair.image2, pair.truth)
        return all(path is None or present(path) for path in needed)

    pairs = [
        replace(
            pair,
            occlusion=present(pair.occlusion),
            visible_truth=present(pair.visible_truth),
            invalid=present(pair.invalid),
        )
        for pair in candidates
        if complete(pair)
    ]
    if not pairs:
        raise FileNotFoundError(f"no complete pair under {place}; {advice}")
    return sorted(pairs, key=lambda pair: natural_key(pair.name))
