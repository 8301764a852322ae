"""What an adaptation is to do, checked before any work, and the folder of its work and report."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ..config import NORMAL, TrainConfig, to_toml
from ..errors import InputError
from ..files import check_writable, write_files
from ..files.atomic import FolderLock
from ..pictures.figures import draw_figure
from ..render import list_photos
from ..training import RunFolder
from ..weights import read_weights, resolve
from .footage import (
    Footage,
    bytes_on_disk,
    choose_pairs,
    list_clips,
    scan_clip,
    stored_size,
)
from .settings import AdaptConfig, read_settings

Item = TypeVar("Item")
Watch = Callable[[Sequence[Item], str], Iterator[Item]]
"""Yields the items, and may show how far that has come."""


@dataclass(frozen=True)
class Plan:
    """What an adaptation is to do; `make_plan` checks everything that can be checked first."""

    output: Path
    weights: Path
    photos: Path | None
    footage: Footage
    settings: AdaptConfig
    recipe: TrainConfig
    max_pixels: int
    minutes: float | None = None
    keep_names: bool = False
    qualities: tuple[str, ...] = (NORMAL,)
    """Those of the teacher."""

    @property
    def folder(self) -> Path:
        """Where report and unfinished work are."""
        return work_folder(self.output)

    def size(self, clip: int) -> tuple[int, int]:
        """(height, width) in which the frames of a clip are used."""
        return stored_size(self.footage.clips[clip].size, self.max_pixels)

    def summary(self) -> dict[str, Any]:
        """Return what is to be done, as plain values."""
        clips = self.footage.clips
        skipped: dict[str, int] = {}
        for clip in clips:
            for what, count in clip.skipped.items():
                skipped[what] = skipped.get(what, 0) + count
        return {
            "clips": len(clips),
            "frames": sum(clip.num_frames for clip in clips),
            "usable_frames": sum(len(clip.frames) for clip in clips),
            "skipped": {what: count for what, count in skipped.items() if count} or None,
            "pairs": len(self.footage.training),
            "held_back_pairs": len(self.footage.held_back),
            "gigabytes": bytes_on_disk(self.footage, self.settings, self.max_pixels) / 1e9,
            "steps": None if self.minutes else self.recipe.steps,
            "minutes": self.minutes,
            "batch": self.recipe.batch,
            "teacher": ", ".join(self.qualities),
        }


def work_folder(output: Path) -> Path:
    """The folder of report and unfinished work of an output."""
    return output.with_name(f"{output.stem}.adapt")


def make_plan(
    clips: Sequence[str],
    output: Path,
    weights: str | Path | None,
    *,
    photos: Path | None = None,
    changes: Sequence[str] = (),
    steps: int | None = None,
    minutes: float | None = None,
    seed: int = 0,
    keep_names: bool = False,
    watch: Watch[str],
) -> Plan:
    """Look at footage and settings; refuse what cannot be adapted to."""
    if steps is not None and minutes is not None:
        raise InputError("give `steps` or `minutes`, not both")
    draw_figure(1, 1)  # an error now if matplotlib is missing, not at the report
    if output.suffix != ".safetensors":
        raise InputError(f"{output}: the output must end in .safetensors")
    check_writable(output)
    if photos is not None:
        list_photos(photos)
    start = resolve(weights)
    model = read_weights(start).config
    if minutes is not None and not any(change.startswith("steps=") for change in changes):
        steps = ENDLESS  # the clock ends the training
    settings, recipe = read_settings(changes, model, seed, steps)
    texts = list_clips(clips)

    from .teacher import teacher_qualities

    scans = [scan_clip(text) for text in watch(texts, "looking at the footage")]
    footage = choose_pairs(scans, settings, model.max_pixels)
    return Plan(
        output,
        start,
        photos,
        footage,
        settings,
        recipe,
        model.max_pixels,
        minutes,
        keep_names,
        teacher_qualities(model),
    )


ENDLESS = 1_000_000  # steps, more than anybody waits for


# --- the folder -----------------------------------------------------------------------------------


class WorkFolder:
    """The files of an adaptation: those of the report stay, the others until it has ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.work = path / "work"
        self.plan = self.work / "plan.json"
        self.frames, self.lessons = self.work / "frames", self.work / "lessons"
        self.taught, self.judged = self.work / "taught.json", self.work / "judged.json"
        self.student = RunFolder(path / "student")
        self.report = path / "report.json"
        self._lock = FolderLock(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other run use the folder."""
        if not self._lock.acquire():
            raise InputError(
                f"another run is writing to {self.path}; wait until it ends, or give another output"
            )
        try:
            yield
        finally:
            self._lock.remove()

    def begin(self, plan: Plan, *, restart: bool) -> None:
        """Note the plan, or check that it is the one that was begun."""
        if restart:
            for path in (self.work, self.student.path):
                shutil.rmtree(path, ignore_errors=True)
            self.report.unlink(missing_ok=True)
        known = self.report if self.report.is_file() else self.plan
        begun = identity_of(plan)
        if known.is_file():
            self._check(json.loads(known.read_text())["identity"], begun)
        elif self.student.path.exists() or self.work.exists():
            leftover = [*self.student.path.glob("*"), *self.work.glob("*")]
            if any(not path.name.startswith(".") for path in leftover):
                raise InputError(f"{self.path} is in the way: unfinished work is kept there")
        if not known.is_file():
            write_files({self.plan: json.dumps({"identity": begun}).encode()})

    def tidy(self) -> None:
        """Remove what a run that has ended does not need."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.student.checkpoint.unlink(missing_ok=True)

    def _check(self, known: Mapping[str, Any], begun: Mapping[str, Any]) -> None:
        changed = [key for key in begun if known.get(key) != begun[key]]
        if changed:
            raise InputError(
                f"{self.path} was begun with another {', '.join(changed)}; start anew with "
                f"`restart=True`, or give another output"
            )


def identity_of(plan: Plan) -> dict[str, Any]:
    """What must be the same to go on with a run, as plain values."""
    recipe = replace(plan.recipe, save_every=1, log_every=1, picture_every=0, workers=0)
    photos = hashlib.sha256(str(plan.photos and plan.photos.resolve()).encode()).hexdigest()
    identity = {
        "weights": read_weights(plan.weights).sha256,
        "footage": plan.footage.identity,
        "photos": photos,
        "settings": asdict(plan.settings),
        "recipe": to_toml(recipe),
        "clock": plan.minutes is not None,
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity))
    return plain
