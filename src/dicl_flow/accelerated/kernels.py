"""What all kernels share: Triton, the layout of tensors, and compilation side by side."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise InputError(
        "the accelerated layers need Triton on a GPU, which comes with the CUDA builds of torch on "
        "Linux; install one of those, or use the plain backend"
    ) from error

__all__ = ["Kernel", "check", "compiling", "in_rows", "kernel", "tl", "triton"]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_compiling = ContextVar("compiling", default=False)


def check(tensor: Tensor) -> None:
    """Refuse a (B, C, H, W) tensor that the kernels cannot read."""
    if not (tensor.is_cuda or triton.knobs.runtime.interpret):
        raise InputError(
            f"the kernels run on CUDA devices, got a tensor on {tensor.device}; "
            f"use the plain backend there"
        )
    if tensor.dtype not in DTYPES:
        raise InputError(
            f"the kernels compute in {', '.join(map(str, DTYPES))}, got {tensor.dtype}"
        )
    if not tensor.is_contiguous(memory_format=torch.channels_last):
        raise InputError(
            f"the kernels need channels_last tensors, got strides {tensor.stride()} for shape "
            f"{tuple(tensor.shape)}; call model.to(memory_format=torch.channels_last)"
        )


def in_rows(gradient: Tensor) -> tuple[Tensor, int]:
    """A (B, C, H, W) tensor whose pixels are at equal distances, and that distance in elements.

    Slices along the channels are so already (the gradient of a concatenation); others are copied.
    """
    _, channels, height, width = gradient.shape
    stride = gradient.stride(3)
    regular = (height * width * stride, 1, width * stride, stride)
    if gradient.stride() == regular and stride >= channels:
        return gradient, stride
    return gradient.contiguous(memory_format=torch.channels_last), channels


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
