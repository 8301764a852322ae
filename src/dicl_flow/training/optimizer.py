"""The optimizer: its learning rate, the average of the weights, and a step of all together."""

import copy
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import cos, pi
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from ..accelerated.recording import record
from ..accelerated.settings import cudnn_flags
from ..config import OptimizerConfig, TrainConfig
from ..data import FlowBatch

_WARM_UP = 3  # runs before recording: cuDNN selects algorithms, Triton compiles, memory is reserved
Saved: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""Statistics of batch norm, and their values before the step."""


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, *, fused: bool = False
) -> torch.optim.Optimizer:
    """Return Adam or AdamW; norms, biases and the projection have no weight decay."""
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_weight = parameter.ndim > 1 and "projection" not in name
            (decayed if is_weight else others).append(parameter)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.kind]
    parts = ((decayed, config.weight_decay), (others, 0.0))
    groups = [{"params": part, "weight_decay": decay} for part, decay in parts if part]
    options = {"betas": (0.9, 0.999), "fused": fused or None, "capturable": fused}
    return kind(groups, lr=config.learning_rate, **options)


def learning_rate(config: TrainConfig, step: int, progress: float) -> float:
    """Return the learning rate of a step; `progress` goes from 0 to 1 over the run."""
    schedule = config.schedule
    factor = 1.0
    if schedule.kind == "step":
        passed = sum(progress * config.steps >= milestone for milestone in schedule.milestones)
        factor = schedule.factor**passed
    elif schedule.kind == "cosine":
        factor = _cosine((progress - schedule.hold) / (1 - schedule.hold), schedule.final)
    elif schedule.kind == "one-cycle":
        rising = progress / schedule.peak
        falling = (progress - schedule.peak) / (1 - schedule.peak)
        factor = rising if rising < 1 else _cosine(falling, schedule.final)
    warm = min(1.0, (step + 1) / schedule.warmup) if schedule.warmup else 1.0
    return config.optimizer.learning_rate * factor * warm


def _cosine(progress: float, final: float) -> float:
    return final + (1 - final) * (1 + cos(pi * min(max(progress, 0), 1))) / 2


class WeightAverage:
    """An exponential moving average of a model's parameters and of its batch norm statistics.

    In training, batch norm divides a rare scene by the variance of a batch that contains it, at
    inference by these statistics; the last few batches may not have contained such a scene.
    """

    # Not torch.optim.swa_utils.AveragedModel: its decay is a number, fixed when it is made, and
    # each update asks the device how many there were. A recorded step reads the rate on the device,
    # where it rises during warm-up and is 0 after a step that is not finite.

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    def rate(self, step: int) -> float:
        """How far to follow at a step; at first faster, to forget the initial weights."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def follow(self, model: nn.Module, rate: Tensor | float) -> None:
        """Move towards `model`."""
        mine, theirs = _numbers(self.model), _numbers(model)
        steps = torch._foreach_sub(theirs, mine)
        torch._foreach_mul_(steps, rate)
        torch._foreach_add_(mine, steps)

    @torch.no_grad()
    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The averages; integer buffers are copied from `model`."""
        for mine, theirs in zip(self.model.buffers(), model.buffers(), strict=True):
            if not mine.is_floating_point():
                mine.copy_(theirs)
        return self.model.state_dict()


def _numbers(model: nn.Module) -> list[Tensor]:
    statistics = (buffer for buffer in model.buffers() if buffer.is_floating_point())
    return [*model.parameters(), *statistics]


@dataclass
class OptimizerStep:
    """Gradients, clipping, optimizer and average; a step that is not finite changes nothing."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: WeightAverage | None
    clip: float
    """The largest norm of the gradients; 0: any."""

    def __call__(self, backward: Callable[[], Tensor], rate: float, follow: float) -> Tensor:
        """Take a step; return (loss, EPE, gradient norm). `follow` is the rate of the average.

        `backward` leaves gradients in the parameters and returns (loss, EPE).
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        return self._take(backward, self.model.buffers(), follow)

    def _take(
        self, backward: Callable[[], Tensor], statistics: Iterable[Tensor], follow: Tensor | float
    ) -> Tensor:
        saved = [(buffer, buffer.clone()) for buffer in statistics]
        totals = backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip or float("inf"))
        result = torch.cat([totals, norm[None]])
        self._update(result.isfinite().all(), saved, follow)
        return result

    def _update(self, finite: Tensor, saved: Saved, follow: Tensor | float) -> None:
        """Update parameters and average, or restore the statistics of batch norm."""
        if finite:
            self.optimizer.step()
            if self.average is not None:
                self.average.follow(self.model, follow)
        else:
            for buffer, value in saved:
                buffer.copy_(value)


class _Recording(NamedTuple):
    batch: FlowBatch
    """The input of the graph."""
    graph: torch.cuda.CUDAGraph
    result: Tensor
    """The output of the graph."""


@dataclass
class RecordedStep(OptimizerStep):
    """The same as one CUDA graph, recorded once per key, then replayed: no gaps between kernels.

    Whether a step is finite is decided on the device.

    All recordings share one memory pool. Each writes there before it reads: whatever lasts from
    step to step (parameters, statistics, optimizer state, averages, batches) is allocated outside.
    What a recording leaves in the pool (its result, the flows of its levels, gradients) is valid
    until another one is replayed.
    """

    def __post_init__(self) -> None:
        device = next(self.model.parameters()).device
        self._rate, self._follow = torch.zeros((), device=device), torch.zeros((), device=device)
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # One stream for all recordings, because memory is reused only on the stream that used it.
        # High priority: rendering of the next batch gets what the step leaves free.
        self._stream = torch.cuda.Stream(priority=-1)

    def replay(
        self,
        key: Hashable,
        batch: FlowBatch,
        backward: Callable[[FlowBatch], Tensor],
        rate: float,
        follow: float,
    ) -> Tensor:
        """Take a step; steps with the same `key` are the same computation on other values."""
        if key not in self._recordings:
            self._recordings[key] = self._record(batch, backward)
        recording = self._recordings[key]
        for mine, given in zip(vars(recording.batch).values(), vars(batch).values(), strict=True):
            mine.copy_(given, non_blocking=True)
        self._rate.fill_(rate)
        self._follow.fill_(follow)
        recording.graph.replay()
        return recording.result

    def _record(self, batch: FlowBatch, backward: Callable[[FlowBatch], Tensor]) -> _Recording:
        batch = type(batch)(*(tensor.clone() for tensor in vars(batch).values()))
        self._prepare_optimizer()
        before = [buffer.clone() for buffer in self.model.buffers()]
        stream, graph = self._stream, torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), cudnn_flags(benchmark=True):
            for _ in range(_WARM_UP):
                self.model.zero_grad(set_to_none=True)
                backward(batch)
            for buffer, value in zip(self.model.buffers(), before, strict=True):
                buffer.copy_(value)  # undo the warm-up
            # so that replays overwrite gradients instead of adding to them
            self.model.zero_grad(set_to_none=True)
            # "thread_local": meanwhile a thread of the loader pins memory, which "global" forbids
            how = {"stream": stream, "capture_error_mode": "thread_local"}
            with record(graph, pool=self._pool, **how):
                floats = [b for b in self.model.buffers() if b.is_floating_point()]
                result = self._take(lambda: backward(batch), floats, self._follow)
        torch.cuda.current_stream().wait_stream(stream)
        return _Recording(batch, graph, result)

    def _update(self, finite: Tensor, saved: Saved, follow: Tensor | float) -> None:
        self.optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self.optimizer.step()
        for buffer, value in saved:
            torch.where(finite, buffer, value, out=buffer)
        if self.average is not None:  # the parameters are finite in any case
            self.average.follow(self.model, torch.where(finite, follow, 0))

    def _prepare_optimizer(self) -> None:
        """Create the optimizer state without a step, and put the learning rate on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate
        if not self.optimizer.state:
            for parameter in self.model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()  # with learning rate 0
            for state in self.optimizer.state.values():
                state["step"].zero_()
