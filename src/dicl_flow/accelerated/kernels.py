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
from .private import compile_in, is_interpreted, make_launcher

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise InputError(
        "the accelerated layers need Triton on a GPU, which comes with the CUDA builds of torch on "
        "Linux; install one of those, or use the plain backend"
    ) from error

__all__ = ["tl", "triton"]  # in addition to what is defined here
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_compiling = ContextVar("compiling", default=False)


def check(tensor: Tensor) -> None:
    """Refuse a (B, C, H, W) tensor that the kernels cannot read."""
    if not (tensor.is_cuda or is_interpreted()):
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


def new_map(shape: tuple[int, int, int, int], like: Tensor) -> Tensor:
    """Memory for a (B, C, H, W) map, channels last, with the precision and device of `like`."""
    order = torch.channels_last
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=order)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The precision of autocast, or else that of `tensor`."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def tile_shape(channels: int, elements: int) -> dict[str, int]:
    """Of a tile of rows, each with all channels of a pixel: Triton's sides are powers of two."""
    columns = triton.next_power_of_2(channels)
    return {"rows": max(elements // columns, 1), "columns": columns}


@triton.constexpr_function  # type: ignore[untyped-decorator]
def product_side(count: int) -> int:
    """The side of a tile that is multiplied and has `count` used rows or columns: at least 16."""
    return max(triton.next_power_of_2(count), 16)


class Kernel:
    """A kernel that is launched as Triton's are, `kernel[grid](...)`, where its tensors are."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        compiles = _compiling.get()
        launch = partial(self._compiled.warmup, grid=grid) if compiles else self._compiled[grid]
        return partial(_on_device, launch)


def _on_device(launch: Callable[..., object], *arguments: Any, **constants: Any) -> object:
    """Launch where the tensors are: the current device may be another."""
    with torch.cuda.device_of(next(each for each in arguments if isinstance(each, Tensor))):
        return launch(*arguments, **constants)


def kernel(sizes: str = "") -> Callable[[Callable[..., None]], Kernel]:
    """As `triton.jit`, but compiled once for all values of the parameters named in `sizes`."""
    return lambda function: Kernel(triton.jit(do_not_specialize=sizes.split())(function))


@contextmanager
def compiling() -> Iterator[None]:
    """Launches of this thread only compile, all ready at the end; their outputs stay undefined."""
    token = _compiling.set(True)
    try:
        with _Pool() as pool, compile_in(pool):
            yield
    finally:
        _compiling.reset(token)


class _Pool(ThreadPoolExecutor):
    """Threads that compile kernels, and what launches them."""

    def submit(self, compile_kernel: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]
        """Compile a kernel, then make its launcher."""
        number = torch.cuda.current_device()  # another thread starts with the first device

        def ready() -> Any:
            compiled = compile_kernel()
            with torch.cuda.device(number):
                make_launcher(compiled)
            return compiled

        return super().submit(ready)
