"""Files that reach new code are damaged further: for `campaigns.files --guided yes`.

What is watched is the Python of this package, not the libraries that decode. A jump is a pair of
lines of one function that were executed one after the other.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import dicl_flow

from .formats import Format
from .mutations import mutated

_PACKAGE = str(Path(dicl_flow.__file__).parent)


class Guide:
    """Keeps the files that were the first to make a jump, and damages them further."""

    def __init__(self, form: Format) -> None:
        self._form, self._files = form, list[bytes]()
        self.jumps = set[tuple[object, int, int]]()

    @property
    def form(self) -> Format:
        """The format, watched; half of its files come from those that were kept."""
        return replace(self._form, read=self._read, structured=self._damaged)

    def _damaged(self, dice: Random, seeds: Sequence[bytes]) -> bytes:
        if self._form.structured is None or dice.random() < 0.8:
            return mutated(dice.choice(self._files), dice, self._files)
        return self._form.structured(dice, seeds)

    def _read(self, path: Path) -> Any:
        before, traced = len(self.jumps), sys.gettrace()
        sys.settrace(self._enter)
        try:
            return self._form.read(path)
        finally:
            sys.settrace(traced)
            if len(self.jumps) > before:
                self._files.append(path.read_bytes())

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        code, last = frame.f_code, 0
        if not code.co_filename.startswith(_PACKAGE):
            return None

        def line(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            if event == "line":
                self.jumps.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line
