"""How the process of a command starts and ends, CUDA preloaded, and the time of each part."""

import atexit
import ctypes
import gc
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from time import perf_counter


class Parts:
    """The seconds of the parts of a command, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = perf_counter()

    def end(self, name: str) -> None:
        """Give the time since the previous part to this one."""
        now = perf_counter()
        self.seconds[name], self._last = now - self._last, now

    def take(self, seconds: Mapping[str, float]) -> None:
        """Add parts that were timed elsewhere; the next one starts now."""
        self.seconds |= seconds
        self._last = perf_counter()

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())


@contextmanager
def without_collection() -> Iterator[None]:
    """Import without garbage collection, which takes a tenth of the time and finds nothing.

    If torch is imported here, later ones leave it out: it would cost each a tenth of a second.
    """
    enabled, is_new = gc.isenabled(), "torch" not in sys.modules
    gc.disable()
    try:
        yield
    finally:
        if is_new:
            gc.freeze()
        if enabled:
            gc.enable()


def keep_freed_memory() -> None:
    """Let the allocator of torch's ARM builds return freed memory to the system after 10 s.

    By default it does so after 10 ms; the next tensors then wait for new pages: a tenth of the
    time of an estimate. Must be called before torch is imported.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "10000")


def share_cores() -> None:
    """Let the threads of GNU's OpenMP wait for each other by spinning a thirtieth of their default.

    Next to a busy program, they would spin on a core for most of the time, waiting for one that has
    none. On an idle machine an estimate takes about the same time. Must be called before torch
    is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


@contextmanager
def quick_end() -> Iterator[None]:
    """Run the command of this process; at its end, leave memory and devices to the system.

    Python would take torch apart object by object, and CUDA its context, for up to a second. What
    libraries have registered for the end is done; an error that Python reports ends as usual.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # before all others, so that it is called after them
    try:
        yield
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            codes.append(end.code or 0)
        raise


def _leave(codes: list[int]) -> None:
    if not codes:
        return
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):  # Python tries again, and reports it
        return
    os._exit(codes[0])


def preload_cuda(device: str) -> None:
    """Load CUDA and cuDNN in the background if `device` may need them; it takes half a second.

    Nothing is done if torch is imported already. What fails here is not reported: it fails
    again where the device is chosen and used.
    """
    kind, _, index = device.partition(":")
    is_cuda = kind in ("auto", "cuda") and (index or "0").isdecimal()
    if not is_cuda or "torch" in sys.modules or not _torch_has_cuda():
        return
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # CUDA reads it once; torch's default
    Thread(target=_preload, args=(int(index or 0),), daemon=True).start()


def _torch_has_cuda() -> bool:
    """Whether torch was built for CUDA; it is not imported for that."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        return False
    return (Path(found.origin).parent / "lib/libtorch_cuda.so").exists()


def _preload(index: int) -> None:
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
