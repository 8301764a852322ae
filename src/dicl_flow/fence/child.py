"""The template, which imports the decoders, and the decoders that are forked from it.

    python -m dicl_flow.fence.child SOCKET MODULE…

It never reads a stranger's file. It forks decoders, which seal themselves before a request
arrives. One that answers a single request and ends cannot reach the files of others.
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from ..errors import InputError
from .readers import FILES, READERS, Handed, go_inside
from .seal import Limits, address_space, leave_the_machine, seal
from .wire import BrokenLineError, Line

_MOST_REQUEST = 2**40  # the parent has checked what it sends


def template(control: socket.socket, modules: list[str]) -> None:
    """Fork and end decoders, as the parent asks, until it is gone."""
    go_inside()
    for module in modules:
        _prepare(module)
    gc.disable()
    gc.freeze()  # or each decoder would copy the pages of all objects
    used = address_space()
    left = leave_the_machine()
    line = Line(control)
    line.send("ready")
    while True:
        (command, value), files = line.receive_files(0)
        if command != "fork":
            line.send(_end(value, wait=command == "status"))
            continue
        process = os.fork()  # no other thread is here
        if not process:
            line.close()
            _decoder(Line(socket.socket(fileno=files[0])), Limits(*value), used, left)
        os.close(files[0])
        line.send(process)


_ENDING = set[int]()
"""Decoders that were killed; the system takes milliseconds to clear their memory."""


def _end(process: int, *, wait: bool) -> int:
    """End a decoder; return its status, if that is waited for."""
    os.kill(process, signal.SIGKILL)  # it is there until we have waited for it
    if wait:
        return os.waitpid(process, 0)[1]
    _ENDING.add(process)
    _ENDING.difference_update([done for done in _ENDING if os.waitpid(done, os.WNOHANG)[0]])
    return 0


def _prepare(module: str) -> None:
    """Import what decodes; later no file can be opened. Libraries of extras may be missing."""
    try:
        imported = import_module(module)
    except ImportError:
        if module.startswith("dicl_flow."):
            raise
        return
    if module == "cv2":
        imported.setNumThreads(1)
    if module == "av":  # which imports some of its parts when it opens a file
        for part in walk_packages(imported.__path__, "av."):
            if not part.name.endswith("__main__"):
                import_module(part.name)


def _decoder(line: Line, limits: Limits, used: int, left: dict[str, bool]) -> None:
    """Answer requests; the process ends here, whatever happens."""
    try:
        line.send(seal(limits, used, left))
        while True:  # until the parent ends this process
            (name, arguments, settings), files = line.receive_files(_MOST_REQUEST)
            for key, value in settings.items():
                os.environ.pop(key, None)
                os.environ.update({} if value is None else {key: value})
            paths = [argument for argument in arguments if isinstance(argument, os.PathLike)]
            FILES.update({str(p): Handed(f, str(p)) for p, f in zip(paths, files, strict=True)})
            reader = READERS[name]
            if reader.streams:
                _stream(line, partial(reader.function, *arguments))
            else:
                _answer(line, partial(reader.function, *arguments))
            for path in paths:
                FILES.pop(str(path)).close()
    except BrokenLineError:
        pass
    finally:
        os._exit(0)


def _answer(line: Line, read: Callable[[], Any]) -> bool:
    """Send what is read, or the error instead; return whether there was none."""
    try:
        answer = {"value": read()}
    except InputError as error:
        answer = {"refused": str(error)}
    except MemoryError:
        answer = {"failed": "needs more memory than it may use"}
    except Exception as error:
        answer = {"failed": f"failed ({type(error).__name__}: {error})"[:300]}
    line.send(answer)
    return "value" in answer


def _stream(line: Line, begin: Callable[[], Any]) -> None:
    """Send item after item, each when it is asked for, and its pixels if they are, too."""
    items: Any = None
    read: Callable[[], Any] | None = None

    def following() -> Any:
        nonlocal items, read
        items = iter(begin()) if items is None else items
        item = next(items, None)
        if item is None:
            return None
        head, read = item
        return [head, read is not None]

    while True:
        if line.receive() == "pixels" and read is not None:
            _answer(line, read)
        elif not _answer(line, following):
            line.receive()


if __name__ == "__main__":
    with suppress(BrokenLineError):
        template(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
    os._exit(0)
