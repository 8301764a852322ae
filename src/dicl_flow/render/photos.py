"""Lists photographs, without torch: an error about a folder does not wait for its import."""

from pathlib import Path

from ..errors import InputError

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
