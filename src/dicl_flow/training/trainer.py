"""The state of a training run and the step that updates it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ..accelerated.settings import has_tf32, training_arithmetic, warn_if_emulated
from ..config import TrainConfig, to_toml
from ..data import FlowBatch
from ..errors import InputError
from ..models import LevelFlow, build
from ..ops import normalize
from ..weights import Weights
from .averaging import WeightAverage
from .backend import accelerated, choose_backend
from .distributed import Processes, distribute, share_norms
from .gauges import Gauges, level_gauges
from .loss import end_point_error, training_loss
from .matching_loss import matching_weight
from .optimizer import build_optimizer, learning_rate
from .recorded_step import RecordedStep
from .second_pass import enlarged, first_pass, is_second_pass, second_pass_config
from .start import (
    RANDOM,
    freeze_norms,
    freeze_parts,
    fresh_levels,
    origin,
    pairs_behind,
    start_from,
)
from .validation import NOT_VALIDATED, Validated

_FEEDING = (
    "padding",
    "max_pixels",
    "multiple",
)  # settings of a model that say how images are fed to it


class Trainer:
    """Model, optimizer, average and counters of a run, and the step that updates them."""

    def __init__(
        self, config: TrainConfig, processes: Processes, initial: str | Path | None = None
    ) -> None:
        torch.manual_seed(config.seed)
        self.config, self.processes = config, processes
        if config.second_pass.every and processes.world_size > 1:
            raise InputError("second_pass.every is for one process; run it without torchrun")
        if processes.is_first:
            instead = "set the recipe's optimizer.precision to fp32"
            warn_if_emulated(config.optimizer.precision, processes.device, instead)
        model = build(config.model)
        # images are fed as they were to the weights that the run starts from
        frozen = config.optimizer.frozen or ()
        fed = config.model if initial is None else start_from(model, initial, frozen)
        freeze_parts(model, frozen)
        self.feeding: dict[str, Any] = {name: getattr(fed, name) for name in _FEEDING}
        self.pairs_before = 0 if initial is None else pairs_behind(initial)
        self.fresh_levels = () if initial is None else fresh_levels(config.model, initial)
        self.started_from = RANDOM if initial is None else origin(initial)
        model = share_norms(model.to(processes.device), processes)
        self.backend = choose_backend(config, processes)
        fused = self.backend == "fused"
        self.model = accelerated(model) if fused else model
        self.parallel = distribute(self.model, processes)
        self.optimizer = build_optimizer(self.model, config.optimizer, fused=fused)
        decay = config.optimizer.average
        self.average = WeightAverage(self.model, decay) if decay else None
        clip = config.optimizer.clip or float("inf")
        recorded = (self._backward, self.model, self.optimizer, self.average, clip)
        self.recorded = RecordedStep(*recorded) if fused else None
        # on the device, where a recorded step reads the current value
        self._matching_weight = torch.zeros((), device=processes.device)
        self._upcoming: FlowBatch | None = None
        self._levels: dict[tuple[torch.Size, bool], list[LevelFlow]] = {}
        self._second_pass = False
        self.step, self.pairs, self.progress = 0, 0, 0.0
        self.skipped, self.skipped_in_a_row = 0, 0
        self.validated = NOT_VALIDATED

    def train_step(self, batches: Iterator[FlowBatch], progress: float) -> dict[str, float]:
        """Take one step of the optimizer; return loss, EPE, gradient norm and learning rate."""
        self._training_mode()
        self._second_pass = is_second_pass(self.config, self.step)
        rate = learning_rate(self.config, self.step, progress)
        self._matching_weight.fill_(matching_weight(self.config.loss, progress))
        take = self._eager_step if self.recorded is None else self._recorded_step
        with training_arithmetic(self.config.optimizer.precision):
            found = take(batches, rate)
        values = dict(zip(("loss", "epe", "gradient_norm"), found, strict=True))
        finite = all(map(isfinite, values.values()))
        self._count(finite=finite)
        return {**(values if finite else {}), "learning_rate": rate}

    def _eager_step(self, batches: Iterator[FlowBatch], rate: float) -> list[float]:
        """Step if all is finite, otherwise change nothing. Return loss, EPE and gradient norm."""
        statistics = [buffer.clone() for buffer in self.model.buffers()]
        device, settings = self.processes.device, self.config.optimizer
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        totals = torch.zeros(2, device=device)
        for part in range(settings.accumulate):
            self.batch = next(batches).to(device)
            totals += self._backward(self.batch, last=part == settings.accumulate - 1)
        totals /= settings.accumulate
        norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), settings.clip or float("inf")
        )
        values: list[float] = torch.cat([totals, norm[None]]).tolist()
        if all(map(isfinite, values)):
            self.optimizer.step()
            if self.average is not None:
                self.average.follow(self.model, self.average.rate(self.step))
        else:
            torch._foreach_copy_(list(self.model.buffers()), statistics)
        return values

    def _recorded_step(self, batches: Iterator[FlowBatch], rate: float) -> list[float]:
        """Do the same by replaying a recording; meanwhile the next batch is made."""
        assert self.recorded is not None
        follow = self.average.rate(self.step) if self.average else 0.0
        self.batch = (self._upcoming or next(batches)).to(self.processes.device)
        values = self.recorded(self._key(self.batch), self.batch, rate, follow)
        self._upcoming = next(batches)
        return values.tolist()

    def _backward(self, batch: FlowBatch, *, last: bool = True) -> Tensor:
        """Add the gradients of one part of a batch; return mean loss and EPE of all processes."""
        parallel, average = self.parallel, self.processes.average
        num_valid = average(batch.valid.sum())
        wait = isinstance(parallel, DistributedDataParallel) and not last
        with parallel.no_sync() if wait else nullcontext():  # type: ignore[operator]
            levels, start = self._forward(batch)
            # detached, so that the memory of the backward pass is freed
            self._levels[self._key(batch)] = [level.detach() for level in levels]
            config = second_pass_config(self.config) if self._second_pass else self.config
            weight, fused = self._matching_weight, self.backend == "fused"
            loss = training_loss(levels, batch, config, average, weight, start, accelerated=fused)
            (loss / self.config.optimizer.accumulate).backward()
        with torch.no_grad():
            error = end_point_error(levels[-1].refined, batch.flow, self.model.upsample)
            epe = (error * batch.valid).sum() / num_valid.clamp(min=1)
        return average(torch.stack([loss.detach(), epe]))

    def _forward(self, batch: FlowBatch) -> tuple[list[LevelFlow], Tensor | None]:
        """Return the flow of each level that runs, and the flow that the first started from."""
        images = normalize(batch.image1), normalize(batch.image2)
        if not self._second_pass:
            with self._arithmetic():
                return self.parallel(*images), None
        initial = first_pass(self.model, *images, self._arithmetic)
        self._training_mode()
        if self.config.second_pass.enlarged:
            images = enlarged(images[0]), enlarged(images[1])
        # a new autocast: it caches cast weights, and those of the first pass have no gradient
        with self._arithmetic():
            return self.parallel(*images, initial), initial.flow

    def _arithmetic(self) -> AbstractContextManager[object]:
        reduced = self.config.optimizer.precision == "bf16"
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=reduced)

    @property
    def precision(self) -> str:
        """The number format of the convolutions on this device: "tf32" needs a GPU that has it."""
        wanted, device = self.config.optimizer.precision, self.processes.device
        return "fp32" if wanted == "tf32" and not has_tf32(device) else wanted

    def _key(self, batch: FlowBatch) -> tuple[torch.Size, bool]:
        """The key of a step: steps with the same key are the same computation."""
        return batch.flow.shape, self._second_pass

    def _training_mode(self) -> None:
        self.parallel.train()
        if self.config.optimizer.frozen:
            freeze_parts(self.model, self.config.optimizer.frozen)
        if self.config.optimizer.freeze_norm:
            freeze_norms(self.model)

    @property
    def levels(self) -> list[LevelFlow]:
        """The flows of all levels for `batch`; recordings of other keys have their own."""
        return self._levels[self._key(self.batch)]

    def gauges(self) -> Gauges:
        """Return the gauges of all levels for `batch`; waits for the device.

        Empty for a second pass, in which not all levels run.
        """
        if self._second_pass:
            return {}
        return level_gauges(self.levels, self.batch, self.config.model.strides, self.model.upsample)

    @property
    def pairs_total(self) -> int:
        """Number of pairs that the weights were trained on, in this run and in earlier ones."""
        return self.pairs_before + self.pairs

    @property
    def pairs_of_step(self) -> int:
        """Number of pairs of the last step, over all processes."""
        return len(self.batch.flow) * self.config.optimizer.accumulate * self.processes.world_size

    def _count(self, *, finite: bool) -> None:
        self.step += 1
        self.pairs += self.pairs_of_step
        self.skipped += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1

    def checkpoint(self) -> dict[str, Any]:
        """Return all that is needed to resume the run."""
        return {
            "config": to_toml(self.config),
            "feeding": self.feeding,
            "step": self.step,
            "pairs": self.pairs,
            "pairs_before": self.pairs_before,
            "started_from": self.started_from,
            "progress": self.progress,
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
            "validated": asdict(self.validated),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict(self.model) if self.average else None,
            "random": torch.get_rng_state(),
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state of `checkpoint`."""
        self.step, self.pairs = checkpoint["step"], checkpoint["pairs"]
        self.pairs_before = checkpoint["pairs_before"]
        self.started_from = checkpoint.get("started_from", "not recorded")  # of an older version
        self.progress = checkpoint["progress"]
        self.feeding = checkpoint["feeding"]
        self.skipped = checkpoint["skipped"]
        self.skipped_in_a_row = checkpoint["skipped_in_a_row"]
        self.validated = Validated(**checkpoint.get("validated", {}))  # none in an older version
        self.model.load_state_dict(checkpoint["model"], strict=True)
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        if self.average is not None:
            self.average.model.load_state_dict(checkpoint["average"], strict=True)
        torch.set_rng_state(checkpoint["random"])

    def weights(self) -> Weights:
        """Return the weights for estimation: the average, if there is one."""
        averaged = self.average.state_dict(self.model) if self.average else None
        state = averaged or self.model.state_dict()
        tensors = {key: tensor.detach().cpu() for key, tensor in state.items()}
        about = {
            "recipe": self.config.name,
            "steps": str(self.step),
            "pairs": str(self.pairs),
            "pairs_total": str(self.pairs_total),
            "started_from": self.started_from,
            "precision": self.precision,
        }
        return Weights(replace(self.config.model, **self.feeding), tensors, about)
