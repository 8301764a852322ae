"""Renders training scenes on the device, with exact flow: layers of photographs, solid worlds.

Listing photographs needs no torch: an error about a folder does not wait for its import.
"""
# What is imported here is for other packages.
# ruff: noqa: F401
# mypy: implicit-reexport

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from ..lazy import on_first_use

if TYPE_CHECKING:
    from .camera import augment_batch
    from .renderer import Clip, MotionStatistics, RenderedBatch, Renderer, held_out_renderer
    from .textures import TextureAtlas, load_textures
else:
    _HOMES = {
        "camera": ["augment_batch"],
        "renderer": ["Clip", "MotionStatistics", "RenderedBatch", "Renderer", "held_out_renderer"],
        "textures": ["TextureAtlas", "load_textures"],
    }
    __getattr__ = on_first_use(
        __name__, {name: module for module, names in _HOMES.items() for name in names}
    )

PHOTO_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".bmp", ".ppm")


def list_photos(folder: Path) -> list[Path]:
    """Return all photographs in a folder and its subfolders, sorted."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"no folder of photographs {folder}; without photographs, use 'procedural'"
        )
    files = (f for f in sorted(folder.rglob("*")) if f.suffix.lower() in PHOTO_SUFFIXES)
    photos = [file for file in files if not file.name.startswith(".")]
    if not photos:
        raise InputError(f"no photographs ({', '.join(PHOTO_SUFFIXES)}) in {folder}")
    return photos


def is_held_out(sha256: str) -> bool:
    """Whether the photograph with this hash is held out, never trained on: one in ten is."""
    return int(sha256, 16) % 10 == 0
