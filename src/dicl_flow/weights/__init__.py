"""Weights: .safetensors files that contain config and calibration; packaged ones have names."""

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config import (
    NORMAL,
    QUALITIES,
    Calibration,
    ModelConfig,
    Quality,
    Radii,
    find_quality,
)
from ..errors import InputError, refusing, unknown_name
from ..files import read_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..models import FlowNetwork

CONFIG_KEY = "dicl_flow.config"  # in the safetensors metadata
BASE_KEY = "dicl_flow.base"
LIVE_KEY = "dicl_flow.live"
_LIVE = "live."  # before the names of tensors that were trained for smaller search radii
_INT8 = "int8."  # before the names of extremes
PACKAGED_SHA256 = {
    "rendered": "85817f8dedf56f0ccb1a386a26709ae4f0a434521a352ed6b41dc9e3fa536145",
}
_PACKAGED = Path(__file__).parent
_PARTS = {
    "features": r"\bfeatures\.",
    "trunk": r"\bfeatures\.(?!outputs\.).",  # the feature net without its last layer at each level
    "context": r"\bcontext\.",
}
_FLOATS = ("float64", "float32", "float16", "bfloat16")
_TYPES = dict.fromkeys(_FLOATS, _FLOATS) | {"int64": ("int64", "int32")}  # wanted: convertible


def in_parts(key: str, parts: Iterable[str]) -> bool:
    """Whether a state-dict key belongs to one of these parts: "features", "trunk", "context"."""
    return any(re.search(_PARTS[part], key) for part in parts)


class Base(NamedTuple):
    """Packaged weights that a file completes: it leaves out what it shares with them."""

    name: str
    sha256: str
    parts: tuple[str, ...]

    def shared(self, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """The tensors of the parts that are shared."""
        return {key: tensor for key, tensor in tensors.items() if in_parts(key, self.parts)}

    @classmethod
    def from_json(cls, text: str) -> "Base":
        """Read it from the metadata of a file."""
        try:
            values = json.loads(text)
            base = cls(values["name"], values["sha256"], tuple(values["parts"]))
            in_parts("", base.parts)  # refuses unknown ones
            return base
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError("the entry that names the weights to complete is damaged") from None


class LiveParts(NamedTuple):
    """Projections and context nets of levels that were trained for smaller search radii."""

    radii: Radii
    tensors: "Mapping[str, Tensor]"
    """By the names that they have in the network with these radii."""

    @classmethod
    def from_json(cls, text: str, tensors: "Mapping[str, Tensor]") -> "LiveParts":
        """Read the radii from the metadata of a file."""
        try:
            radii = tuple((int(stride), int(radius)) for stride, radius in json.loads(text))
            return cls(Quality("live", radii=radii).radii, tensors)
        except (ValueError, TypeError, RecursionError):
            raise InputError("the entry of the smaller search radii is damaged") from None


@dataclass(frozen=True)
class Weights:
    """The contents of a weights file: config, tensors, facts about them, calibrations."""

    config: ModelConfig
    tensors: "Mapping[str, Tensor]"
    about: Mapping[str, str] = field(default_factory=dict)
    """Free text by topic: source, recipe, metrics …"""
    sha256: str = ""
    calibration: Calibration | None = None
    """Makes the confidence a probability; fitted to these weights."""
    quality_calibrations: Mapping[str, Calibration] = field(default_factory=dict)
    """The same for qualities other than "normal", by name."""
    base: Base | None = None
    live: LiveParts | None = None
    """What was trained for a quality with smaller search radii, if anything."""
    extremes: "Mapping[str, Tensor]" = field(default_factory=dict)
    """What precision int8 takes its scales from, see `accelerated.int8`; else it is measured."""
    path: str = ""
    """Where they were read."""

    def calibration_for(self, quality: Quality) -> Calibration | None:
        """The calibration for a quality; without one, that of quality "normal"."""
        return self.quality_calibrations.get(quality.name, self.calibration)

    def trained_for(self, quality: Quality) -> bool:
        """Whether parts were trained for the search radii of a quality that has smaller ones."""
        return self.live is not None and self.live.radii == self.config.smaller(quality.radii)

    def calibrated(self, quality: Quality, calibration: Calibration) -> "Weights":
        """Return the same weights with this calibration for the quality."""
        if quality.name == NORMAL:
            return replace(self, calibration=calibration)
        others = {**self.quality_calibrations, quality.name: calibration}
        return replace(self, quality_calibrations=others)


def packaged_names() -> list[str]:
    """Return the names of the weights that come with the package."""
    return sorted(path.stem for path in _PACKAGED.glob("*.safetensors"))


def resolve(name_or_path: str | Path | None) -> Path:
    """Find a weights file by packaged name or by path; None is the packaged default."""
    name = str(name_or_path or "rendered")
    if name in packaged_names():
        return _PACKAGED / f"{name}.safetensors"
    path = Path(name)
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a .safetensors file")
    if path.is_file():
        return path
    if name_or_path is None:
        raise InputError(
            "this version of the package contains no weights; give a .safetensors file, for "
            "instance one written by 'dicl-flow convert'"
        )
    if path.suffix or len(path.parts) > 1:
        raise FileNotFoundError(f"no weights file at {path}")
    raise unknown_name("weights", name, packaged_names())


def read_weights(path: str | Path) -> Weights:
    """Read a .safetensors file written by this package, and the weights that it completes."""
    data = read_bytes(path)
    # zip or pickle: what torch.save writes; a header's length can begin with the same two bytes
    if data[:2] in (b"PK", b"\x80\x02") and data[8:9] != b"{":
        raise InputError(
            f"{path} is a pickled checkpoint; first run 'dicl-flow convert {path} -o "
            f"OUT.safetensors'"
        )
    sha256 = hashlib.sha256(data).hexdigest()
    if Path(path).parent == _PACKAGED and PACKAGED_SHA256.get(Path(path).stem) != sha256:
        raise InputError(
            f"{path} is damaged: its sha256 differs from the expected one; reinstall the package"
        )
    with refusing(str(path), InputError):
        return replace(_decoded(data), sha256=sha256, path=str(path))


def _decoded(data: bytes) -> Weights:
    from safetensors.torch import load

    try:
        tensors, about = load(data), dict(_split(data)[0].get("__metadata__") or {})
    except Exception as error:  # the library documents few of those for damaged files
        raise InputError(f"not a safetensors file: {error}") from None
    check_finite(tensors)
    if CONFIG_KEY not in about:
        raise InputError("it contains no dicl-flow config; another program wrote it")
    config = ModelConfig.from_json(about.pop(CONFIG_KEY))
    calibrations = {
        name: Calibration.from_json(about.pop(_calibration_key(name)))
        for name in QUALITIES
        if _calibration_key(name) in about
    }
    base = Base.from_json(about.pop(BASE_KEY)) if BASE_KEY in about else None
    live = None
    if LIVE_KEY in about:
        live = LiveParts.from_json(about.pop(LIVE_KEY), _taken(tensors, _LIVE))
    extremes = _taken(tensors, _INT8)
    if base is not None:
        if PACKAGED_SHA256.get(base.name) != base.sha256:
            raise InputError(
                f"it completes the packaged weights {base.name!r} with sha256 "
                f"{base.sha256[:12]}…, which are not those of this version; it must be made again"
            )
        tensors |= base.shared(read_weights(resolve(base.name)).tensors)
    normal = calibrations.pop(NORMAL, None)
    return Weights(config, tensors, about, "", normal, calibrations, base, live, extremes)


def _taken(tensors: "dict[str, Tensor]", prefix: str) -> "dict[str, Tensor]":
    """Remove the tensors whose names have this prefix, and return them without it."""
    own = [key for key in tensors if key.startswith(prefix)]
    return {key.removeprefix(prefix): tensors.pop(key) for key in own}


def encode_weights(weights: Weights) -> bytes:
    """Return the bytes of a .safetensors file with config, facts and calibrations."""
    from safetensors.torch import save

    about, base = {CONFIG_KEY: weights.config.to_json(), **weights.about}, weights.base
    for name, calibration in {NORMAL: weights.calibration, **weights.quality_calibrations}.items():
        if calibration is not None:
            about[_calibration_key(name)] = calibration.to_json()
    if base is not None:
        about[BASE_KEY] = json.dumps(base._asdict())
    left_out = () if base is None else base.shared(weights.tensors)
    tensors = {
        key: tensor.contiguous() for key, tensor in weights.tensors.items() if key not in left_out
    }
    if weights.live is not None:
        about[LIVE_KEY] = json.dumps(weights.live.radii)
        tensors |= _prefixed(_LIVE, weights.live.tensors)
    tensors |= _prefixed(_INT8, weights.extremes)
    return _in_order(save(tensors, metadata=about))


def _prefixed(prefix: str, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    return {f"{prefix}{key}": tensor.contiguous() for key, tensor in tensors.items()}


def halve(weights: Weights) -> Weights:
    """Return the weights in float16, half the size; batch norm statistics stay in float32."""
    live = weights.live and weights.live._replace(tensors=_halved(weights.live.tensors))
    return replace(weights, tensors=_halved(weights.tensors), live=live)


def _halved(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    return {
        key: tensor.half() if tensor.is_floating_point() and "running_" not in key else tensor
        for key, tensor in tensors.items()
    }


def leave_out(weights: Weights, start: Path, parts: tuple[str, ...]) -> Weights:
    """Leave `parts` out of the file of `weights`, if `start`, where they are from, is packaged."""
    if start.parent != _PACKAGED:
        return weights
    base = Base(start.stem, PACKAGED_SHA256[start.stem], parts)
    for key, tensor in base.shared(read_weights(start).tensors).items():
        mine = weights.tensors[key]
        if not bool((mine == tensor.to(mine.dtype)).all()):
            raise InputError(f"{key} differs from the weights {base.name!r}; it was not frozen")
    return replace(weights, base=base)


def load_model(weights: Weights, quality: str | Quality = NORMAL) -> "FlowNetwork":
    """Build the network of `weights` in float32 and load them, strictly.

    For a quality with smaller search radii, with the parts that were trained for them, or with
    those cut out of the whole.
    """
    from ..models import build_empty, with_radii

    effort = find_quality(quality)
    effort.check_for(weights.config)
    with refusing(weights.path, InputError) if weights.path else nullcontext():
        model = build_empty(weights.config)
        check_keys(weights.tensors, model)
        _check_live(weights, model)
    model.load_state_dict(_like(model, weights.tensors), strict=True, assign=True)
    smaller = with_radii(model, effort.radii)
    if weights.live and weights.trained_for(effort):
        own = _like(smaller, weights.live.tensors)
        smaller.load_state_dict({**smaller.state_dict(), **own}, strict=True, assign=True)
    return smaller.eval()


def _like(model: "FlowNetwork", tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return copies in the precision that the model has them in."""
    from torch import contiguous_format

    expected = model.state_dict()
    return {
        key: tensor.to("cpu", expected[key].dtype, copy=True, memory_format=contiguous_format)
        for key, tensor in tensors.items()
    }


def _check_live(weights: Weights, empty: "FlowNetwork") -> None:
    """Refuse parts that do not fit the network with their search radii, whether used or not."""
    from ..models import own_keys, with_radii

    if weights.live is None:
        return
    radii, tensors = weights.live
    if weights.config.smaller(radii) != radii or not weights.config.host_record.any_radius:
        raise InputError(f"the search radii {radii} are not smaller than those of the network")
    expected = with_radii(empty, radii).state_dict()
    own = {f"{_LIVE}{key}": expected[key] for key in own_keys(expected, radii)}
    check_tensors({f"{_LIVE}{key}": tensor for key, tensor in tensors.items()}, own)


def _calibration_key(quality: str) -> str:
    """The metadata key of a calibration; that of quality "normal" has no suffix."""
    return "dicl_flow.calibration" + ("" if quality == NORMAL else f".{quality}")


def _in_order(data: bytes) -> bytes:
    """Sort the header, whose order is otherwise random, so that equal weights are equal files."""
    header, tensors = _split(data)
    text = json.dumps(header, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8
    return b"".join([struct.pack("<Q", len(text)), text, tensors])


def _split(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Split a .safetensors file into header and tensors, which are not copied."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), memoryview(data)[8 + length :]


def check_finite(tensors: "Mapping[str, Tensor]") -> None:
    """Refuse NaN and infinite values."""
    floats = (key for key, tensor in tensors.items() if _type(tensor) in _FLOATS)
    wrong = [key for key in floats if not bool(tensors[key].isfinite().all())]
    if wrong:
        raise InputError(f"NaN or infinite values in {_some(wrong)}")


def check_keys(tensors: "Mapping[str, Tensor]", model: "nn.Module") -> None:
    """Refuse tensors other than those of the model; the error names missing and unknown ones."""
    check_tensors(tensors, model.state_dict())


def check_tensors(tensors: "Mapping[str, Tensor]", expected: "Mapping[str, Tensor]") -> None:
    """Refuse tensors other than those expected, as `check_keys` does."""
    both = [(key, tensors[key], expected[key]) for key in sorted(expected.keys() & tensors.keys())]
    problems = {
        "missing": sorted(expected.keys() - tensors.keys()),
        "unknown": sorted(tensors.keys() - expected.keys()),
        "wrong shape": [
            f"{key} {tuple(tensor.shape)} instead of {tuple(wanted.shape)}"
            for key, tensor, wanted in both
            if tensor.shape != wanted.shape
        ],
        "wrong type": [
            f"{key} {_type(tensor)}"
            for key, tensor, wanted in both
            if _type(tensor) not in _TYPES[_type(wanted)]
        ],
    }
    if any(problems.values()):
        parts = [f"{kind}: {_some(keys)}" for kind, keys in problems.items() if keys]
        raise InputError(f"the weights do not fit the network; {'; '.join(parts)}")


def _type(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _some(keys: list[str]) -> str:
    rest = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
    return ", ".join(keys[:5]) + rest
