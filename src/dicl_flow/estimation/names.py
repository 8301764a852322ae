"""Names that users choose from; they are checked without torch, which takes seconds to import."""

import re

from ..config import find_quality
from ..errors import check_name, unknown_name

DEVICES = ("auto", "cpu", "cuda", "mps")
PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8")
BACKENDS = ("auto", "fast", "plain")


def check_device(name: str) -> None:
    """Refuse what is not the name of a device, on any machine."""
    if not re.fullmatch("auto|(cpu|cuda|mps)(:[0-9]+)?", name):
        meant = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps"}
        raise unknown_name("device", name, DEVICES, meant)


def check_precision(name: str) -> None:
    """Refuse an unknown precision of an estimate."""
    check_name("precision", name, PRECISIONS)


def check_backend(name: str) -> None:
    """Refuse an unknown backend of an estimate."""
    check_name("backend", name, BACKENDS)


def check_quality(name: str) -> None:
    """Refuse an unknown quality."""
    find_quality(name)
