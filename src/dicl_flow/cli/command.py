"""What every command does: its process starts and ends, reads arguments, prints messages."""

import atexit
import ctypes
import faulthandler
import gc
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import pairwise, zip_longest
from math import isfinite
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

from typer import BadParameter
from typer.core import TyperCommand, TyperGroup

from ..errors import InputError, SlowWarning, hide_library_warnings

# --- the process ----------------------------------------------------------------------------------


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
    libraries = Path((found and found.origin) or "").parent / "lib"
    return (libraries / "libtorch_cuda.so").exists()


def _preload(index: int) -> None:
    """Make the context that torch will use; Python's lock is left to the imports."""
    with suppress(OSError, ImportError, RuntimeError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), index)
            or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        )
        if not failed:
            _convolve(f"cuda:{index}")


def _convolve(device: str) -> None:
    """Let cuDNN load its libraries, by a first convolution."""
    import torch  # waits until the command has imported it

    image = torch.zeros(1, 8, 8, 8, dtype=torch.float16, device=device)
    torch.nn.functional.conv2d(image, image[:, :, :3, :3].expand(8, -1, -1, -1).contiguous())


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


# --- arguments ------------------------------------------------------------------------------------

_INSTEAD = {  # by command: what to do if the shell has expanded a pattern to many files
    "flow": "for a sequence of frames there is dicl-flow video 'frames/*.png'",
    **dict.fromkeys(("check", "bench", "render", "submit"), "give the folder"),
}
_TYPES = {"str": "TEXT", "int": "N", "float": "NUMBER", "path": "PATH"}
"""How the help shows the types of Python; flags and arguments need no type."""
_BARE = {"--ray": ("local", r"local|auto|\S+:\d+")}
"""By option: its value if none is given, and what its values look like."""
_WRITES = {("eval", "--json"): "-o"}
"""By command and flag: the option that writes the file one could expect after the flag."""


class Command(TyperCommand):
    """A command that explains surplus arguments, and options where a value is missing."""

    allow_extra_args = True  # the parser's own refusal would say less than ours

    def get_params(self, ctx: Any) -> list[Any]:
        return [_in_words(parameter, ctx) for parameter in super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = _with_values(args)
        if any(re.fullmatch(r"-\d+(\.\d+)?", word) for word in args):
            ctx.ignore_unknown_options = True  # a number below zero is no option
        words, options = list(args), [p for p in self.get_params(ctx) if _is_option(p)]
        _refuse_missing_values(words, options)
        try:
            surplus = super().parse_args(ctx, args)
        except BadParameter as error:
            if error.param is None or type(error) is not BadParameter:  # it is missing
                raise
            raise _bad_number(error, words) from None
        if surplus and not ctx.resilient_parsing:
            flags = {name for option in options if option.is_flag for name in option.opts}
            before = ["", *words][words.index(surplus[0])]
            if before in flags:
                writes = _WRITES.get((ctx.info_name, before))
                hint = f"; to write a file: {writes} {surplus[0]}" if writes else ""
                raise InputError(f"{before} takes no value, but {surplus[0]!r} follows{hint}")
            raise _too_many(ctx.info_name, self.get_params(ctx), surplus)
        for parameter in self.get_params(ctx):
            _check_numbers(parameter, ctx.params.get(parameter.name))
        return surplus


class Group(TyperGroup):
    """Commands under one name."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_in_words(parameter, ctx) for parameter in super().get_params(ctx)]


def _in_words(parameter: Any, ctx: Any) -> Any:
    """Show the type of an argument or option in plain words."""
    if not _is_option(parameter):
        parameter.metavar = parameter.metavar or parameter.name.upper()
        parameter.display_type = lambda ctx: ""
    elif parameter.is_flag:
        parameter.metavar = ""
    elif parameter.metavar is None and hasattr(parameter, "display_type"):  # typer 0.29
        kind = parameter.display_type(ctx).strip("<>").removesuffix(" range")
        parameter.metavar = _TYPES.get(kind.removeprefix("list[").removesuffix("]").lower(), kind)
    return parameter


def _with_values(words: list[str]) -> list[str]:
    """Fill in the values of options that may stand alone."""
    filled = []
    for word, follower in zip_longest(words, words[1:], fillvalue=""):
        filled.append(word)
        value, values = _BARE.get(word, ("", ""))
        if value and not re.fullmatch(values, follower):
            filled.append(value)
    return filled


def _is_option(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "option")


def _check_numbers(parameter: Any, value: Any) -> None:
    """Refuse what no option takes: numbers that are not finite, or not positive without a `min`."""
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if not isfinite(number):
            raise InputError(f"{_name(parameter)} must be a finite number, got {number}")
        if _bounds(parameter)[0] is None and number <= 0:
            raise InputError(f"{_name(parameter)} must be positive, got {number:g}")


def _bad_number(error: BadParameter, words: list[str]) -> InputError:
    """Say in one sentence what typer refused: all parameters of other types are text."""
    parameter: Any = error.param
    kind = "a whole number" if "integer" in error.message else "a number"
    least, most = _bounds(parameter)
    bounds = [f", {'above 0' if least is None else f'at least {least:g}'}"]
    bounds += [] if most is None else [f" and at most {most:g}"]
    given = [after for word, after in pairwise(words) if word in parameter.opts]
    got = f", got {given[-1]}" if given and _is_option(parameter) else ""
    return InputError(f"{_name(parameter)} must be {kind}{''.join(bounds)}{got}")


def _name(parameter: Any) -> str:
    return str(parameter.opts[0] if _is_option(parameter) else parameter.metavar)


def _bounds(parameter: Any) -> tuple[float | None, float | None]:
    """The `min` and `max` of a parameter, which older versions of typer keep in its type."""
    owner = parameter if hasattr(parameter, "min") else parameter.type
    return getattr(owner, "min", None), getattr(owner, "max", None)


def _refuse_missing_values(words: list[str], options: list[Any]) -> None:
    """Refuse `-o --quiet`, which would write a file called --quiet."""
    names = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    values = {name: o.nargs for o in options if not o.is_flag for name in o.opts}
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        for follower in words[place + 1 : min(place + 1 + values.get(word, 0), end)]:
            if follower in names:
                raise InputError(f"{word} needs a value, but the option {follower} follows")


def _too_many(command: str, parameters: list[Any], surplus: list[str]) -> InputError:
    taken = [p.metavar for p in parameters if not _is_option(p)]
    some = ", ".join(surplus[:3]) + (", …" if len(surplus) > 3 else "")
    message = f"{command} takes {' '.join(taken) or 'options only'}; unexpected: {some}"
    if all(Path(word).exists() for word in surplus):
        advice = _INSTEAD.get(command, "give the files one by one")
        message += f". If the shell expanded a pattern such as *.png: {advice}"
    return InputError(message)


# --- messages -------------------------------------------------------------------------------------

_OPTIONS = {"changes": "set", "initial": "init", "num_samples": "overfit", "roots": "data"}
"""Parameters that have another name on the command line."""


def describe(error: Exception) -> str:
    """Return one line: our message with options for parameters, or the system's and its file."""
    if isinstance(error, OSError) and error.strerror:
        name = error.filename2 or error.filename  # of two: the new name of a file
        return f"{os.fsdecode(name)}: {error.strerror}" if name else error.strerror
    return as_flags(" ".join(str(error).split()))


def as_flags(message: str) -> str:
    """Write `device='cpu'` as --device cpu, `resume=True` as --resume, `size` as --size.

    A list or a table becomes one value: `roots={'pairs': PATH}` is --data pairs=PATH.
    """
    return re.sub(r"`([a-z_]\w*)(?:=([^`]*))?`", _flag, message)


def _flag(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    option = "--" + _OPTIONS.get(name, name).replace("_", "-")
    if value in (None, "True"):
        return option
    return f"{option} {value.strip('[]{}').replace(': ', '=')}".replace("'", "")


def _print_warning(
    message: Warning | str, category: type[Warning], *place: Any, **options: Any
) -> None:
    """Print a warning of ours as one line to stderr, any other one as Python does."""
    if issubclass(category, SlowWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, *place[:2]))


@contextmanager
def hidden_messages() -> Iterator[None]:
    """Hide the warnings of libraries, in Python and in native code, while a command runs.

    `python -W default` or PYTHONWARNINGS=default brings all of them back.
    """
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        if sys.warnoptions:
            yield
            return
        logging.disable(max(before, logging.WARNING))
        try:
            with _native_messages_hidden():
                hide_library_warnings()
                yield
        finally:
            logging.disable(before)


@contextmanager
def _native_messages_hidden() -> Iterator[None]:
    """Give `sys.stderr` a separate descriptor; what libpng, libjpeg or FFmpeg write is lost.

    They write to descriptor 2, whatever Python does. Loader processes inherit it. A crash is
    still reported: Python's handler of fatal signals writes to the new descriptor.
    """
    if not _is_descriptor_2(sys.stderr):  # it is redirected already, as in a test
        yield
        return
    sys.stderr.flush()
    usual, kept = sys.stderr, os.dup(2)
    sys.stderr = os.fdopen(kept, "w", 1, usual.encoding, usual.errors)
    tell_crashes = not faulthandler.is_enabled()
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - not a path on every system
        os.dup2(nowhere.fileno(), 2)
    if tell_crashes:
        faulthandler.enable(sys.stderr)
    try:
        yield
    finally:
        if tell_crashes:
            faulthandler.disable()
        sys.stderr.flush()
        os.dup2(kept, 2)
        sys.stderr.close()
        sys.stderr = usual


def _is_descriptor_2(stream: object) -> bool:
    try:
        return bool(stream.fileno() == 2)  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):  # a stream without one, or closed
        return False
