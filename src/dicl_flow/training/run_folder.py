"""The folder of a training run: config, checkpoint, weights, and the journal of its steps."""

import io
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

from ..config import TrainConfig, differences, to_toml
from ..errors import InputError
from ..files import Array, check_folder, naming, read_bytes, write_files

EVERY = 30.0  # seconds between two lines without a terminal
Checkpoint = dict[str, Any]

# These settings may change when a run is resumed: they do not affect the result.
_HARMLESS = {"workers", "save_every", "log_every", "picture_every", "needs_weights"}


class RunFolder:
    """The files of one training run, which are replaced atomically."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "last.ckpt"
        self.weights = self.path / "weights.safetensors"
        self.best = self.path / "best.safetensors"
        self.config = self.path / "config.toml"
        self.log = self.path / "log.jsonl"
        self.bad_batch = self.path / "bad_batch.pt"

    def chosen(self, start_from: str) -> Path:
        """Return the "best" weights of this run, or the "last"; without validation always those."""
        return self.best if start_from == "best" and self.best.is_file() else self.weights

    def prepare(self, config: TrainConfig, *, resume: bool) -> None:
        """Prepare the folder for a run; refuse one that already holds a run, unless `resume`."""
        check_folder(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.glob(".*.*"):  # temporary files of a killed run
            leftover.unlink()
        if not self.checkpoint.exists():
            self.best.unlink(missing_ok=True)  # of an earlier run
            write_files({self.config: to_toml(config).encode()})
        elif not resume:
            advice = "resume it with `resume=True`, or use another folder"
            raise InputError(f"{self.path} already holds a run; {advice}")

    def check_resumable(self) -> None:
        """Refuse a folder without a checkpoint; a mistyped name must not start a new run."""
        if not self.checkpoint.is_file():
            advice = "check the name, or start a run there without `resume=True`"
            missing = f"there is no run to resume in {self.path} (no {self.checkpoint.name})"
            raise InputError(f"{missing}; {advice}")

    def last(self, config: TrainConfig) -> Checkpoint | None:
        """Return the checkpoint to resume from, if any; refuse one of a run with other settings."""
        if not self.checkpoint.exists():
            return None
        checkpoint = load_checkpoint(self.checkpoint)
        self.check_settings(checkpoint["config"], config)
        return checkpoint

    def check_settings(self, begun: str, config: TrainConfig) -> None:
        """Refuse to resume a run that was begun with other settings, given as TOML."""
        changed = [key for key in differences(begun, to_toml(config)) if key not in _HARMLESS]
        if changed:
            raise InputError(
                f"{self.path} was started with another {', '.join(changed)}; resume it with "
                f"the same, or start a new run from its weights with `initial='{self.weights}'`"
            )

    def save(self, checkpoint: Checkpoint, weights: bytes, *, best: bool = False) -> None:
        """Replace checkpoint and weights together; with `best`, the best weights too."""
        # The best weights first: killed in between, the run resumes before the step that made them
        # and makes the same again.
        contents = {self.best: weights} if best else {}
        contents |= {self.checkpoint: _encode(checkpoint), self.weights: weights}
        write_files(contents, durable=True)

    def save_bad_batch(self, batch: dict[str, Any]) -> None:
        """Save the batch of the last step that was not finite."""
        write_files({self.bad_batch: _encode(batch)})


def _encode(values: dict[str, Any]) -> bytes:
    import torch

    buffer = io.BytesIO()
    torch.save(values, buffer)
    return buffer.getvalue()


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; nothing in it is executed."""
    data = io.BytesIO(read_bytes(path))
    import torch

    try:
        return torch.load(data, map_location="cpu", weights_only=True)
    except Exception:  # torch documents none for damaged files
        raise InputError(f"{path} is not a checkpoint of this package, or is damaged") from None


class Journal:
    """Averages values over steps; writes them to a progress bar, log.jsonl and TensorBoard.

    Without a terminal (output to a file or a pipe), a line every 30 s replaces the bar.
    """

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
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("starting", total=steps, completed=start)
        self._has_bar = not quiet and console.is_terminal
        self._step, self._last, self._begin, self._closed = start, "", perf_counter(), Event()
        if self._has_bar:
            self._progress.start()
        elif not quiet:  # in a thread, because a step may take minutes
            Thread(target=self._print_lines, daemon=True).start()

    def begin(self, backend: str, precision: str, fresh_levels: Sequence[int]) -> None:
        """Record and print how the steps are computed, and which levels start afresh."""
        self._how = {"backend": backend, "precision": precision}
        if not self._quiet:
            self.say(f"backend: {backend}, precision: {precision}")
        if fresh_levels:
            missing = f"no level of stride {', '.join(map(str, fresh_levels))}"
            self.say(f"the initial weights have {missing}: it starts from random weights")

    def step(self, pairs: int, fraction: float, values: dict[str, float]) -> None:
        """Record a step, after which `fraction` of the run is done."""
        for key, value in values.items():
            self._sums[key] = self._sums.get(key, 0.0) + value
        self._count, self._pairs, self._step = self._count + 1, self._pairs + pairs, self._step + 1
        self._last = f", EPE {values['epe']:.2f} px" if "epe" in values else ""
        total = self._progress.tasks[self._task].total or 1
        self._progress.update(self._task, completed=fraction * total)

    def entry(self, step: int, extra: dict[str, float]) -> None:
        """Write one line of averages since the last entry."""
        seconds = max(perf_counter() - self._since, 1e-9)
        line = {key: value / max(self._count, 1) for key, value in self._sums.items()}
        line = {"step": step, **line, "pairs_per_second": self._pairs / seconds, **extra}
        self._write(step, line, **self._how)
        values = f"loss {line.get('loss', 0):.3f}  EPE {line.get('epe', 0):.2f} px"
        speed = f"{line['pairs_per_second']:.1f} pairs/s"
        text = f"step {step}  {values}  {speed}{self._validated}"
        self._progress.update(self._task, description=text)
        self._sums, self._count, self._pairs, self._since = {}, 0, 0, perf_counter()

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

    def _print_lines(self) -> None:
        while not self._closed.wait(EVERY):
            done = self._progress.tasks[self._task].percentage
            last, seconds = self._last + self._validated, perf_counter() - self._begin
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
