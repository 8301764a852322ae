"""An adaptation, stage after stage: footage, teacher, student, acceptance, calibration.

Each stage leaves its result in a folder next to the output, so that the same call goes on where a
run was stopped or killed. With a number of steps the weights do not depend on that, nor on the
clock.
"""

import gc
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import NORMAL, TrainConfig
from ..errors import InputError, StopSignal
from ..evaluation import calibrate
from ..files import Array, read_image, write_files
from ..training.recipe import origin
from ..weights import Weights, encode_weights, read_weights
from .footage import ClipScan, FootagePair, frame_path, store_frames
from .plan import Item, Plan, Watch, WorkFolder, identity_of
from .report import CURVE, KEPT, PAIRS, kept_sheet, pairs_sheet, training_curve, write_report

if TYPE_CHECKING:
    from ..training import Processes
    from .teacher import Lesson


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
    warnings = [*taught["warnings"], *verdict["warnings"]]
    if not verdict["accepted"] and plan.output.is_file():
        warnings.append(f"{plan.output} is older: it was there before and is unchanged")
    return Adapted(
        verdict["accepted"],
        plan.output if verdict["accepted"] else None,
        folder.path,
        tuple(verdict["reasons"]),
        tuple(warnings),
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
        if not taught["lessons"]:
            self.give_up(taught)
            return
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
        from ..estimation.estimator import BothWays, load
        from .teacher import review, teach

        plan = self.plan
        pairs, everything = plan.footage.training, range(len(plan.footage.training))
        lessons = self._lessons(everything)
        missing = [number for number in everything if not lessons[number].flows.is_file()]
        if missing:
            teachers = [
                BothWays(load(plan.weights, self.device, quality=quality))
                for quality in plan.qualities
            ]
            for number in self._watched(missing, "teacher"):
                seed = plan.recipe.seed
                contents = teach(teachers, pairs[number], lessons[number], plan.settings, seed)
                write_files(contents)
        return review(lessons)

    def give_up(self, taught: Mapping[str, Any]) -> None:
        """Write the report of a run that has nothing to learn from."""
        verdict = {"accepted": False, "reasons": [_NOTHING], "warnings": []}
        document = self.document(taught, {"verdict": verdict})
        path = self.folder.path
        shown = kept_sheet(self._lessons(spaced(range(taught["pairs"]), _SHOWN)))
        write_report(path, document, {KEPT: shown})

    def train(self, taught: Mapping[str, Any]) -> None:
        """Train the student until its steps or minutes are over."""
        from ..estimation.compute import choose_device
        from ..training import Limits, Processes, train
        from .student import footage_speed, mixed_source, staying_shares

        plan, processes = self.plan, Processes(choose_device(self.device))
        pairs = [plan.footage.training[number] for number in taught["lessons"]]
        stay = staying_shares(taught["kept_by_speed"], plan.settings.balance)
        recipe = recipe_for(plan.recipe, processes)
        lessons = self._lessons(taught["lessons"])
        speed = footage_speed(lessons, [pair.second - pair.first for pair in pairs])
        where = (plan.photos, processes.device)
        outcome = train(
            recipe,
            mixed_source(lessons, stay, speed, plan.settings, recipe, *where),
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
        from ..estimation.estimator import BothWays, load
        from .acceptance import judge, measure_pair

        plan = self.plan
        share, scenes = self.choose_share()
        networks = [BothWays(load(each, self.device)) for each in self.before_and_after(share)]
        pairs = [*plan.footage.held_back]
        errors = [
            measure_pair(networks, *self.frames_of(pair))
            for pair in self._watched(pairs, "held-back footage")
        ]
        before, after = zip(*errors, strict=True)
        verdict = judge(before, after, scenes, plan.settings.forgotten)
        return {
            "share": share,
            "verdict": verdict.document(),
            "pairs": errors,
            "scenes": scenes,
        }

    def choose_share(self) -> tuple[float, tuple[list[float], list[float]]]:
        """How far to go from the initial weights, so that little is forgotten.

        Returns the share of the way, and the errors on rendered scenes before and after it.
        """
        from ..estimation.estimator import load
        from .acceptance import compare, scene_errors, scene_renderer

        plan = self.plan

        def errors(weights: Weights | Path) -> list[float]:
            estimator = load(weights, self.device)
            renderer = scene_renderer(plan.photos, _scene_size(plan.recipe), estimator.device)
            numbers = self._watched(range(plan.settings.scenes), "rendered scenes")
            return scene_errors(estimator, renderer, numbers)

        before, wanted = errors(plan.weights), plan.settings.share
        for share in (wanted, _LESS * wanted):
            after = errors(self.before_and_after(share)[1])
            if compare(before, after).relative <= plan.settings.forgotten:
                break  # otherwise it is refused
        return share, (before, after)

    def before_and_after(self, share: float) -> tuple[Weights, Weights]:
        """The initial weights, and those that have gone so far towards the student's."""
        from .student import between

        start, end = read_weights(self.plan.weights), read_weights(self.folder.student.weights)
        return start, between(start, end, share)

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
        accepted: dict[Path, bytes] = {}
        if judged["verdict"]["accepted"]:
            accepted[self.plan.output] = encode_weights(self.calibrated(judged["share"]))
        pictures = self.pictures(taught, judged)
        write_report(self.folder.path, self.document(taught, judged), pictures, accepted)

    def calibrated(self, share: float) -> Weights:
        """Return the weights after adaptation, with the calibrations that those before have."""
        plan = self.plan
        start, weights = self.before_and_after(share)
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
            "identity": identity_of(plan),
            "verdict": judged["verdict"],
            "teacher": taught,
            "seed": plan.recipe.seed,
            "started_from": origin(plan.weights),
            "settings": asdict(plan.settings),
            "footage": [
                _about_clip(clip, number, plan) for number, clip in enumerate(plan.footage.clips)
            ],
            **(self._measured(judged) if "pairs" in judged else {}),
        }

    def _measured(self, judged: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "share": judged["share"],
            "scenes": len(judged["scenes"][0]),
            "steps": int(read_weights(self.folder.student.weights).about["steps"]),
            "pairs": list(map(_about_pair, self.plan.footage.held_back, judged["pairs"])),
        }

    def pictures(self, taught: Mapping[str, Any], judged: Mapping[str, Any]) -> dict[str, bytes]:
        """Draw the pairs before and after, what the teacher has kept, and the training."""
        from ..estimation.estimator import BothWays, load
        from .acceptance import error_pictures

        both = self.before_and_after(judged["share"])
        networks = [BothWays(load(weights, self.device)) for weights in both]
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


_LESS = 0.6  # of the way, if all of it forgets too much
_NOTHING = (
    "the teacher trusts hardly any pixel of the footage in both directions, so there is nothing to "
    "learn from"
)
_GIBIBYTES = 12.0  # of GPU memory for a megapixel of a batch: 34 for 16 pairs of 512x384
_SAVE_EVERY = 10  # steps between checkpoints on a CPU
_SHOWN = 4  # pairs in each picture of the report


def recipe_for(recipe: TrainConfig, processes: "Processes") -> TrainConfig:
    """Return a recipe that the device can follow."""
    import torch

    if not processes.on_gpu:
        return recipe_on_cpu(recipe)
    # all of it, not what is free now: a run must go on with the batch it was begun with
    memory = torch.cuda.get_device_properties(processes.device).total_memory
    return recipe_within(recipe, memory / 2**30)


def recipe_within(recipe: TrainConfig, gibibytes: float) -> TrainConfig:
    """Return a recipe whose batch, or each of its parts, fits into the memory of a GPU."""
    (height, width), parts = recipe.augment.crop, recipe.optimizer.accumulate
    fitting = floor(gibibytes / (_GIBIBYTES * height * width / 1e6))
    return replace(recipe, batch=parts * max(1, min(recipe.batch // parts, fitting)))


def recipe_on_cpu(recipe: TrainConfig) -> TrainConfig:
    """Return a recipe for a CPU: saved often, as steps take minutes, and two pairs at a time."""
    often = replace(recipe, save_every=min(recipe.save_every, _SAVE_EVERY))
    if recipe.optimizer.accumulate > 1 or recipe.batch % 2:
        return often
    return replace(often, optimizer=replace(recipe.optimizer, accumulate=recipe.batch // 2))


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
