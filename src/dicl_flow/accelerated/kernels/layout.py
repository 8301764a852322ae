"""Which tensors the kernels can read: channels last, used as rows of channels."""
# mypy: disable-error-code="import-untyped,import-not-found"

import torch
import triton
from torch import Tensor

from ...errors import InputError

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


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
