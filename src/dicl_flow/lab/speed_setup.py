"""What `dicl-flow bench` starts from: the network, the ways to compute it, and the machine."""

import platform
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..config import Calibration, ModelConfig, Quality
from ..errors import InputError
from ..estimation.compute import choose_compute, gpu_name, instructions
from ..models import FlowNetwork, build
from ..weights import load_model, read_weights, resolve
from . import speed_compiled

# Linux has only numbers for ARM's processors
_ARM_PARTS = {"0xd0c": "ARM Neoverse-N1", "0xd40": "ARM Neoverse-V1", "0xd49": "ARM Neoverse-N2"}


def open_network(weights: str | None, quality: Quality) -> tuple[FlowNetwork, Calibration | None]:
    """Load weights for frames of any size, even if they would scale large ones down."""
    found = read_weights(resolve(weights))
    config = found.config.at_full_size()
    return load_model(replace(found, config=config)), found.calibration_for(quality)


def random_network(host: str) -> FlowNetwork:
    """Build a network with random weights."""
    torch.manual_seed(0)
    return build(ModelConfig(host=host))


def choose_ways(
    paths: Iterable[str], config: ModelConfig, device: torch.device
) -> list[tuple[str, str]]:
    """Read each BACKEND-PRECISION, resolve "auto", drop duplicates."""
    ways = []
    for path in paths:
        backend, dash, precision = path.partition("-")
        if not dash:
            raise InputError(f"`path` is BACKEND-PRECISION, as fast-fp16, got {path!r}")
        compiled = backend == speed_compiled.COMPILED
        if compiled:
            speed_compiled.check_compiler(device)
        chosen = choose_compute(config, str(device), precision, "fast" if compiled else backend)
        ways.append((backend if compiled else chosen.backend, chosen.precision))
    return list(dict.fromkeys(ways))


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The device by name, its threads and the version of torch."""
    return {
        "torch": torch.__version__,
        "device": gpu_name(device) or _processor(),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    """The name of the processor (Linux) or its kind, its instructions (x86) and its threads."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text().splitlines() if table.exists() else []
    about = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    name = about.get("model name") or _ARM_PARTS.get(about.get("CPU part", ""), platform.machine())
    found = instructions()
    return f"{name}{found and f' with {found}'}, {torch.get_num_threads()} threads"
