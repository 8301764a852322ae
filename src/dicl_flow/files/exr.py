"""OpenEXR files: channels by name, of the first part that has them; sizes are checked first."""

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, import_extra, refusing
from ..fence import fenced, interpreting
from .reading import Array, check_decoded, check_pixels, check_size, most_bytes

Window = tuple[int, int, int, int]
"""Left, top, right and bottom pixel, both ends included."""


class Channels(NamedTuple):
    """Channels of one part of a file."""

    pixels: dict[str, Array]
    """(H, W) by name, in the precision of the file."""
    data: Window
    """What the pixels cover."""
    display: Window
    """What is shown."""
    header: dict[str, Any]
    """What it says of colours and pixels, and is kept."""


def openexr() -> Any:
    """Return the library; if it is missing, the error names the extra to install."""
    return import_extra("OpenEXR", ".exr files need OpenEXR", "exr")


def encode_channels(channels: Mapping[str, Array], header: Mapping[str, Any] = {}) -> bytes:
    """Return the bytes of a file, compressed without loss."""
    library = openexr()
    buffer = io.BytesIO()
    form = {"compression": library.ZIP_COMPRESSION, "type": library.scanlineimage}
    plain = {name: np.ascontiguousarray(values) for name, values in channels.items()}
    library.File({**header, **form}, plain).write(buffer)
    return buffer.getvalue()


def decode_channels(
    data: bytes, names: tuple[str, ...], what: str, counted: tuple[int, str]
) -> Channels:
    """Return all channels of the first part that has those named; errors call the file `what`.

    `counted` is how many channels count as one pixel of the size limit, and how that is said.
    """
    openexr()  # complain here if it is missing
    found = _read_channels(data, names, what, *counted)
    with interpreting():
        if isinstance(found, list):
            raise MissingChannelsError(names, [*map(str, found)])
        pixels, window, display, header = found
        (width, height), shown = window_size(window), window_size(display)
        check_size(*shown)
        for name in names:
            check_decoded(pixels[name])
            if pixels[name].shape != (height, width) or min(shown) < 1:
                raise InputError(f"channel {name!r} has another size than the picture")
        return Channels(pixels, window, display, _from_plain(header))


_KEPT = ("chromaticities", "pixelAspectRatio", "framesPerSecond", "timeCode")


@fenced(most_bytes)
def _read_channels(
    data: bytes, names: tuple[str, ...], what: str, number: int, words: str
) -> tuple[dict[str, Array], Window, Window, dict[str, Any]] | list[str]:
    """Read the channels and the kept part of the header, plain; only names if some are missing."""
    read = partial(openexr().File, separate_channels=True)
    # the library documents no errors for damaged files
    with refusing(f"it cannot be read as an OpenEXR {what}", Exception):
        headers = [part.header for part in read(io.BytesIO(data), header_only=True).parts]
        try:
            index, window = _chosen_part(headers, names, (number, words))
        except MissingChannelsError as error:
            return error.there
        with redirect_stdout(io.StringIO()) as complaint:  # damaged parts are printed and left out
            parts = read(io.BytesIO(data)).parts
        if len(parts) < len(headers):
            raise InputError(f"damaged or truncated: {complaint.getvalue().strip()}")
        pixels = {name: channel.pixels for name, channel in parts[index].channels.items()}
        display = _window(headers[index]["displayWindow"])
        return pixels, window, display, _to_plain(headers[index])


def _chosen_part(
    headers: list[dict[str, Any]], names: tuple[str, ...], counted: tuple[int, str]
) -> tuple[int, Window]:
    """Return the first part with these channels; refuse sizes before pixels are read."""
    parts = [[channel.name for channel in header["channels"]] for header in headers]
    index = next((i for i, part in enumerate(parts) if {*names} <= {*part}), None)
    if index is None:
        raise MissingChannelsError(names, sorted({name for part in parts for name in part}))
    windows = [_window(header["dataWindow"]) for header in headers]
    sizes = [window_size(window) for window in windows]
    check_size(*sizes[index])
    check_size(*window_size(_window(headers[index]["displayWindow"])))
    values = sum(w * h * len(part) for (w, h), part in zip(sizes, parts, strict=True))
    number, words = counted
    check_pixels(values // number, f"all {sum(map(len, parts))} channels of a file, {words},")
    return index, windows[index]


class MissingChannelsError(InputError):
    """A file without the channels that are needed; `there` lists those it has."""

    def __init__(self, names: tuple[str, ...], there: list[str]) -> None:
        self.there = there
        wanted = f"{', '.join(names[:-1])} and {names[-1]}"
        super().__init__(f"no channels {wanted}; the file has {', '.join(there) or 'none'}")


def _window(corners: Any) -> Window:
    left, top, right, bottom = np.ravel(corners).tolist()
    return left, top, right, bottom


def window_size(window: Window) -> tuple[int, int]:
    """(width, height) in pixels."""
    left, top, right, bottom = window
    return right - left + 1, bottom - top + 1


_TIME: tuple[str, ...] = ("hours", "minutes", "seconds", "frame", "dropFrame", "colorFrame")
_TIME += ("fieldPhase", "bgf0", "bgf1", "bgf2", "userData")


def _to_plain(header: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a header as numbers and tuples."""
    plain = {name: header[name] for name in _KEPT if name in header}
    if "chromaticities" in plain:
        plain["chromaticities"] = tuple(np.ravel(plain["chromaticities"]).tolist())
    if "framesPerSecond" in plain:
        plain["framesPerSecond"] = (plain["framesPerSecond"].n, plain["framesPerSecond"].d)
    if "timeCode" in plain:
        plain["timeCode"] = tuple(getattr(plain["timeCode"], name) for name in _TIME)
    return plain


def _from_plain(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a header as the library takes it."""
    header = dict(plain)
    if "framesPerSecond" in plain:
        header["framesPerSecond"] = openexr().Rational(*plain["framesPerSecond"])
    if "timeCode" in plain:
        header["timeCode"] = openexr().TimeCode()
        for name, value in zip(_TIME, plain["timeCode"], strict=True):
            setattr(header["timeCode"], name, value)
    return header
