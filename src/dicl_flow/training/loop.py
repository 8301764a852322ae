"""The training loop: batch, forward, loss, step; checkpoints that a kill cannot harm."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..config import TrainConfig, to_toml
from ..data import FlowBatch
from ..errors import InputError
from ..inputs import normalize
from ..models import LevelFlow, build
from ..weights import Weights, encode_weights
from .averaging import WeightAverage
from .checkpoint import RunFolder
from .distributed import Processes, distribute, share_norms
from .journal import Journal
from .loss import end_point_error, pyramid_loss
from .optimizer import build_optimizer, learning_rate
from .pictures import training_sheet
from .sources import BatchSource
from .start import freeze_norms, start_from
from .stopping import Clock, StopSignal

_PATIENCE = 10  # bad steps in a row before the run stops


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    epe: float
    finished: bool
    signal: int | None = None


@dataclass(frozen=True)
class Limits:
    """Ends other than the last step of the recipe."""

    minutes: float | None = None
    epe: float | None = None
    """Stop when the training EPE of a step falls below this."""


class Trainer:
    """Everything a run changes, and the step that changes it."""

    def __init__(
        self, config: TrainConfig, processes: Processes, initial: str | Path | None = None
    ) -> None:
        torch.manual_seed(config.seed)
        self.config, self.processes = config, processes
        model = build(config.model)
        if initial is not None:
            start_from(model, initial)
        self.model = share_norms(model, processes).to(processes.device)
        self.parallel = distribute(self.model, processes)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        decay = config.optimizer.average
        self.average = WeightAverage(self.model, decay) if decay else None
        self.step, self.progress = 0, 0.0
        self.skipped, self.skipped_in_a_row = 0, 0

    def train_step(self, batches: Iterator[FlowBatch], progress: float) -> dict[str, float]:
        """Take one step of the optimizer; return what it saw."""
        self._training_mode()
        settings = self.config.optimizer
        rate = learning_rate(self.config, self.step, progress)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        totals = torch.zeros(2, device=self.processes.device)
        for part in range(settings.accumulate):
            self.batch = next(batches).to(self.processes.device)
            totals += self._backward(self.batch, last=part == settings.accumulate - 1)
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), settings.clip or float("inf")
        )
        finite = bool((totals.isfinite().all() & norm.isfinite()).item())
        if finite:
            self.optimizer.step()
            if self.average is not None:
                self.average.update(self.model, self.step)
        else:  # the batch must leave no trace, in the norms' statistics either
            for buffer, before in zip(self.model.buffers(), statistics, strict=True):
                buffer.copy_(before)
        self.optimizer.zero_grad(set_to_none=True)
        self._count(finite=finite)
        loss, epe = (totals / settings.accumulate).tolist()
        values = {"loss": loss, "epe": epe, "gradient_norm": norm.item()} if finite else {}
        return {**values, "learning_rate": rate}

    def _backward(self, batch: FlowBatch, *, last: bool) -> Tensor:
        """Accumulate the gradients of one part of a batch; return loss and EPE over processes."""
        parallel, world = self.parallel, self.processes.world_size
        num_valid = self.processes.sum(batch.valid.sum()) / world
        wait = isinstance(parallel, DistributedDataParallel) and not last
        with parallel.no_sync() if wait else nullcontext():  # type: ignore[operator]
            self.levels = self._forward(batch)
            loss = pyramid_loss(
                self.levels,
                batch.flow,
                batch.valid,
                self.config.model.reach,
                self.config.loss,
                num_valid,
            )
            (loss / self.config.optimizer.accumulate).backward()
        with torch.no_grad():
            error = end_point_error(self.levels[-1].refined, batch.flow)
            epe = (error * batch.valid).sum() / num_valid.clamp(min=1)
        return self.processes.sum(torch.stack([loss.detach(), epe])) / world

    def _forward(self, batch: FlowBatch) -> list[LevelFlow]:
        reduced = self.config.optimizer.precision == "bf16"
        with torch.autocast(self.processes.device.type, torch.bfloat16, enabled=reduced):
            return self.parallel(normalize(batch.image1), normalize(batch.image2))

    def _training_mode(self) -> None:
        self.parallel.train()
        if self.config.optimizer.freeze_norm:
            freeze_norms(self.model)

    def _count(self, *, finite: bool) -> None:
        self.step += 1
        self.skipped += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1

    def checkpoint(self) -> dict[str, Any]:
        """All that is needed to go on as if nothing had happened."""
        return {
            "config": to_toml(self.config),
            "step": self.step,
            "progress": self.progress,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "random": torch.get_rng_state(),
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Go back to where `checkpoint` was made."""
        self.step, self.progress = checkpoint["step"], checkpoint["progress"]
        self.skipped = checkpoint["skipped"]
        self.skipped_in_a_row = checkpoint["skipped_in_a_row"]
        self.model.load_state_dict(checkpoint["model"], strict=True)
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        if self.average is not None:
            self.average.model.load_state_dict(checkpoint["average"], strict=True)
        torch.set_rng_state(checkpoint["random"])

    def weights(self) -> Weights:
        """The weights to use: the average where there is one."""
        source = self.average.model if self.average else self.model
        tensors = {key: tensor.detach().cpu() for key, tensor in source.state_dict().items()}
        about = {
            "recipe": self.config.name,
            "steps": str(self.step),
            "pairs": str(self.step * self.config.batch),
        }
        return Weights(self.config.model, tensors, about)


def train(
    config: TrainConfig,
    source: BatchSource,
    folder: RunFolder,
    processes: Processes,
    *,
    initial: str | Path | None = None,
    resume: bool = False,
    limits: Limits | None = None,
    quiet: bool = False,
) -> Outcome:
    """Run a stage to its end, a limit or a signal; the folder holds a checkpoint at any time."""
    limits = limits or Limits()
    if processes.is_first:
        folder.prepare(config, resume=resume)
    processes.any(False)  # the others wait until the folder is ready
    checkpoint = folder.last(config)
    trainer = Trainer(config, processes, None if checkpoint else initial)
    if checkpoint:
        trainer.restore(checkpoint)
    journal = (
        Journal(folder.log, config.steps, trainer.step, quiet=quiet) if processes.is_first else None
    )
    try:
        with StopSignal() as stop:
            return _run(trainer, source, folder, journal, limits, stop)
    finally:
        if journal is not None:
            journal.close()


def _run(
    trainer: Trainer,
    source: BatchSource,
    folder: RunFolder,
    journal: Journal | None,
    limits: Limits,
    stop: StopSignal,
) -> Outcome:
    config, processes = trainer.config, trainer.processes
    parts = config.optimizer.accumulate
    size = processes.share(config.batch, parts)
    batches = source.batches(size, trainer.step * parts, processes)
    clock = Clock(config.steps, limits.minutes, trainer.progress)
    epe = float("nan")
    while True:
        trainer.progress = clock.progress(trainer.step)
        fitted = limits.epe is not None and epe < limits.epe
        finished = trainer.progress >= 1 or fitted
        wish = processes.any(stop.received is not None)
        if finished or wish or (trainer.step and trainer.step % config.save_every == 0):
            _save(trainer, folder)
        if finished or wish:
            return Outcome(trainer.step, epe, finished, stop.received)
        values = trainer.train_step(batches, trainer.progress)
        epe = values.get("epe", epe)
        _note(trainer, journal, values)
        _check_patience(trainer, folder)


def _save(trainer: Trainer, folder: RunFolder) -> None:
    if trainer.processes.is_first:
        folder.save(trainer.checkpoint(), encode_weights(trainer.weights()))


def _note(trainer: Trainer, journal: Journal | None, values: dict[str, float]) -> None:
    if journal is None:
        return
    config, step = trainer.config, trainer.step
    journal.step(step, config.batch, max(trainer.progress, step / config.steps), values)
    if "loss" not in values:
        journal.say(f"step {step}: the loss or a gradient was not finite; skipped")
    if step % config.log_every == 0:
        journal.entry(step, {"skipped": float(trainer.skipped)})
    if config.picture_every and step % config.picture_every == 0:
        journal.picture(step, training_sheet(trainer.batch, trainer.levels))


def _check_patience(trainer: Trainer, folder: RunFolder) -> None:
    if trainer.skipped_in_a_row < _PATIENCE:
        return
    if trainer.processes.is_first:
        folder.save_bad_batch(vars(trainer.batch))
    raise InputError(
        f"the loss was not finite {_PATIENCE} times in a row, last at step {trainer.step}; that "
        f"batch is in {folder.bad_batch}; try a lower optimizer.learning_rate, optimizer.clip=1, "
        f"or --overfit 8 to find out"
    )
