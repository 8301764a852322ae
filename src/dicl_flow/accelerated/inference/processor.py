"""What this machine's CPU can do: the one place that asks."""

import os
from functools import cache
from typing import NamedTuple

import torch


class Processor(NamedTuple):
    """What decides how to compute."""

    onednn: bool = False
    """torch has oneDNN."""
    amx: bool = False
    """oneDNN has matrix units for bfloat16."""
    bf16: bool = False
    """oneDNN computes in bfloat16; else it is emulated, very slowly."""
    fp16: bool = False
    """The same in float16."""
    acl: bool = False
    """oneDNN calls the Arm Compute Library, and torch has NNPACK, too."""


@cache
def ask() -> Processor:
    """Ask torch."""
    onednn = torch.backends.mkldnn
    if not onednn.is_available():
        return Processor()
    return Processor(
        onednn=True,
        amx=torch.cpu._is_amx_tile_supported() and _may_use_amx(),
        bf16=torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        fp16=torch.ops.mkldnn._is_mkldnn_fp16_supported(),
        acl=onednn.is_acl_available() and torch._nnpack_available(),
    )


def instructions() -> str:
    """The instructions that matter most for speed on x86, as "AVX-512"; "" if torch uses none."""
    vectors = {"AVX512": "AVX-512", "AVX2": "AVX2"}
    return "AMX" if ask().amx else vectors.get(torch.backends.cpu.get_cpu_capability(), "")


def _may_use_amx() -> bool:
    """Whether the variable that limits oneDNN's instructions, which torch ignores, allows AMX."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL"
    return limit.upper() in ("ALL", "DEFAULT") or "AMX" in limit.upper()
