"""Copies of frames to the device: to a GPU while it computes the previous pair."""

from functools import cache

import torch
from torch import Tensor


def transfer(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a frame to `device`, whose computations do not wait for it."""
    device = torch.device(device)
    return _transfers(device)(tensor) if device.type == "cuda" else tensor.to(device)


class _Transfers:
    """Copies in a second stream, at most two frames ahead of the computation.

    From ordinary memory: to pin 1920x1080 first takes 13 ms on an H200, the copy 1 ms.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._before_last = torch.cuda.Event()

    def __call__(self, tensor: Tensor) -> Tensor:
        computing = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(self._stream):
            copy = tensor.to(self._stream.device)
        copy.record_stream(computing)  # its memory is free when that is done with it
        computing.wait_stream(self._stream)
        self._before_last.synchronize()  # otherwise the frames of a fast caller fill the memory
        self._before_last.record(computing)
        return copy


@cache
def _transfers(device: torch.device) -> _Transfers:
    return _Transfers(device)
