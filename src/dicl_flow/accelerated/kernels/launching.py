"""Kernels that can be compiled side by side, without being launched."""
# mypy: disable-error-code="import-untyped,import-not-found"

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
import triton

_compiling = ContextVar("compiling", default=False)


class Kernel:
    """A kernel that is launched as Triton's are: `kernel[grid](...)`."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        if _compiling.get():
            return partial(self._compiled.warmup, grid=grid)
        launch: Callable[..., object] = self._compiled[grid]
        return launch


def kernel(**options: Any) -> Callable[[Callable[..., None]], Kernel]:
    """As `triton.jit`."""
    return lambda function: Kernel(triton.jit(**options)(function))


@contextmanager
def compiling() -> Iterator[None]:
    """In this block, in this thread, launches only compile; at its end all kernels are ready.

    Their outputs stay undefined: nothing else may depend on these values.
    """
    token = _compiling.set(True)
    try:
        with _Pool() as pool, triton.AsyncCompileMode(pool):
            yield
    finally:
        _compiling.reset(token)


class _Pool(ThreadPoolExecutor):
    """Threads that compile kernels, and what launches them."""

    def submit(self, compile_kernel: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        """Compile a kernel; then have a C compiler make its launcher, which takes 0.2 s."""
        number = torch.cuda.current_device()  # another thread starts with the first device

        def ready() -> Any:
            compiled = compile_kernel()
            with torch.cuda.device(number):
                _ = compiled.run  # a property, which makes it
            return compiled

        return super().submit(ready)
