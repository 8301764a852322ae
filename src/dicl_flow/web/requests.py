"""What a request uploads, and in which format it wants the flow.

Uploads are limited in bytes while they arrive, in pixels before they are decoded.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ..errors import InputError, check_name
from ..estimation.estimator import FlowResult
from ..files import (
    Array,
    check_unit_range,
    decode_image,
    encode_arrays,
    encode_flow,
    encode_image,
    max_size,
)
from ..files.images import image_size
from .limits import BYTES_PER_PIXEL, SLOWEST, Hold
from .service import FlowService, check_seen, service_of

_MOST_PARTS = 16
_IMAGES = rb"\x89PNG|\xff\xd8\xff|RIFF....WEBP|II[*+]\0|MM\0[*+]|BM|P[1-6]\s"
"""The first bytes of images that are taken; for other formats OpenCV writes temporary files."""
_CONTAINERS = {
    rb"\0...(ftyp|moov|mdat|wide|free|skip)": "mov",
    rb"\x1a\x45\xdf\xa3": "matroska",
    rb"RIFF....AVI ": "avi",
    rb"GIF8[79]a": "gif",
    rb"\0\0\x01\xba": "mpeg",
}
"""FFmpeg's names of the containers that are taken, by the first bytes of a file."""

Write = Callable[[bytes], Any]
"""Takes the next bytes of a part."""


async def read_frames(request: Request, hold: Hold) -> list[Array]:
    """Return the images in the fields image1 and image2, (H, W, 3) RGB each."""
    service, parts = service_of(request), {"image1": bytearray(), "image2": bytearray()}

    def write_to(name: str) -> Write:
        if name not in parts:
            raise HTTPException(400, f"unknown field {name!r}; expected: {', '.join(parts)}")

        def write(data: bytes) -> None:
            hold(len(data))
            parts[name].extend(data)

        return write

    await read_form(request, write_to, service.limits.max_upload)
    for name, data in parts.items():
        if not data:
            raise HTTPException(400, f"{name} is missing or empty; send it as a file in a form")
    files = {name: bytes(data) for name, data in parts.items()}
    parts.clear()  # it is not held twice
    for name, file in files.items():
        hold(_check_frame(service, file, name))
    return [await service.in_thread(_decode_frame, file, name) for name, file in files.items()]


async def read_form(request: Request, write_to: Callable[[str], Write], most: int) -> None:
    """Pass each part of a form to what `write_to` returns for its field name.

    A body of more than `most` bytes is refused, as is one that arrives too slowly.
    """
    form, timeout = _Form(_boundary(request), write_to), service_of(request).limits.timeout
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise _too_large(most)
    received, loop = 0, asyncio.get_running_loop()
    start = loop.time()
    try:
        async with asyncio.timeout(timeout) as deadline:
            async for chunk in request.stream():
                received += len(chunk)
                if received > most:
                    raise _too_large(most)
                form.parser.write(chunk)
                deadline.reschedule(start + timeout + received / SLOWEST)
    except TimeoutError:
        raise HTTPException(408, f"the upload took more than {timeout:g} s") from None
    except FormParserError:
        raise _damaged() from None
    if not form.ended.is_set():
        raise _damaged()


def _decode_frame(data: bytes, name: str) -> Array:
    image = decode_image(data, name)
    if image.dtype.kind == "f":
        check_unit_range(float(image.min()), float(image.max()))
    return image


def _check_frame(service: FlowService, data: bytes, name: str) -> int:
    """Refuse what is no image or has too many pixels; return its bytes when it is decoded."""
    size = image_size(data) if re.match(_IMAGES, data, re.DOTALL) else None
    if size is None:
        raise HTTPException(415, f"{name} is not a PNG, JPEG, WebP, TIFF, BMP or PNM image")
    width, height = size
    if width * height > max_size() * 1e6:
        raise HTTPException(
            413, f"{name} has {width}x{height} pixels; at most {max_size():g} million are taken"
        )
    try:
        check_seen(service.estimator, (height, width), name)
    except InputError as error:
        raise HTTPException(413, str(error)) from None
    return width * height * BYTES_PER_PIXEL


def video_container(path: Path) -> str:
    """Return FFmpeg's name of a video's container; refuse anything else.

    If FFmpeg chose, it would also open playlists, which name other files of the server.
    """
    with path.open("rb") as file:
        head = file.read(32)
    for signature, container in _CONTAINERS.items():
        if re.match(signature, head, re.DOTALL):
            return container
    raise HTTPException(415, "video is not an MP4, MOV, Matroska, WebM, AVI, MPEG or GIF file")


class _Form:
    """The parts of multipart/form-data, as their bytes arrive."""

    def __init__(self, boundary: bytes, write_to: Callable[[str], Write]) -> None:
        self._write_to = write_to
        self._write: Write = lambda data: None
        self._header, self._value, self._parts = bytearray(), bytearray(), 0
        self._disposition, self.ended = b"", Event()
        self.parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_part_data": lambda data, start, end: self._write(data[start:end]),
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._open,
                "on_end": self.ended.set,
            },
        )

    def _begin(self) -> None:
        self._parts, self._disposition = self._parts + 1, b""
        if self._parts > _MOST_PARTS:
            raise HTTPException(400, f"the form has more than {_MOST_PARTS} parts")

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._write = self._write_to(options.get(b"name", b"").decode("utf-8", "replace"))


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise HTTPException(415, "send the files as multipart/form-data, as curl -F does")
    if len(boundary) > 70:  # RFC 2046
        raise _damaged()
    return boundary


def _damaged() -> HTTPException:
    return HTTPException(400, "the form is damaged or incomplete")


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the upload is too large; at most {most} bytes are taken")


EXTRAS = {
    "backward": "add the flow from image2 to image1",
    "occlusion": "add the pixels of image1 that are hidden in image2",
    "confidence": "add the confidence of each pixel",
}
"""What a request may ask for in addition to the flow, and the meaning of that."""
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Format(NamedTuple):
    """A file format of an answer."""

    media_type: str
    file_name: str
    meaning: str


FORMATS = {  # of two that an Accept allows, the first
    "flo": Format("application/x-flo", "flow.flo", "Middlebury file"),
    "npz": Format("application/x-npz", "flow.npz", "arrays of NumPy, with what was added"),
    "wheel": Format("image/png", "flow.png", "picture in the colours of the wheel"),
    "kitti": Format("image/x-kitti-flow", "flow.png", "16-bit PNG of KITTI"),
}


class Wanted(NamedTuple):
    """What a request asks for."""

    format: str
    backward: bool
    occlusion: bool
    confidence: bool

    def encode(self, result: FlowResult) -> bytes:
        """Return the body of the answer."""
        if self.format == "wheel":
            return encode_image("flow.png", result.to_rgb())
        if self.format != "npz":
            return encode_flow(FORMATS[self.format].file_name, result.flow)
        arrays: dict[str, Array] = {"flow": result.flow}
        if self.confidence:
            arrays["confidence"] = result.confidence
        if self.backward and result.backward is not None:
            arrays["backward"] = result.backward.flow
        if self.occlusion and result.occlusion is not None:
            arrays["occlusion"] = result.occlusion
        return encode_arrays(arrays)


def read_wanted(request: Request) -> Wanted:
    """Read what a request asks for; refuse what cannot be given."""
    extras = {name: _flag(request.query_params, name) for name in EXTRAS}
    asked = [name for name in EXTRAS if extras[name]]
    chosen = request.query_params.get("format")
    if chosen is None:
        accepted = _accepted(request.headers.get("accept", "*/*"))
        chosen = accepted or ("npz" if asked else "flo")
    check_name("format", chosen, FORMATS)
    if chosen != "npz" and asked:
        names = " and ".join(asked)
        raise HTTPException(400, f"only format=npz has room for {names}; {chosen} has the flow")
    return Wanted(chosen, **extras)


def _accepted(accept: str) -> str | None:
    """The format whose media type is preferred; None if any will do."""
    ranges = [part.strip().split(";") for part in accept.lower().split(",")[:32]]
    wanted = sorted(((_weight(parameters), kind.strip()) for kind, *parameters in ranges))
    for weight, kind in reversed(wanted):
        if weight > 0 and kind in ("*/*", "application/*", "application/octet-stream"):
            return None
        for name, known in FORMATS.items():
            if weight > 0 and kind in (known.media_type, known.media_type.split("/")[0] + "/*"):
                return name
    types = ", ".join(found.media_type for found in FORMATS.values())
    raise HTTPException(406, f"none of the accepted media types can be given; known: {types}")


def _weight(parameters: list[str]) -> float:
    given = [text.strip()[2:] for text in parameters if text.strip().startswith("q=")]
    try:
        return float(given[0]) if given else 1.0
    except ValueError:
        return 0.0


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "no").lower()
    if value not in _BOOLEANS:
        raise HTTPException(400, f"{name} is true or false, got {value!r}")
    return _BOOLEANS[value]
