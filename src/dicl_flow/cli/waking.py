"""CUDA is loaded in the background while torch is imported."""

import ctypes
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread


def wake_cuda(device: str) -> None:
    """Load CUDA and cuDNN in the background if `device` may need them: half a second.

    Nothing is done if torch is imported already. What fails here is not told: it fails again
    where the device is chosen and used.
    """
    kind, _, index = device.partition(":")
    is_cuda = kind in ("auto", "cuda") and (index or "0").isdecimal()
    if not is_cuda or "torch" in sys.modules or not _torch_has_cuda():
        return
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # CUDA reads it once; torch's default
    Thread(target=_wake, args=(int(index or 0),), daemon=True).start()


def _torch_has_cuda() -> bool:
    """Whether torch was built for CUDA; it is not imported for that."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    return (Path(found.origin).parent / "lib/libtorch_cuda.so").exists()


def _wake(index: int) -> None:
    with suppress(OSError, ImportError, RuntimeError):
        if _make_context(index):
            _convolve(f"cuda:{index}")


def _make_context(index: int) -> bool:
    """Make the context that torch will use; Python's lock is left to the imports."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    return not failed


def _convolve(device: str) -> None:
    """Let cuDNN load its libraries, by a first convolution."""
    import torch  # waits until the command has imported it

    image = torch.zeros(1, 8, 8, 8, dtype=torch.float16, device=device)
    torch.nn.functional.conv2d(image, image[:, :, :3, :3].expand(8, -1, -1, -1).contiguous())
