"""What a shape is worth: searches and recordings wait until it comes a second time."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import torch
from torch import Tensor

from .settings import cudnn_flags

Shapes: TypeAlias = tuple[torch.Size, ...]
_guessing = ContextVar("guessing", default=False)


class OnRepeat:
    """Calls `compute`; what takes a second and saves milliseconds is done when a shape repeats.

    A single pair waits for nothing. The frames of a video, the rows of a manifest and the
    requests to a server repeat their shape, and pay for it once, in the second call.
    """

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        self._compute, self._seen = compute, set[Shapes]()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """What `compute` returns."""
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes in self._seen:
            return self._again(shapes, inputs)
        with _first_guess():
            output = self._first(inputs)
        self._seen.add(shapes)
        return output

    def _first(self, inputs: tuple[Tensor, ...]) -> Tensor:
        return self._compute(*inputs)

    def _again(self, shapes: Shapes, inputs: tuple[Tensor, ...]) -> Tensor:
        return self._compute(*inputs)


@contextmanager
def _first_guess() -> Iterator[None]:
    token = _guessing.set(True)
    try:
        yield
    finally:
        _guessing.reset(token)


def searching(**settings: bool) -> AbstractContextManager[None]:
    """With these settings, cuDNN times its algorithms for each shape that repeats.

    What it has used once for a shape and its settings it keeps. Hence the first guess is taken as
    `deterministic`, which restricts only backward passes.
    """
    if _guessing.get():
        return cudnn_flags(benchmark=False, deterministic=True, **settings)
    return cudnn_flags(benchmark=True, **settings)


def exact_float32() -> AbstractContextManager[None]:
    """On CUDA, convolutions would use TF32, which has 10 bits; elsewhere this changes nothing.

    Without TF32 cuDNN's first guess can be ten times slower than its best algorithm; finding that
    takes seconds for each shape.
    """
    return searching(allow_tf32=False)
