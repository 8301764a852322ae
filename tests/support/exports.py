"""A tiny network exported in both formats, once for all tests that look at the files."""

import json
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from dicl_flow.cli import main
from dicl_flow.config import Calibration, LevelConfig, ModelConfig
from dicl_flow.models import build
from dicl_flow.weights import Weights, encode_weights

# sides in multiples of 8
TINY = ModelConfig(levels=(LevelConfig(4, 1),), projection=False, context=False)
SIZE = (96, 128)  # of the frames of the pages
GROUP = "docs/how-to/exporting.md"
"""The tests of the files, and the page that uses them: tracing takes half a minute."""


@dataclass(frozen=True)
class Exported:
    """The weights, the files made of them, and what the command printed about the last one."""

    weights: Path
    pt2: Path
    onnx: Path
    summary: dict[str, Any]


def make_weights(folder, **changes):
    torch.manual_seed(0)
    config = replace(TINY, **changes)
    path = folder / "tiny.safetensors"
    calibration = Calibration(0.3, -1.0, 0.4, -0.5, 0.2, -0.3, -0.6, -0.9)
    state = build(config).state_dict()
    weights = Weights(config, state, {"recipe": "r"}, calibration=calibration)
    path.write_bytes(encode_weights(weights))
    return path


def export_both(folder):
    """Export for one size, whose frames are scaled down."""
    weights = make_weights(folder, padding="resize", max_pixels=2000)
    pt2, onnx = folder / "flow.pt2", folder / "flow.onnx"
    for output in (pt2, onnx):
        arguments = ["--size", f"{SIZE[1]}x{SIZE[0]}", "-w", weights, "-o", output, "--json"]
        with redirect_stdout(StringIO()) as told, pytest.raises(SystemExit) as exit_info:
            main(["export", *map(str, arguments)])
        assert not exit_info.value.code
    return Exported(weights, pt2, onnx, json.loads(told.getvalue()))
