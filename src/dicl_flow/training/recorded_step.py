"""A whole training step as one CUDA graph: the same kernels, without the gaps between them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..accelerated.inference import cudnn_flags
from ..data import FlowBatch
from .averaging import WeightAverage

_WARM_UP = 3  # eager runs before recording: cuDNN chooses, Triton compiles, the allocator settles


class _Recording(NamedTuple):
    batch: FlowBatch
    """Where the graph reads."""
    graph: torch.cuda.CUDAGraph
    result: Tensor
    """Where it writes."""


class RecordedStep:
    """Gradients, clipping, optimizer and average of a step, recorded once a shape, then replayed.

    `backward(batch)` leaves gradients in the parameters and returns (loss, EPE). A step that is
    not finite changes nothing: the optimizer and the norms' statistics are told on the device.
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
        self._recordings: dict[torch.Size, _Recording] = {}

    def __call__(self, batch: FlowBatch, rate: float, follow: float) -> Tensor:
        """Take a step; return (loss, EPE, gradient norm). `follow` is the average's rate."""
        shape = batch.flow.shape
        if shape not in self._recordings:
            self._recordings[shape] = self._record(batch)
        recording = self._recordings[shape]
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
        # first in line: what is made beside the step takes what the step leaves free
        stream, graph = torch.cuda.Stream(priority=-1), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), cudnn_flags(benchmark=True):
            for _ in range(_WARM_UP):
                self._model.zero_grad(set_to_none=True)
                self._backward(batch)
            for buffer, value in zip(self._model.buffers(), before, strict=True):
                buffer.copy_(value)  # no trace of the warm-up
            self._model.zero_grad(set_to_none=True)  # so that replays overwrite, not add
            with torch.cuda.graph(graph, stream=stream):
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
        if self._average is not None:  # of what is finite now
            self._average.follow(self._model, torch.where(finite, self._follow, 0))
        return result

    def _prepare_optimizer(self) -> None:
        """Let the optimizer make its state, without a step, and read its rate from the device."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate
        if not self._optimizer.state:
            for parameter in self._model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            self._optimizer.step()  # of length zero
            for state in self._optimizer.state.values():
                state["step"].zero_()
