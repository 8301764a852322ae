"""How a flow is answered: its format, by `format` in the address or by the header Accept."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from ..errors import unknown_name
from ..estimation.estimator import FlowResult
from ..files import Array, encode_arrays, encode_flow, encode_image

EXTRAS = ("backward", "occlusion", "confidence")
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Format(NamedTuple):
    """A file format of an answer."""

    media_type: str
    file_name: str
    meaning: str
    encode: Callable[[FlowResult, "Wanted"], bytes]


class Wanted(NamedTuple):
    """What a request asks for."""

    format: str
    backward: bool
    occlusion: bool
    confidence: bool

    @property
    def both_ways(self) -> bool:
        """Whether the backward flow must be estimated."""
        return self.backward or self.occlusion

    def answer(self, result: FlowResult) -> bytes:
        """Return the body of the answer."""
        return FORMATS[self.format].encode(result, self)


def _npz(result: FlowResult, wanted: Wanted) -> bytes:
    arrays: dict[str, Array] = {"flow": result.flow}
    if wanted.confidence:
        arrays["confidence"] = result.confidence
    if wanted.backward and result.backward is not None:
        arrays["backward"] = result.backward.flow
    if wanted.occlusion and result.occlusion is not None:
        arrays["occlusion"] = result.occlusion
    return encode_arrays(arrays)


FORMATS = {  # of two that an Accept allows, the first
    "flo": Format(
        "application/x-flo",
        "flow.flo",
        "Middlebury file",
        lambda result, wanted: encode_flow("flow.flo", result.flow),
    ),
    "npz": Format("application/x-npz", "flow.npz", "arrays of NumPy, with what was added", _npz),
    "wheel": Format(
        "image/png",
        "flow.png",
        "picture in the colours of the wheel",
        lambda result, wanted: encode_image("flow.png", result.to_rgb()),
    ),
    "kitti": Format(
        "image/x-kitti-flow",
        "flow.png",
        "16-bit PNG of KITTI",
        lambda result, wanted: encode_flow("flow.png", result.flow),
    ),
}


def read_wanted(request: Request) -> Wanted:
    """Read what a request asks for; refuse what cannot be given."""
    extras = {name: _flag(request.query_params, name) for name in EXTRAS}
    given = _given_format(request)
    chosen = given or ("npz" if any(extras.values()) else "flo")
    if chosen != "npz" and any(extras.values()):
        names = " and ".join(name for name in EXTRAS if extras[name])
        raise HTTPException(400, f"only format=npz has room for {names}; {chosen} has the flow")
    return Wanted(chosen, **extras)


def _given_format(request: Request) -> str | None:
    name = request.query_params.get("format")
    if name is not None:
        if name not in FORMATS:
            raise HTTPException(400, str(unknown_name("format", name, FORMATS)))
        return name
    return _accepted(request.headers.get("accept", "*/*"))


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
    for parameter in parameters:
        name, _, value = parameter.strip().partition("=")
        if name == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "no").lower()
    if value not in _BOOLEANS:
        raise HTTPException(400, f"{name} is true or false, got {value!r}")
    return _BOOLEANS[value]
