"""An adaptation, stage after stage: footage, teacher, student, acceptance, calibration.

Each stage leaves its result in a folder next to the output, so that the same call goes on where a
run was stopped or killed. With a number of steps the weights do not depend on that, nor on the
clock.
"""

import gc
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import NORMAL, TrainConfig, to_toml
from ..errors import InputError, StopSignal
from ..evaluation import calibrate
from ..files import Array, check_writable, read_image, write_files
from ..files.atomic import FolderLock
from ..render import list_photos
from ..training import RunFolder
from ..training.recipe import origin
from ..weights import Weights, encode_weights, read_weights, resolve
from .footage import (
    ClipScan,
    Footage,
    FootagePair,
    bytes_on_disk,
    choose_pairs,
    frame_path,
    list_clips,
    scan_clip,
    store_frames,
    stored_size,
)
from .report import markdown
from .settings import AdaptConfig, read_settings

if TYPE_CHECKING:
    from .teacher import Lesson

Item = TypeVar("Item")
Watch = Callable[[Sequence[Item], str], Iterator[Item]]
"""Yields the items, and may show how far that has come."""


class Stopped(Exception):  # noqa: N818 - no error
    """A signal came between two steps of a stage; the same call goes on from there."""

    def __init__(self, signal: int) -> None:
        super().__init__(f"signal {signal}")
        self.signal = signal


@dataclass(frozen=True)
class Adapted:
    """How an adaptation ended."""

    accepted: bool
    weights: Path | None
    """The adapted weights, if they were accepted."""
    report: Path
    """The folder of the report: report.md, report.json and pictures."""
    reasons: tuple[str, ...]
    """Why the weights were not accepted."""
    warnings: tuple[str, ...]
    numbers: Mapping[str, Any]
    """What report.json has."""


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
    quality: str = NORMAL
    """That of the teacher."""

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
            "skipped": {what: count for what, count in skipped.items() if count},
            "pairs": len(self.footage.training),
            "held_back_pairs": len(self.footage.held_back),
            "gigabytes": bytes_on_disk(self.footage, self.settings, self.max_pixels) / 1e9,
            "steps": None if self.minutes else self.recipe.steps,
            "minutes": self.minutes,
            "batch": self.recipe.batch,
            "teacher": self.quality,
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
    if output.suffix != ".safetensors":
        raise InputError(f"{output}: the output must end in .safetensors")
    check_writable(output)
    if photos is not None:
        list_photos(photos)
    start = resolve(weights)
    model = read_weights(start).config
    if minutes is not None and not any(change.startswith("steps=") for change in changes):
        steps = _ENDLESS  # the clock ends the training
    settings, recipe = read_settings(changes, model, seed, steps)
    texts = list_clips(clips)

    from .teacher import best_quality

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
        best_quality(model),
    )


_ENDLESS = 1_000_000  # steps, more than anybody waits for


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
        begun = _identity(plan)
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


def _identity(plan: Plan) -> dict[str, Any]:
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


# --- the stages -----------------------------------------------------------------------------------


def run(
    plan: Plan,
    *,
    device: str = "auto",
    restart: bool = False,
    quiet: bool = True,
    watch: Watch[Any],
) -> Adapted:
    """Go through all stages, or through those that are left."""
    folder = WorkFolder(plan.folder)
    with folder.locked():
        folder.begin(plan, restart=restart)
        if not folder.report.is_file():
            _Stages(plan, folder, device, quiet, watch).all()
        folder.tidy()
        return _ended(plan, folder)


def _ended(plan: Plan, folder: WorkFolder) -> Adapted:
    """Return what the report of a finished run says."""
    numbers = json.loads(folder.report.read_text())
    verdict, taught = numbers["verdict"], numbers["teacher"]
    if verdict["accepted"] and not plan.output.is_file():
        raise InputError(
            f"this run has ended, but {plan.output} is gone; `restart=True` starts anew"
        )
    return Adapted(
        verdict["accepted"],
        plan.output if verdict["accepted"] else None,
        folder.path,
        tuple(verdict["reasons"]),
        (*taught["warnings"], *verdict["warnings"]),
        numbers,
    )


@dataclass
class _Stages:
    plan: Plan
    folder: WorkFolder
    device: str
    quiet: bool
    watch: Watch[Any]

    def all(self) -> None:
        store_frames(self.plan.footage, self.folder.frames, self.plan.max_pixels)
        taught = self._once(self.folder.taught, self.teach)
        self.train(taught)
        judged = self._once(self.folder.judged, self.judge)
        self.conclude(taught, judged)

    def _once(self, path: Path, stage: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a stage, which is computed if it is not there."""
        if not path.is_file():
            result = stage()
            _free_memory()
            write_files({path: json.dumps(result).encode()})
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def _watched(self, items: Sequence[Item], words: str) -> Iterator[Item]:
        """Yield the items until a signal comes."""
        with StopSignal() as signal:
            for item in self.watch(items, words):
                if signal.received is not None:
                    raise Stopped(signal.received)
                yield item

    def _lessons(self, numbers: Sequence[int]) -> "list[Lesson]":
        from .teacher import lesson

        pairs, places = self.plan.footage.training, (self.folder.frames, self.folder.lessons)
        return [lesson(pairs[number], *places) for number in numbers]

    def teach(self) -> dict[str, Any]:
        """Estimate the pairs to train on, and say what was kept."""
        from ..estimation.estimator import load
        from .teacher import BothWays, review, teach

        plan = self.plan
        pairs, everything = plan.footage.training, range(len(plan.footage.training))
        lessons = self._lessons(everything)
        missing = [number for number in everything if not lessons[number].flows.is_file()]
        if missing:
            both_ways = BothWays(load(plan.weights, self.device, quality=plan.quality))
            for number in self._watched(missing, "teacher"):
                seed = plan.recipe.seed
                contents = teach(both_ways, pairs[number], lessons[number], plan.settings, seed)
                write_files(contents)
        taught = review(lessons)
        if not taught["lessons"]:
            raise InputError(
                "the teacher trusts hardly any pixel of the footage in both directions, so there "
                "is nothing to learn from: its flow is too wrong there to be improved this way"
            )
        return taught

    def train(self, taught: Mapping[str, Any]) -> None:
        """Train the student until its steps or minutes are over."""
        from ..estimation.compute import choose_device
        from ..training import Limits, Processes, train
        from .student import mixed_source, staying_shares

        plan, processes = self.plan, Processes(choose_device(self.device))
        stay = staying_shares(taught["kept_by_speed"], plan.settings.balance)
        recipe = plan.recipe
        if not processes.on_gpu:  # a step may take minutes
            recipe = replace(recipe, save_every=min(recipe.save_every, _SAVE_EVERY))
        lessons = self._lessons(taught["lessons"])
        where = (plan.photos, processes.device)
        outcome = train(
            recipe,
            mixed_source(lessons, stay, plan.settings, recipe, *where),
            self.folder.student,
            processes,
            initial=plan.weights,
            resume=True,
            limits=Limits(plan.minutes),
            quiet=self.quiet,
        )
        _free_memory()
        if not outcome.finished:
            raise Stopped(outcome.signal or 0)

    def judge(self) -> dict[str, Any]:
        """Measure before and after on what was held back."""
        from ..estimation.estimator import load
        from .acceptance import judge, measure_pair, scene_errors, scene_renderer
        from .teacher import BothWays

        plan = self.plan
        estimators = [
            load(path, self.device) for path in (plan.weights, self.folder.student.weights)
        ]
        networks = [BothWays(estimator) for estimator in estimators]
        pairs = [*plan.footage.held_back]
        errors = [
            measure_pair(networks, *self.frames_of(pair))
            for pair in self._watched(pairs, "held-back footage")
        ]
        renderer = scene_renderer(plan.photos, _scene_size(plan.recipe), estimators[0].device)
        numbers = self._watched(range(plan.settings.scenes), "rendered scenes")
        scenes = scene_errors(estimators, renderer, numbers)
        before, after = zip(*errors, strict=True)
        verdict = judge(before, after, scenes, plan.settings.forgotten)
        return {"verdict": verdict.document(), "pairs": errors, "scenes": scenes}

    def frames_of(self, pair: FootagePair) -> tuple[Array, Array]:
        """Read the frames of a pair, as they are used."""
        frames = self.folder.frames
        image1, image2 = (
            read_image(frame_path(frames, pair.clip, number))
            for number in (pair.first, pair.second)
        )
        return image1, image2

    def conclude(self, taught: Mapping[str, Any], judged: Mapping[str, Any]) -> None:
        """Write the report, and the weights if they are accepted, all at once."""
        plan, path = self.plan, self.folder.path
        contents: dict[Path, bytes] = {}
        if judged["verdict"]["accepted"]:
            contents[plan.output] = encode_weights(self.calibrated())
        document = self.document(taught, judged)
        contents |= {path / name: data for name, data in self.pictures(taught, judged).items()}
        contents[path / "report.md"] = markdown(document).encode()
        contents[self.folder.report] = (json.dumps(document, indent=1) + "\n").encode()
        write_files(contents)

    def calibrated(self) -> Weights:
        """Return the student's weights with the calibrations that those before have."""
        plan = self.plan
        start, weights = read_weights(plan.weights), read_weights(self.folder.student.weights)
        qualities = [*([NORMAL] if start.calibration else []), *start.quality_calibrations]
        about = {**weights.about, "footage": _footage_text(plan)}
        weights = replace(weights, about=about)
        for quality in qualities:
            candidate = self.folder.work / "candidate.safetensors"
            write_files({candidate: encode_weights(weights)})
            weights = calibrate(
                candidate,
                plan.photos,
                quality=quality,
                scenes=plan.settings.calibration_scenes,
                size=_scene_size(plan.recipe),
                progress=lambda numbers, words: self._watched([*numbers], f"calibration: {words}"),
                device=self.device,
            ).weights
        return weights

    def document(self, taught: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, Any]:
        """Return the content of report.json."""
        plan = self.plan
        return {
            "identity": _identity(plan),
            "verdict": judged["verdict"],
            "teacher": taught,
            "held_back_pairs": len(judged["pairs"]),
            "scenes": len(judged["scenes"][0]),
            "steps": int(read_weights(self.folder.student.weights).about["steps"]),
            "seed": plan.recipe.seed,
            "started_from": origin(plan.weights),
            "settings": asdict(plan.settings),
            "footage": [
                _about_clip(clip, number, plan) for number, clip in enumerate(plan.footage.clips)
            ],
            "pairs": list(map(_about_pair, plan.footage.held_back, judged["pairs"])),
        }

    def pictures(self, taught: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, bytes]:
        """Draw the pairs before and after, what the teacher has kept, and the training."""
        from ..estimation.estimator import load
        from .acceptance import error_pictures
        from .report import CURVE, KEPT, PAIRS, kept_sheet, pairs_sheet, training_curve
        from .teacher import BothWays

        paths = (self.plan.weights, self.folder.student.weights)
        networks = [BothWays(load(path, self.device)) for path in paths]
        rows = []
        for number in worst_pairs(judged["pairs"]):
            pair, errors = self.plan.footage.held_back[number], judged["pairs"][number]
            frames = self.frames_of(pair)
            label = (
                f"clip {pair.clip + 1}, frames {pair.first} and {pair.second}: warping error "
                f"{errors[0][0]:.3f} before, {errors[1][0]:.3f} after"
            )
            rows.append((label, frames[0], *error_pictures(networks, *frames)))
        shown = spaced(taught["lessons"], _SHOWN)
        return {
            PAIRS: pairs_sheet(rows),
            KEPT: kept_sheet(self._lessons(shown)),
            CURVE: training_curve(self.folder.student.log),
        }


_SAVE_EVERY = 10  # steps between checkpoints on a CPU
_SHOWN = 4  # pairs in each picture of the report


def _scene_size(recipe: TrainConfig) -> tuple[int, int]:
    """(height, width) of the rendered scenes that judge and calibrate."""
    return recipe.render.sizes[0] if recipe.render.sizes else recipe.augment.crop


def _free_memory() -> None:
    """Give back the memory of recordings, which are part of reference cycles."""
    import torch

    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _footage_text(plan: Plan) -> str:
    """What weights say of the footage: hashes, and names if they are to be kept."""
    texts = []
    for clip in plan.footage.clips:
        name = f"{Path(clip.text).name} " if plan.keep_names else ""
        of = "" if clip.num_files == 1 else f" of the hashes of {clip.num_files} files"
        texts.append(f"{name}sha256 {clip.sha256}{of}")
    return "; ".join(texts)


def _about_clip(clip: ClipScan, number: int, plan: Plan) -> dict[str, Any]:
    name = Path(clip.text).name if plan.keep_names else f"clip {number + 1}"
    known = {key: getattr(clip, key) for key in ("size", "num_frames", "skipped", "sha256")}
    return {"name": name, "usable": len(clip.frames), **known}


def _about_pair(pair: FootagePair, errors: Sequence[Sequence[float]]) -> dict[str, Any]:
    before, after = errors
    return {**pair._asdict(), "before": before, "after": after}


def worst_pairs(errors: Sequence[Sequence[Sequence[float]]]) -> list[int]:
    """The pairs with the largest warping error before, and those that have got worst."""
    numbers = range(len(errors))
    worst = sorted(numbers, key=lambda n: -errors[n][0][0])[:_SHOWN]
    others = [number for number in numbers if number not in worst]
    got_worse = sorted(others, key=lambda n: errors[n][0][0] - errors[n][1][0])
    return [*worst, *got_worse[: _SHOWN // 2]]


def spaced(items: Sequence[Item], count: int) -> list[Item]:
    """Some of the items, evenly."""
    count = min(count, len(items))
    return [items[(2 * n + 1) * len(items) // (2 * count)] for n in range(count)]
