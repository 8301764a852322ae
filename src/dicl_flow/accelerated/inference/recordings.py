"""Recordings of what a GPU computes for one shape (CUDA graphs): no gaps between kernels."""

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

_WARM_UP = 2  # eager runs before the recording: cuDNN chooses, Triton compiles
_recording = Lock()  # CUDA records one graph of a process at a time


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor


class Graphs:
    """Calls `compute` by replaying a recording of it, one for each shape of its inputs.

    The last `capacity` shapes are kept; they share their memory. Calls from several threads
    wait for each other.
    """

    def __init__(self, compute: Callable[..., Tensor], capacity: int = 4) -> None:
        self._compute, self._capacity = compute, capacity
        self._recordings: OrderedDict[tuple[torch.Size, ...], _Recording] = OrderedDict()
        self._lock, self._done = Lock(), torch.cuda.Event()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What `compute` returns, in its own memory."""
        with self._lock, torch.cuda.device(inputs[0].device):
            torch.cuda.current_stream().wait_event(self._done)  # other threads, other streams
            recording = self._find(inputs)
            for mine, given in zip(recording.inputs, inputs, strict=True):
                mine.copy_(given)
            recording.graph.replay()
            output = recording.output.clone()
            self._done.record()
            return output

    def _find(self, inputs: tuple[Tensor, ...]) -> _Recording:
        key = tuple(tensor.shape for tensor in inputs)
        if key not in self._recordings:
            while len(self._recordings) >= self._capacity:
                self._recordings.popitem(last=False)
            with _recording:
                self._recordings[key] = self._record(inputs)
        self._recordings.move_to_end(key)
        return self._recordings[key]

    def _record(self, inputs: tuple[Tensor, ...]) -> _Recording:
        mine = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._compute(*mine)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # otherwise the memory of the eager runs would be kept too
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = self._compute(*mine)
        return _Recording(graph, mine, output)
