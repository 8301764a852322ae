"""The training loop: steps, logs, checkpoints, and when to stop."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from threading import Timer
from time import monotonic, perf_counter

from ..config import TrainConfig
from ..errors import InputError, StopSignal
from ..weights import encode_weights
from .batch_sources import BatchSource
from .distributed import Processes
from .monitoring import LevelWatch, Validated, Validation, training_sheet
from .run_folder import Journal, RunFolder
from .trainer import Trainer

_PATIENCE = 10  # consecutive steps with a loss that is not finite before the run stops


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    epe: float
    finished: bool
    signal: int | None
    validated: Validated


@dataclass(frozen=True)
class Limits:
    """Conditions that end a run before the last step of the recipe."""

    minutes: float | None = None
    """The schedule is scaled to fit: progress reaches 1 in this time."""
    epe: float | None = None
    """Stop when the training EPE of a step falls below this."""


def train(
    config: TrainConfig,
    source: BatchSource,
    folder: RunFolder,
    processes: Processes,
    *,
    initial: str | Path | None = None,
    resume: bool = False,
    limits: Limits | None = None,
    validation: Validation | None = None,
    watch: Callable[[Trainer], None] | None = None,
    quiet: bool = False,
) -> Outcome:
    """Train until the last step, a limit or a signal; the folder then holds a checkpoint.

    With a `validation`, it also holds the best weights. `watch` is called before each step and
    after the last.
    """
    limits = limits or Limits()
    if processes.is_first:
        folder.prepare(config, resume=resume)
    processes.any(False)  # other processes wait until the folder is ready
    checkpoint = folder.last(config)
    if checkpoint:  # a run that adds parts to weights has left them complete
        initial = folder.weights if config.radii else None
    trainer = Trainer(config, processes, initial)
    if checkpoint:
        trainer.restore(checkpoint)
    journal = None
    if processes.is_first:
        journal = Journal(folder.log, config.steps, trainer.step, quiet=quiet)
        journal.begin(trainer.backend, trainer.precision, trainer.fresh_levels)
    alarm = _alarm(limits.minutes, journal)
    try:
        with StopSignal() as stop:
            run = _Run(trainer, folder, journal, validation)
            return run.steps(source, limits, alarm, stop, watch)
    finally:
        alarm.cancel()
        if journal is not None:
            journal.close()


def _alarm(minutes: float | None, journal: Journal | None) -> Timer:
    """Report if the time is up before the first step is done; call `cancel` after that step.

    A run takes at least one step, and only then is it known how long a step takes.
    """
    text = (
        f"a step takes longer than the limit of {minutes or 0:g} min; the run ends after this "
        f"step. A smaller batch or augment.crop in the recipe makes steps shorter"
    )

    def report() -> None:
        if journal is not None:
            journal.say(text)

    alarm = Timer(60 * (minutes or 0), report)
    alarm.daemon = True
    if minutes is not None:
        alarm.start()
    return alarm


@dataclass
class _Run:
    """What the steps of a run update: the trainer, its folder and its journal."""

    trainer: Trainer
    folder: RunFolder
    journal: Journal | None
    """Only in the first process."""
    validation: Validation | None

    def steps(
        self,
        source: BatchSource,
        limits: Limits,
        alarm: Timer,
        stop: StopSignal,
        watch: Callable[[Trainer], None] | None,
    ) -> Outcome:
        """Take steps until the run is finished or is to stop."""
        trainer, config, processes = self.trainer, self.trainer.config, self.trainer.processes
        parts = config.optimizer.accumulate
        size = processes.share(config.batch, parts)
        batches = source.batches(size, trainer.step * parts, processes)
        level_watch = LevelWatch(config.model.strides, trainer.step)
        start, first, epe = monotonic(), trainer.progress, float("nan")
        while True:
            trainer.progress = trainer.step / config.steps
            if limits.minutes is not None:
                elapsed = (monotonic() - start) / (60 * limits.minutes)
                by_time = min(1.0, first + (1 - first) * elapsed)
                trainer.progress = max(trainer.progress, by_time)
            if watch is not None:
                watch(trainer)
            fitted = limits.epe is not None and epe < limits.epe
            finished = trainer.progress >= 1 or fitted
            wish = processes.any(stop.received is not None)
            if self.validation is not None and self._is_due(finished=finished, wish=wish):
                self._validate(self.validation)
            elif finished or wish or (trainer.step and trainer.step % config.save_every == 0):
                self._save()
            if finished or wish:
                return Outcome(trainer.step, epe, finished, stop.received, trainer.validated)
            values = trainer.train_step(batches, trainer.progress)
            alarm.cancel()
            epe = values.get("epe", epe)
            if self.journal is not None:
                _note(trainer, self.journal, level_watch, values)
            if trainer.skipped_in_a_row >= _PATIENCE:
                raise self._not_finite()

    def _is_due(self, *, finished: bool, wish: bool) -> bool:
        """Whether to validate now: not twice after a step, and later if the run is to stop."""
        trainer = self.trainer
        due = trainer.step % trainer.config.validate_every == 0 and not wish
        return (due or finished) and trainer.step > trainer.validated.step

    def _validate(self, validation: Validation) -> None:
        """Measure the errors and save: a killed run must know which weights were the best."""
        trainer, start = self.trainer, perf_counter()
        errors = validation.errors(trainer.weights(), trainer.processes)
        mean = fmean(errors.values())
        if self.journal is not None:  # before the checkpoint, after which it would not write again
            self.journal.validation(trainer.step, errors, mean, perf_counter() - start)
        trainer.validated = trainer.validated.after(trainer.step, mean)
        self._save(best=trainer.validated.best_step == trainer.step)

    def _save(self, *, best: bool = False) -> None:
        if self.trainer.processes.is_first:
            weights = encode_weights(self.trainer.weights())
            self.folder.save(self.trainer.checkpoint(), weights, best=best)

    def _not_finite(self) -> InputError:
        if self.trainer.processes.is_first:
            self.folder.save_bad_batch(vars(self.trainer.batch))
        return InputError(
            f"the loss was not finite in {_PATIENCE} consecutive steps, the last of them "
            f"{self.trainer.step}; its batch is in {self.folder.bad_batch}; try a lower "
            f"optimizer.learning_rate, optimizer.clip=1, or a few fixed samples (`num_samples=8`) "
            f"to find the cause"
        )


def _note(
    trainer: Trainer, journal: Journal, level_watch: LevelWatch, values: dict[str, float]
) -> None:
    config, step = trainer.config, trainer.step
    journal.step(trainer.pairs_of_step, max(trainer.progress, step / config.steps), values)
    if "loss" not in values:
        journal.say(f"step {step}: the loss or a gradient is not finite; step skipped")
    if step % config.log_every == 0:
        counts = {"pairs": trainer.pairs, "pairs_total": trainer.pairs_total}
        gauges = trainer.gauges() if "loss" in values else {}
        journal.entry(step, {"skipped": float(trainer.skipped), **counts, **gauges})
        for sentence in level_watch.note(step, gauges) if gauges else ():
            journal.say(sentence)
    if config.picture_every and step % config.picture_every == 0:
        journal.picture(step, training_sheet(trainer.batch, trainer.levels))
