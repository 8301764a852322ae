"""Recordings of what a GPU computes (CUDA graphs), and a second stream for what can run at once."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

_WARM_UP = 2  # eager runs before the recording: cuDNN chooses
# CUDA records one graph of a process at a time; a network keeps parts of the pair it is at.
_not_replaying = Lock()
# A server has batches of 1, 2, 4 and 8 pairs, in several sizes; one more costs about a second.
MOST_KEPT, BYTES_KEPT = 32, 2 << 30
Key = TypeVar("Key")
Shapes: TypeAlias = tuple[torch.Size, ...]


def surplus(sizes: Mapping[Key, int]) -> list[Key]:
    """Bytes of recordings, the oldest first -> which to drop; the newest is always kept."""
    total = 0
    for newer, size in enumerate(reversed([*sizes.values()])):
        total += size
        if newer and (newer >= MOST_KEPT or total > BYTES_KEPT):
            return [*sizes][: len(sizes) - newer]
    return []


@contextmanager
def record(graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph` without garbage collection: it may free a graph, which ends a capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, **options):
            yield
    finally:
        if collecting:
            gc.enable()


class Recording(NamedTuple):
    """A graph, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    output: Tensor

    def replay(self, inputs: Iterable[Tensor]) -> Tensor:
        """Compute the output of other values; the next replay overwrites it."""
        for own, new in zip(self.inputs, inputs, strict=True):
            own.copy_(new, non_blocking=True)
        self.graph.replay()
        return self.output

    def nbytes(self) -> int:
        """Memory that it does not share with other recordings."""
        return sum(tensor.nbytes for tensor in (*self.inputs, self.output))


class Graphs:
    """Calls `compute` by replaying a recording of it, one for each shape that repeats.

    A recording takes a second and saves milliseconds: it is made in the second call of a shape. The
    last `MOST_KEPT` are kept, fewer if their inputs and outputs take more than `BYTES_KEPT`; the
    rest of their memory is shared. Calls from several threads wait for each other.
    """

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self._compute, self._seen = compute, set[Shapes]()
        self._recordings: OrderedDict[Shapes, Recording] = OrderedDict()
        self._lock, self._done = Lock(), torch.cuda.Event()
        self._last: torch.cuda.Stream | None = None
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What `compute` returns, in its own memory."""
        device = inputs[0].get_device()  # a number: torch looks an object up each time
        with self._lock, torch.cuda.device(device):
            stream = torch.cuda.current_stream(device)
            if stream != self._last:  # that of another thread
                stream.wait_event(self._done)
            self._last, output = stream, self._run(inputs)
            self._done.record(stream)
            return output

    def _run(self, inputs: tuple[Tensor, ...]) -> Tensor:
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes in self._seen:
            return self._find(shapes, inputs).replay(inputs).clone()
        output = self._first(inputs)
        self._seen.add(shapes)
        return output

    def _first(self, inputs: tuple[Tensor, ...]) -> Tensor:
        from .kernels import compiling

        with _not_replaying:
            if not self._seen:
                with compiling():  # all kernels at the same time, not each when it is reached
                    self._compute(*inputs)
            return self._compute(*inputs)

    def _find(self, shapes: Shapes, inputs: tuple[Tensor, ...]) -> Recording:
        if shapes not in self._recordings:
            with _not_replaying:
                self._recordings[shapes] = self._record(inputs)
            for old in surplus({key: kept.nbytes() for key, kept in self._recordings.items()}):
                del self._recordings[old]
                self._seen.discard(old)
        self._recordings.move_to_end(shapes)
        return self._recordings[shapes]

    def _record(self, inputs: tuple[Tensor, ...]) -> Recording:
        torch.cuda.empty_cache()  # what the first call used belongs to another stream
        own = tuple(tensor.clone() for tensor in inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._compute(*own)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # otherwise the memory of the eager runs would be kept too
        graph = torch.cuda.CUDAGraph()
        with record(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = self._compute(*own)
        return Recording(graph, own, output)


class SideStream:
    """A second stream; without CUDA, it changes nothing.

    What both streams use must be kept until they have joined.
    """

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A stream belongs to its process."""
        return {"_stream": None}

    @contextmanager
    def fork(self, device: torch.device) -> Iterator[None]:
        """What starts in this block waits for what was started before, not the reverse."""
        if device.type != "cuda":
            yield
            return
        # high priority: what it does is small, and would wait for a large kernel to end
        self._stream = self._stream or torch.cuda.Stream(device, priority=-1)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self, device: torch.device) -> None:
        """What starts from now on waits for what was started in `fork`."""
        if self._stream is not None:
            torch.cuda.current_stream(device).wait_stream(self._stream)
