"""The state of a training run and the step that updates it."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..accelerated.settings import has_tf32, training_arithmetic, warn_if_emulated
from ..config import BEST, NORMAL, TrainConfig, to_toml
from ..data import FlowBatch
from ..errors import InputError
from ..models import FlowNetwork, InitialFlow, LevelFlow, build, own_keys, with_radii
from ..models.radii import freeze_all_but_own
from ..ops import Size, normalize, resize_flow_pixels, resize_pixels, size_in_multiples, size_of
from ..weights import LiveParts, Weights, read_weights
from .distributed import Processes, share_norms
from .loss import end_point_error, matching_weight, training_loss
from .monitoring import Gauges, Validated, level_gauges
from .optimizer import OptimizerStep, RecordedStep, WeightAverage, build_optimizer, learning_rate
from .photometric import has_photometric_loss
from .recipe import (
    RANDOM,
    freeze_norms,
    freeze_parts,
    fresh_levels,
    origin,
    pairs_behind,
    start_from,
)

_FEEDING = (
    "padding",
    "max_pixels",
    "multiple",
    "frame_size",
)  # settings of a model: how it is fed images
_KEPT = (  # in checkpoints, as it is
    *("feeding", "step", "pairs", "pairs_before", "started_from"),
    *("progress", "skipped", "skipped_in_a_row"),
)
_Key = tuple[torch.Size, bool, bool]
_SCALE = BEST.scales[1] / BEST.scales[0]  # frames of the second pass relative to those of the first


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
        self.backend = choose_backend(config, processes)
        self.model = self._build(initial)
        self.parallel: nn.Module = self.model
        if processes.world_size > 1:  # gradients are averaged
            self.parallel = DistributedDataParallel(self.model, broadcast_buffers=False)
        fused, decay = self.backend == "fused", config.optimizer.average
        self.optimizer = build_optimizer(self.model, config.optimizer, fused=fused)
        self.average = WeightAverage(self.model, decay) if decay else None
        updated = (self.model, self.optimizer, self.average, config.optimizer.clip)
        self._optimizer_step = RecordedStep(*updated) if fused else OptimizerStep(*updated)
        # on the device, where a recorded step reads the current value
        self._matching_weight = torch.zeros((), device=processes.device)
        self._upcoming: FlowBatch | None = None
        self._levels: dict[_Key, list[LevelFlow]] = {}
        self._second_pass = False
        self.step, self.pairs, self.progress = 0, 0, 0.0
        self.skipped, self.skipped_in_a_row = 0, 0
        self.validated = Validated()

    def _build(self, initial: str | Path | None) -> FlowNetwork:
        """Return the network to train, on its device, and note what it starts from."""
        config, processes = self.config, self.processes
        model, frozen = build(config.model), config.optimizer.frozen or ()
        # images are fed as they were to the weights that the run starts from
        fed = config.model if initial is None else start_from(model, initial, frozen)
        freeze_parts(model, frozen)
        self._completed = _to_complete(config, initial)
        model = with_radii(model, config.radii)
        self._seen = replace(config, model=model.config, quality=NORMAL)  # by the loss
        if config.radii:
            freeze_all_but_own(model, config.radii)
        self.feeding: dict[str, Any] = {name: getattr(fed, name) for name in _FEEDING}
        self.pairs_before = 0 if initial is None else pairs_behind(initial)
        self.fresh_levels = () if initial is None else fresh_levels(config.model, initial)
        self.started_from = RANDOM if initial is None else origin(initial)
        model = share_norms(model.to(processes.device), processes)
        if self.backend == "plain":
            return model
        from ..accelerated.training import accelerate

        return accelerate(model)

    def train_step(self, batches: Iterator[FlowBatch], progress: float) -> dict[str, float]:
        """Take one step of the optimizer; return loss, EPE, gradient norm and learning rate."""
        self._training_mode()
        self._second_pass = is_second_pass(self.config, self.step)
        rate = learning_rate(self.config, self.step, progress)
        self._matching_weight.fill_(matching_weight(self.config.loss, progress))
        with training_arithmetic(self.config.optimizer.precision):
            loss, epe, norm = self._take_step(batches, rate).tolist()
        self.step += 1
        self.pairs += self.pairs_of_step
        if not all(map(isfinite, (loss, epe, norm))):
            self.skipped, self.skipped_in_a_row = self.skipped + 1, self.skipped_in_a_row + 1
            return {"learning_rate": rate}
        self.skipped_in_a_row = 0
        return {"loss": loss, "epe": epe, "gradient_norm": norm, "learning_rate": rate}

    def _take_step(self, batches: Iterator[FlowBatch], rate: float) -> Tensor:
        """Step if all is finite, otherwise change nothing. Return loss, EPE and gradient norm."""
        take, follow = self._optimizer_step, self.average.rate(self.step) if self.average else 0.0
        if not isinstance(take, RecordedStep):
            return take(partial(self._backward_in_parts, batches), rate, follow)
        self.batch = (self._upcoming or next(batches)).to(self.processes.device)
        values = take.replay(self._key(self.batch), self.batch, self._backward, rate, follow)
        self._upcoming = next(batches)  # made while the device computes
        return values

    def _backward_in_parts(self, batches: Iterator[FlowBatch]) -> Tensor:
        """Add up the gradients of all parts of a batch; return mean loss and EPE."""
        device, parts = self.processes.device, self.config.optimizer.accumulate
        totals = torch.zeros(2, device=device)
        for part in range(parts):
            self.batch = next(batches).to(device)
            totals += self._backward(self.batch, last=part == parts - 1)
        return totals / parts

    def _backward(self, batch: FlowBatch, *, last: bool = True) -> Tensor:
        """Add the gradients of one part of a batch; return mean loss and EPE of all processes."""
        parallel, average = self.parallel, self.processes.average
        num_valid = average(batch.valid.sum())
        wait = isinstance(parallel, DistributedDataParallel) and not last
        with parallel.no_sync() if wait else nullcontext():  # type: ignore[operator]
            levels, start = self._forward(batch)
            # detached, so that the memory of the backward pass is freed
            self._levels[self._key(batch)] = [level.detach() for level in levels]
            config = _second_pass_config(self.config) if self._second_pass else self._seen
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
        initial = self._first_pass(*images)
        if self.config.second_pass.enlarged:
            images = _enlarged(images[0]), _enlarged(images[1])
        # a new autocast: it caches cast weights, and those of the first pass have no gradient
        with self._arithmetic():
            return self.parallel(*images, initial), initial.flow

    @torch.no_grad()
    def _first_pass(self, image1: Tensor, image2: Tensor) -> InitialFlow:
        """Return the flow of the first pass, at half the size, from which the second pass starts.

        As in estimation, batch norm uses its running statistics and leaves them unchanged.
        """
        size = size_of(image1)
        seen = size_in_multiples(_halved(size), self.model.config.pad_multiple)
        self.model.eval()
        with self._arithmetic():
            levels = self.model(resize_pixels(image1, seen), resize_pixels(image2, seen))
        flow = self.model.upsample(levels[-1].refined, seen)
        self._training_mode()
        return InitialFlow(resize_flow_pixels(flow, size), BEST.start)

    def _arithmetic(self) -> AbstractContextManager[object]:
        reduced = self.config.optimizer.precision == "bf16"
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=reduced)

    @property
    def precision(self) -> str:
        """The number format of the convolutions on this device: "tf32" needs a GPU that has it."""
        wanted, device = self.config.optimizer.precision, self.processes.device
        return "fp32" if wanted == "tf32" and not has_tf32(device) else wanted

    def _key(self, batch: FlowBatch) -> _Key:
        """Steps with the same key are the same computation."""
        return batch.flow.shape, self._second_pass, has_photometric_loss(self.config.loss, batch)

    def _training_mode(self) -> None:
        self.parallel.train()
        if self.config.radii:
            freeze_all_but_own(self.model, self.config.radii)
        if self.config.optimizer.frozen:
            freeze_parts(self.model, self.config.optimizer.frozen)
        if self.config.optimizer.freeze_norm:
            freeze_norms(self.model)

    @property
    def levels(self) -> list[LevelFlow]:
        """The flows of all levels for `batch`; recordings of other keys have their own."""
        return self._levels[self._key(self.batch)]

    def gauges(self) -> Gauges:
        """Return the gauges of all levels for `batch`; none for a second pass, which skips some."""
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

    def checkpoint(self) -> dict[str, Any]:
        """Return all that is needed to resume the run."""
        return {
            "config": to_toml(self.config),
            **{name: getattr(self, name) for name in _KEPT},
            "validated": asdict(self.validated),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict(self.model) if self.average else None,
            "random": torch.get_rng_state(),
        }

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Restore the state of `checkpoint`."""
        for name in _KEPT:
            setattr(self, name, checkpoint[name])
        self.validated = Validated(**checkpoint["validated"])
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
        if self._completed is not None:
            return _complete(self._completed, self.config, tensors, about)
        return Weights(replace(self.config.model, **self.feeding), tensors, about)


def choose_backend(config: TrainConfig, processes: Processes) -> str:
    """Return "plain" or "fused", which is refused where it cannot run."""
    alone = processes.world_size == 1
    if config.backend == "auto":
        able = processes.on_gpu and alone and config.optimizer.accumulate == 1
        return "fused" if able and find_spec("triton") is not None else "plain"
    if config.backend == "fused" and not processes.on_gpu:
        raise InputError("backend='fused' needs a CUDA GPU; elsewhere: `changes=['backend=plain']`")
    if config.backend == "fused" and not alone:
        raise InputError("backend='fused' trains on one GPU; use backend='plain' with torchrun")
    return config.backend


def _to_complete(config: TrainConfig, initial: str | Path | None) -> Weights | None:
    """Return the weights to which a run adds the parts of a quality; None: it trains all."""
    if not config.radii:
        return None
    if initial is None:
        raise InputError(f"parts for quality {config.quality!r} need initial weights")
    weights = read_weights(initial)
    if weights.config.levels != config.model.levels:
        raise InputError(f"{initial} has other levels than the recipe; change its model.levels")
    return weights


def _complete(
    weights: Weights, config: TrainConfig, tensors: Mapping[str, Tensor], about: Mapping[str, str]
) -> Weights:
    """Return the initial weights with the parts that were trained; a calibration of them is old."""
    own = {key: tensors[key] for key in own_keys(tensors, config.radii)}
    others = {n: c for n, c in weights.quality_calibrations.items() if n != config.quality}
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in about.items())
    described = {**weights.about, f"parts of quality {config.quality}": facts}
    return replace(
        weights,
        live=LiveParts(config.radii, own),
        quality_calibrations=others,
        about=described,
    )


def is_second_pass(config: TrainConfig, step: int) -> bool:
    """Whether a step trains the second pass; whole rounds through the frame sizes do, or none."""
    every, sizes = config.second_pass.every, max(len(config.render.sizes), 1)
    return every > 0 and step // sizes % every == every - 1


def _second_pass_config(config: TrainConfig) -> TrainConfig:
    """Return the settings for the levels that run in a second pass."""
    skipped = sum(stride > BEST.start for stride in config.model.strides)
    kinds = ("refined", "matched", "matching")
    weights = {kind: getattr(config.loss, kind)[skipped:] for kind in kinds}
    model = replace(config.model, levels=config.model.levels[skipped:])
    return replace(config, model=model, loss=replace(config.loss, **weights))


def _enlarged(image: Tensor) -> Tensor:
    """Scale (B, 3, H, W) down and up again: what the second pass sees of small frames."""
    small = resize_pixels(image, _halved(size_of(image)))
    return resize_pixels(small, size_of(image), "bicubic").clamp(-1, 1)


def _halved(size: Size) -> Size:
    height, width = (max(round(side / _SCALE), 1) for side in size)
    return height, width
