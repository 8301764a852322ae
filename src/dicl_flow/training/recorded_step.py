"""A whole training step as one CUDA graph: the same kernels without launch gaps."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..accelerated.settings import cudnn_flags
from ..data import FlowBatch
from .averaging import WeightAverage

_WARM_UP = 3  # runs before recording: cuDNN selects algorithms, Triton compiles, memory is reserved


class _Recording(NamedTuple):
    batch: FlowBatch
    """The input of the graph."""
    graph: torch.cuda.CUDAGraph
    result: Tensor
    """The output of the graph."""


class RecordedStep:
    """Gradients, clipping, optimizer and average of a step, recorded once per key, then replayed.

    `backward(batch)` leaves gradients in the parameters and returns (loss, EPE). A step that is
    not finite changes nothing; that is decided on the device.

    All recordings share one memory pool. Each writes there before it reads: whatever lasts from
    step to step (parameters, statistics, optimizer state, averages, batches) is allocated outside.
    What a recording leaves in the pool (its result, the flows of its levels, gradients) is valid
    until another one is replayed.
    """

    def __init__(
        self,
        backward: Callable[[FlowBatch], Tensor],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: WeightAverage | None,
        clip: float,
    ) -> None:
        self._backward, self._model, self._optimizer = backward, model, optimizer
        self._average, self._clip = average, clip
        device = next(model.parameters()).device
        self._rate, self._follow = torch.zeros((), device=device), torch.zeros((), device=device)
        self._recordings: dict[Hashable, _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        # One stream for all recordings, because memory is reused only on the stream that used it.
        # High priority: rendering of the next batch gets what the step leaves free.
        self._stream = torch.cuda.Stream(priority=-1)

    def __call__(self, key: Hashable, batch: FlowBatch, rate: float, follow: float) -> Tensor:
        """Take a step; return (loss, EPE, gradient norm). `follow` is the rate of the average.

        Steps with the same `key` are the same computation on batches of the same shape.
        """
        if key not in self._recordings:
            self._recordings[key] = self._record(batch)
        recording = self._recordings[key]
        for mine, given in zip(vars(recording.batch).values(), vars(batch).values(), strict=True):
            mine.copy_(given, non_blocking=True)
        self._rate.fill_(rate)
        self._follow.fill_(follow)
        recording.graph.replay()
        return recording.result

    def _record(self, batch: FlowBatch) -> _Recording:
        batch = FlowBatch(*(tensor.clone() for tensor in vars(batch).values()))
        self._prepare_optimizer()
        before = [buffer.clone() for buffer in self._model.buffers()]
        stream, graph = self._stream, torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), cudnn_flags(benchmark=True):
            for _ in range(_WARM_UP):
                self._model.zero_grad(set_to_none=True)
                self._backward(batch)
            for buffer, value in zip(self._model.buffers(), before, strict=True):
                buffer.copy_(value)  # undo the warm-up
            self._model.zero_grad(
                set_to_none=True
            )  # so that replays overwrite gradients instead of adding to them
            with torch.cuda.graph(graph, self._pool, stream):
                result = self._step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return _Recording(batch, graph, result)

    def _step(self, batch: FlowBatch) -> Tensor:
        statistics = [buffer for buffer in self._model.buffers() if buffer.is_floating_point()]
        before = [buffer.clone() for buffer in statistics]
        totals = self._backward(batch)
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        result = torch.cat([totals, norm[None]])
        finite = result.isfinite().all()
        self._optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
        self._optimizer.step()
        for buffer, value in zip(statistics, before, strict=True):
            torch.where(finite, buffer, value, out=buffer)
        if self._average is not None:  # the parameters are finite in any case
            self._average.follow(self._model, torch.where(finite, self._follow, 0))
        return result

    def _prepare_optimizer(self) -> None:
        """Create the optimizer state without a step, and put the learning rate on the device."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate
        if not self._optimizer.state:
            for parameter in self._model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self._optimizer.step()  # with learning rate 0
            for state in self._optimizer.state.values():
                state["step"].zero_()
