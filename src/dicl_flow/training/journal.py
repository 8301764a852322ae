"""The reports of a run: a progress bar, log.jsonl and TensorBoard.

Without a terminal (output to a file or a pipe), a line every 30 s replaces the bar.
"""

import json
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..files import Array, naming, write_files

EVERY = 30.0  # seconds between two lines without a terminal


class Journal:
    """Averages values over the steps since the last entry and writes them to the logs."""

    def __init__(self, path: Path, steps: int, start: int, *, quiet: bool) -> None:
        self.path = path
        self._forget_after(start)
        self._events = path.with_name("tensorboard")
        self._board = _open_board(self._events)
        self._sums: dict[str, float] = {}
        self._count, self._pairs, self._since = 0, 0, perf_counter()
        self._how: dict[str, str] = {}
        self._validated, self._quiet = "", quiet
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        console = Console(stderr=True)
        bar, lines = not quiet and console.is_terminal, not quiet and not console.is_terminal
        self._progress, self._has_bar = Progress(*columns, console=console), bar
        self._task = self._progress.add_task("starting", total=steps, completed=start)
        if bar:
            self._progress.start()
        self._step, self._last, self._begin, self._closed = start, "", perf_counter(), Event()
        if lines:  # in a thread, because a step may take minutes
            Thread(target=self._tell_now_and_then, daemon=True).start()

    def begin(self, backend: str, precision: str, fresh_levels: Sequence[int]) -> None:
        """Record and print how the steps are computed, and which levels start afresh."""
        self._how = {"backend": backend, "precision": precision}
        if not self._quiet:
            self.say(f"backend: {backend}, precision: {precision}")
        if fresh_levels:
            strides = ", ".join(map(str, fresh_levels))
            self.say(
                f"the weights to start from have no level of stride {strides}: it starts from "
                f"random weights"
            )

    def step(self, pairs: int, fraction: float, values: dict[str, float]) -> None:
        """Record a step, after which `fraction` of the run is done."""
        for key, value in values.items():
            self._sums[key] = self._sums.get(key, 0.0) + value
        self._count += 1
        self._pairs += pairs
        self._step += 1
        self._last = f", EPE {values['epe']:.2f} px" if "epe" in values else ""
        total = self._progress.tasks[self._task].total or 1
        self._progress.update(self._task, completed=fraction * total)

    def entry(self, step: int, extra: dict[str, float]) -> dict[str, float]:
        """Write one line of averages and return it."""
        seconds = max(perf_counter() - self._since, 1e-9)
        line = {key: value / max(self._count, 1) for key, value in self._sums.items()}
        line = {"step": step, **line, "pairs_per_second": self._pairs / seconds, **extra}
        self._write(step, line, **self._how)
        self._progress.update(
            self._task,
            description=f"step {step}  loss {line.get('loss', 0):.3f}  "
            f"EPE {line.get('epe', 0):.2f} px  {line['pairs_per_second']:.1f} pairs/s"
            f"{self._validated}",
        )
        self._sums, self._count, self._pairs, self._since = {}, 0, 0, perf_counter()
        return line

    def validation(self, step: int, errors: dict[str, float], mean: float, seconds: float) -> None:
        """Write the errors of a validation, which took `seconds`, as a separate line."""
        by_name = {f"validation/{name}": error for name, error in errors.items()}
        self._write(step, {"step": step, "validation_epe": mean, **by_name})
        self._validated = f", validation {mean:.2f} px"
        if not self._quiet:
            self.say(f"step {step}: validation EPE {mean:.3f} px, {seconds:.0f} s")
        self._since += seconds

    def picture(self, step: int, image: Array) -> None:
        """Show an (H, W, 3) uint8 picture."""
        if self._board is not None:
            with naming(self._events):
                self._board.add_image("pairs", np.ascontiguousarray(image), step, dataformats="HWC")

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        self._progress.console.print(text, highlight=False)

    def close(self) -> None:
        """Finish the bar and flush the files."""
        self._closed.set()
        if self._has_bar:
            self._progress.stop()
        if self._board is not None:
            with naming(self._events):
                self._board.close()

    def _write(self, step: int, line: dict[str, float], **words: str) -> None:
        with naming(self.path), self.path.open("a") as file:
            file.write(json.dumps({**line, **words}) + "\n")
        if self._board is not None:
            with naming(self._events):
                for key, value in line.items():
                    self._board.add_scalar(key, value, step)

    def _tell_now_and_then(self) -> None:
        while not self._closed.wait(EVERY):
            task = self._progress.tasks[self._task]
            done, seconds = task.percentage, perf_counter() - self._begin
            last = self._last + self._validated
            self.say(f"step {self._step}, {done:.1f} % done, {seconds:.0f} s{last}")

    def _forget_after(self, step: int) -> None:
        """Drop lines of steps that a resumed run repeats."""
        if self.path.exists():
            lines = self.path.read_text().splitlines()
            kept = [line for line in lines if _step_of(line) <= step]
            write_files({self.path: "".join(f"{line}\n" for line in kept).encode()})


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # cut off when the run was killed


def _open_board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        Console(stderr=True).print("TensorBoard is not installed: scalars go to log.jsonl only")
        return None
    _hush_board()
    with naming(folder):
        return SummaryWriter(str(folder))


@cache
def _hush_board() -> None:
    """Print no traceback of TensorBoard's thread: its error is raised again by the next call."""
    usual = threading.excepthook

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if type(arguments.thread).__name__ != "_AsyncWriterThread":
            usual(arguments)

    threading.excepthook = hook
