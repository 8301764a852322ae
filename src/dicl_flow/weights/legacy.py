"""Imports checkpoints of the authors' code: their tensor names become ours."""

import io
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ModelConfig
from ..errors import InputError, refusing
from ..files import read_bytes
from . import Weights, check_finite, check_keys

if TYPE_CHECKING:
    from torch import Tensor

# Their level n has stride 2**n; ours are named by stride.
_RULES: list[tuple[str, Callable[[re.Match[str]], str]]] = [
    (r"feature\.conv_start\.(\d)\.", lambda m: f"features.stem.{m[1]}."),
    (r"feature\.conv(\d)a\.", lambda m: f"features.down.{_stride(m) * 2}."),
    (r"feature\.deconv(\d)a\.", lambda m: f"features.up.{_stride(m)}."),
    (r"feature\.conv(\d)b\.", lambda m: f"features.down_again.{_stride(m) * 2}."),
    (r"feature\.deconv(\d)b\.", lambda m: f"features.up_again.{_stride(m)}."),
    (r"feature\.outconv_(\d)\.", lambda m: f"features.outputs.{_stride(m)}."),
    (r"matching(\d)\.match\.", lambda m: f"levels.{_stride(m)}.matcher.net."),
    (r"dap_layer(\d)\.dap_layer\.conv\.", lambda m: f"levels.{_stride(m)}.projection."),
    (r"context_net(\d)\.", lambda m: f"levels.{_stride(m)}.context.layers."),
]
_MERGE_PARTS = {".conv1.": ".resample.", ".conv2.": ".fuse."}


def import_legacy(path: str | Path, padding: str = "replicate") -> Weights:
    """Read a `.pth.tar` of the authors (or the same state dict, bare or prefixed), strictly.

    Checkpoints of the early training phases, without projection or context nets, give a config
    without them. `padding` is the one that the weights were trained with: "replicate", or "white"
    for the authors' KITTI weights.
    """
    legacy = _strip_prefix(_read_state_dict(path))
    config = ModelConfig(
        matcher="dicl",
        projection=any(key.startswith("dap_layer") for key in legacy),
        context=any(key.startswith("context_net") for key in legacy),
        padding=padding,
    )
    renamed = {rename(key): tensor for key, tensor in legacy.items()}
    if len(renamed) != len(legacy):
        raise InputError(f"{path}: two keys of the checkpoint are for the same tensor")
    from ..models import build_empty

    with refusing(f"{path} is not a DICL-Flow checkpoint", InputError):
        check_keys(renamed, build_empty(config))
        check_finite(renamed)
    tensors = {key: t.float() if t.is_floating_point() else t for key, t in renamed.items()}
    return Weights(config, tensors, {"source": f"converted from {Path(path).name}"})


def rename(key: str) -> str:
    """Our name for one of their keys; unknown keys stay unchanged."""
    for pattern, name in _RULES:
        new, hits = re.subn(f"^{pattern}", name, key)
        if hits:
            for theirs, ours in _MERGE_PARTS.items():
                new = new.replace(theirs, ours)
            return new
    return key


def _stride(match: re.Match[str]) -> int:
    return 2 ** int(match[1])


def _read_state_dict(path: str | Path) -> "Mapping[str, Tensor]":
    data = read_bytes(path)  # a missing file is reported before torch is imported
    import torch

    try:
        _refuse_bombs(data)
        content: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise InputError(
            f"{path} is refused: it is not a plain checkpoint of tensors "
            f"(it may contain code, or is not a checkpoint)"
        ) from None
    except Exception:  # torch documents none for damaged files
        raise InputError(f"{path} is not a PyTorch checkpoint, or is damaged") from None
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{path} does not contain a state dict")
    for key, value in content.items():
        if not _is_plain(key, value):
            raise InputError(f"{path} does not contain a state dict: {key!r} is not a tensor")
    return content


def _refuse_bombs(data: bytes) -> None:
    """Refuse what makes `torch.load` allocate more than the file has; `torch.save` writes none."""
    packed = data[:2] == b"PK" and any(
        entry.compress_type for entry in zipfile.ZipFile(io.BytesIO(data)).infolist()
    )
    if packed or b"bytearray" in data:  # a global that it calls with any number
        raise pickle.UnpicklingError


def _is_plain(key: object, value: object) -> bool:
    """Whether it is the name of a tensor, and a tensor that is neither sparse nor quantized."""
    from torch import Tensor, strided

    if not (isinstance(key, str) and isinstance(value, Tensor)):
        return False
    return value.layout == strided and not (value.is_quantized or value.is_meta)


def _strip_prefix(tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Drop prefixes of wrappers (`module.`, `model.`) that all keys share."""
    result = dict(tensors)
    for prefix in ("module.", "model.", "module."):
        if all(key.startswith(prefix) for key in result):
            result = {key.removeprefix(prefix): tensor for key, tensor in result.items()}
    return result
