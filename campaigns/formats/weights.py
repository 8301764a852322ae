"""Weights as .safetensors, and checkpoints of the authors' code."""

import io
import json
import pickle
import re
import struct
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from dicl_flow import LevelConfig, ModelConfig, build
from dicl_flow.weights import Weights, encode_weights, load_model, read_weights
from dicl_flow.weights.legacy import import_legacy, rename

from ..mutations import EXTREMES, extreme, mutated
from . import Format
from .archives import nested, packed, unpacked
from .plain_data import changed_tree

_SMALL = ModelConfig(
    levels=(LevelConfig(8, 1, ((4, 1),)),), feature_channels=1, matcher="dot", projection=True
)
_DTYPES = (
    *("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "U16", "U32", "U64"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "C64", "X", ""),
)


def _safetensors_seeds() -> list[bytes]:
    """Mostly files of three tensors, for speed; one in ten has all that the network needs."""
    torch.manual_seed(0)
    tensors = build(_SMALL).state_dict()
    some = {key: tensors[key] for key in sorted(tensors, key=lambda key: tensors[key].numel())[:3]}
    few, all_of_them = (encode_weights(Weights(_SMALL, part)) for part in (some, tensors))
    return [few] * 9 + [all_of_them]


def _read_weights(path: Path) -> Mapping[str, Tensor]:
    weights = read_weights(path)
    return weights.tensors if len(weights.tensors) < 5 else load_model(weights).state_dict()


def _safetensors(dice: Random, seeds: Sequence[bytes]) -> bytes:
    """Change the header, with a right length before it, and often right places of tensors."""
    data = dice.choice(seeds)
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    kind = dice.randrange(7)
    if kind == 0:
        return struct.pack("<Q", dice.choice(EXTREMES)) + data[8:]
    if kind == 1:
        key = dice.choice([key for key in header["__metadata__"] if "config" in key])
        tree = changed_tree(json.loads(header["__metadata__"][key]), dice)
        header["__metadata__"][key] = json.dumps(tree)
    elif kind == 2:
        entry = header[dice.choice([key for key in header if key != "__metadata__"])]
        entry["dtype"] = dice.choice(_DTYPES)
    elif kind == 3:
        numbers = _values(dice)
        place = dice.randrange(0, max(1, len(body) - len(numbers)), 4)
        body = body[:place] + numbers + body[place + len(numbers) :]
    elif kind == 4:
        odd = ("[" * 5000, "{" * 5000, '{"x":' * 3000, "null", "1", "", "NaN", '{"a":1,"a":2}')
        header["__metadata__"]["dicl_flow.config"] = dice.choice(odd)
        for name in ("calibration", "base"):
            header["__metadata__"][f"dicl_flow.{name}"] = dice.choice((*odd, _base(dice)))
    else:
        header = changed_tree(header, dice)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _base(dice: Random) -> str:
    """What names the weights that a file completes."""
    name = dice.choice(("rendered", "../../x", "", 1, None, ["rendered"]))
    return json.dumps({"name": name, "sha256": dice.choice(("", "0" * 64, 1)), "parts": ["x"]})


def _values(dice: Random) -> bytes:
    return struct.pack("<f", dice.choice((float("nan"), float("inf"), 3e38))) * dice.choice((1, 9))


def _finite(data: bytes, result: Mapping[str, Tensor]) -> str:
    wrong = [key for key, tensor in result.items() if not bool(torch.isfinite(tensor).all())]
    return f"{wrong[0]} contains NaN or infinite values" if wrong else ""


@cache
def _state() -> dict[str, Tensor]:
    """The authors' names with tensors of the right shape, each stored as one number."""
    with torch.device("meta"):
        ours = build(ModelConfig(matcher="dicl")).state_dict()
    theirs = {rename(key): key for key in _their_keys()}
    return {
        theirs[key]: torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
        for key, tensor in ours.items()
    }


def _their_keys() -> list[str]:
    text = (Path(__file__).parents[2] / "tests/support/golden/legacy_shapes.json").read_text()
    return list(json.loads(text))


def _saved(content: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **how)
    return buffer.getvalue()


def _legacy_seeds() -> list[bytes]:
    content = {"epoch": 1, "arch": "dicl", "state_dict": _state()}
    return [_saved(content), _saved(content, _use_new_zipfile_serialization=False)]


class _Code:
    """What no one should load."""

    def __init__(self, call: Any, *arguments: object) -> None:
        self.call = call, arguments

    def __reduce__(self) -> Any:
        return self.call


def _contents(dice: Random) -> Any:
    """What torch can save, but is no checkpoint of the authors."""
    name = dice.choice(list(_state()))
    tensor = _state()[name]
    odd = (
        *(None, 1, "x", b"x", [tensor], (), {}, torch.Size([2**40]), torch.float64),
        *(tensor.to(torch.complex64), torch.zeros(2**16).to_sparse(), tensor.double()),
        *(torch.zeros(1).expand(2**40), tensor.bool(), torch.full(tensor.shape[:1], float("nan"))),
        *(torch.zeros(2, 2).to_sparse_csr(), torch.nn.Parameter(tensor * 1.0), tensor.half()),
        torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8),
        torch.zeros(tensor.shape, device="meta"),
    )
    changed: dict[Any, Any] = {
        **_state(),
        dice.choice((name, name, "x", 1, None, (1, 2))): dice.choice(odd),
    }
    wrapped = dice.choice((changed, {"state_dict": changed}, {"state_dict": dice.choice(odd)}))
    return dice.choice((wrapped, wrapped, wrapped, dice.choice(odd)))


def _legacy(dice: Random, seeds: Sequence[bytes]) -> bytes:
    kind = dice.randrange(6)
    if kind == 0:
        return _saved(_contents(dice), _use_new_zipfile_serialization=dice.random() < 0.7)
    if kind == 1:
        import os

        calls = (_Code(os.system, "true"), _Code(eval, "1"), _Code(bytearray, 2**33))
        content = dice.choice((*calls, {"state_dict": calls[0]}))
        return dice.choice((pickle.dumps(content, 2), _saved(content)))
    if kind == 2:
        return nested(seeds[0], dice.choice((1, 3)), "archive/data.pkl")
    if kind == 3:
        return _lengths(seeds[1], dice)
    entries = unpacked(seeds[0])
    pickled = next(name for name in entries if name.endswith("data.pkl"))
    if kind == 4:
        entries[pickled] = _lengths(entries[pickled], dice)
    else:
        name = dice.choice(list(entries))
        entries[name] = dice.choice((b"", bytes(2**26), mutated(entries[name], dice, seeds)))
    return packed(entries, dice)


def _lengths(data: bytes, dice: Random) -> bytes:
    """Change the operands of some opcodes: numbers, lengths, indices of the memo, globals."""
    changed = data
    for _ in range(dice.choice((1, 1, 3, 10))):
        places = [found.start() for found in re.finditer(rb"[KMJX\x8aqrh]", changed)]
        place = dice.choice(places) + 1
        new = dice.choice((extreme(dice), dice.randbytes(1)))
        changed = changed[:place] + new + changed[place + len(new) :]
    return changed


def _read_legacy(path: Path) -> Mapping[str, Tensor]:
    return import_legacy(path).tensors


FORMATS = {
    "safetensors": Format(".safetensors", _safetensors_seeds, _read_weights, _safetensors, _finite),
    "legacy": Format(".pth.tar", _legacy_seeds, _read_legacy, _legacy, _finite, count=1000),
}
