"""A second stream of a GPU, for what can run at the same time."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class SideStream:
    """Where there is no CUDA, it changes nothing.

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
