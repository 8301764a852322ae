"""The one place that calls private functions of torch and Triton.

Each is asked for first; where it is missing, a public function computes the same, more slowly.
"""

import os
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Where: TypeAlias = tuple[list[int], list[int], list[int]]  # stride, padding and dilation
_FEATURES: dict[str, tuple[object, str]] = {
    "amx": (torch.cpu, "_is_amx_tile_supported"),  # matrix units for bfloat16
    "bf16": (torch.ops.mkldnn, "_is_mkldnn_bf16_supported"),  # in oneDNN
    "fp16": (torch.ops.mkldnn, "_is_mkldnn_fp16_supported"),
    "nnpack": (torch, "_nnpack_available"),
    "vnni": (torch.cpu, "_is_vnni_supported"),  # sums of products of bytes
}
_ONEDNN = (
    "_convolution_pointwise",
    "_convolution_transpose_pointwise",
    "_reorder_convolution_weight",
    "_reorder_convolution_transpose_weight",
)


def _find(owner: object, name: str) -> Any:
    return getattr(owner, name, None)


def says(feature: str) -> bool:
    """Whether this processor has it: a key of `_FEATURES`; False if torch does not say."""
    function = _find(*_FEATURES[feature])
    return function is not None and bool(function())


def nnpack_convolve(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A 3x3 convolution by NNPACK, padded by 1: (B, in, H, W) -> (B, out, H, W)."""
    function = _find(torch, "_nnpack_spatial_convolution")
    if function is None:
        return F.conv2d(image, weight, bias, padding=1)
    return function(image, weight, bias, 1, 1)


def cudnn_convolve_relu(x: Tensor, weight: Tensor, bias: Tensor, where: Where) -> Tensor:
    """Convolution, bias and ReLU in one call of cuDNN."""
    function = _find(torch, "cudnn_convolution_relu")
    if function is None:
        stride, padding, dilation = where
        return F.conv2d(x, weight, bias, stride, padding, dilation).relu_()
    return function(x, weight, bias, *where, 1)


def has_onednn_convolutions() -> bool:
    """Whether `onednn_convolve` and `onednn_order` exist; else use torch's convolutions."""
    functions = [_find(torch.ops.mkldnn, name) for name in _ONEDNN]
    return all(functions) and _find(functions[0], "binary") is not None


def onednn_convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    where: Where,
    less: Tensor | None,
    *,
    up: bool,
    relu: bool,
) -> Tensor:
    """(Transposed) convolution, minus `less`, and ReLU in one call; for `onednn_order`'s weight."""
    (stride, padding, dilation), after = where, "relu" if relu else "none"
    known, steps = (weight, bias, padding), (stride, dilation, 1)
    functions = torch.ops.mkldnn
    if up:
        return functions._convolution_transpose_pointwise(x, *known, [0, 0], *steps, after, [], "")
    if less is None:
        return functions._convolution_pointwise(x, *known, *steps, after, [], "")
    return functions._convolution_pointwise.binary(  # "add" would copy the tensor first
        x, less, *known, *steps, "sub", None, after, [], ""
    )


def onednn_order(weight: Tensor, where: Where, shape: list[int], *, up: bool) -> Tensor:
    """The weight in the order that oneDNN wants for images of this shape."""
    stride, padding, dilation = where
    functions, rest = torch.ops.mkldnn, (dilation, 1, shape)
    if up:
        return functions._reorder_convolution_transpose_weight(
            weight, padding, [0, 0], stride, *rest
        )
    return functions._reorder_convolution_weight(weight, padding, stride, *rest)


def has_int8_convolutions() -> bool:
    """Whether `int8_order` and `int8_convolve` can be called."""
    functions = torch.ops.onednn
    return all(_find(functions, name) for name in ("qconv_prepack", "qconv2d_pointwise"))


def int8_order(weight: Tensor, steps: Tensor, where: Where, shape: list[int]) -> Tensor:
    """int8 weights, with the step of each output channel, as oneDNN wants them."""
    return torch.ops.onednn.qconv_prepack(weight, steps, 1.0, 0, *where, 1, shape)


def int8_convolve(
    x: Tensor,
    weight: Tensor,
    steps: Tensor,
    zero: Tensor,
    bias: Tensor,
    where: Where,
    *,
    last: bool,
) -> Tensor:
    """A convolution of uint8, with ReLU to uint8; the last one without, to float32."""
    dtype, after = (torch.float32, "none") if last else (torch.uint8, "relu")
    known = (weight, steps, zero, bias, *where, 1)
    return torch.ops.onednn.qconv2d_pointwise(x, 1.0, 0, *known, 1.0, 0, dtype, after, [], "")


def is_interpreted() -> bool:
    """Whether Triton interprets kernels, on a CPU, instead of compiling them."""
    import triton

    runtime = _find(_find(triton, "knobs"), "runtime")
    if runtime is None:
        return os.environ.get("TRITON_INTERPRET") == "1"
    return bool(runtime.interpret)


def compile_in(pool: Executor) -> AbstractContextManager[object]:
    """Let Triton compile kernels in the threads of `pool`; else it compiles one after another."""
    import triton

    mode = _find(triton, "AsyncCompileMode")
    return nullcontext() if mode is None else mode(pool)


def make_launcher(compiled: object) -> None:
    """Have a C compiler make what launches a kernel (0.2 s); else its first launch does."""
    _find(compiled, "run")  # a property, which makes it
