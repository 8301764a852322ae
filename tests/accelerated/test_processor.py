"""What the CPU can do, not its name, decides the precision."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from dicl_flow.accelerated import settings
from dicl_flow.accelerated.settings import Processor
from dicl_flow.config import ModelConfig
from dicl_flow.estimation.compute import choose_compute
from dicl_flow.lab.speed import describe_machine

CHILD = """
import torch
from conftest import SMALL
from dicl_flow.config import ModelConfig
from dicl_flow.estimation.compute import choose_compute
from dicl_flow.estimation.estimator import FlowEstimator
from dicl_flow.models import build

torch.manual_seed(0)
model, images = build(SMALL), torch.rand(2, 1, 3, 32, 48)
plain, fast = (
    FlowEstimator(model, "cpu", "fp32", name).estimate(*images)[0] for name in ("plain", "fast")
)
print(choose_compute(ModelConfig(), "cpu").precision, float((plain - fast).abs().max()) < 1e-3)
"""


@pytest.mark.parametrize(
    ("kind", "precision", "reason"),
    [
        (Processor(onednn=True, amx=True, bf16=True, fp16=True), "bf16", "has AMX"),
        (Processor(onednn=True, bf16=True), "fp32", "no AMX"),  # AVX-512, with bfloat16 or without
        (Processor(onednn=True), "fp32", "no AMX"),  # AVX2
        (Processor(onednn=True, bf16=True, fp16=True, acl=True), "fp16", "has fp16 arithmetic"),
        (Processor(onednn=True, fp16=True, acl=True), "fp16", "has fp16 arithmetic"),
        (Processor(onednn=True, acl=True), "fp32", "no fp16 arithmetic"),
        (Processor(), "fp32", "no AMX"),
    ],
)
def test_the_processor_decides_the_precision(monkeypatch, kind, precision, reason):
    monkeypatch.setattr(settings, "processor", lambda: kind)
    chosen, because = choose_compute(ModelConfig(), "cpu").choices()["precision"]
    assert chosen == precision
    assert because.endswith(reason)
    plain = choose_compute(ModelConfig(), "cpu", backend="plain")
    assert plain.precision == "fp32"


@pytest.mark.parametrize(
    ("limit", "amx"),
    [("", True), ("ALL", True), ("avx512_core_amx", True), ("AVX512_CORE_BF16", False)],
)
def test_onednn_may_be_kept_from_using_amx(monkeypatch, limit, amx):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert settings.processor.__wrapped__().amx == amx


@pytest.mark.parametrize(
    ("amx", "capability", "instructions"),
    [
        (True, "AVX512", "with AMX, "),
        (False, "AVX512", "with AVX-512, "),
        (False, "AVX2", "with AVX2, "),
        (False, "DEFAULT", ""),  # also on ARM
    ],
)
def test_bench_names_the_instructions(monkeypatch, amx, capability, instructions):
    monkeypatch.setattr(settings, "processor", lambda: Processor(onednn=True, amx=amx))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    device = describe_machine(torch.device("cpu"))["device"]
    assert instructions in device
    assert (" with " in device) == bool(instructions)


def test_without_onednn_nothing_is_assumed(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert settings.processor.__wrapped__() == Processor()


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"),
    reason="only x86 processors can be limited to older instructions",
)
@pytest.mark.parametrize(
    ("onednn", "aten"),
    [
        pytest.param("AVX512_CORE_BF16", "avx2", marks=pytest.mark.slow),
        ("AVX2", "avx2"),
        ("SSE41", "default"),
    ],
)
def test_an_older_processor_computes_the_same_in_float32(onednn, aten):
    limits = {"ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": aten}
    result = subprocess.run(
        [sys.executable, "-c", CHILD],
        env={**os.environ, **limits, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["fp32", "True"]


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ({}, [("mallopt", -3), ("mallopt", -1)]),
        ({"GLIBC_TUNABLES": "glibc.pthread.rseq=1"}, [("mallopt", -3), ("mallopt", -1)]),
        ({"MALLOC_ARENA_MAX": "2"}, []),
        ({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}, []),
    ],
)
def test_freed_memory_is_kept_unless_the_environment_says_how(monkeypatch, variable, expected):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    calls = []
    monkeypatch.setattr(settings, "_c_library", lambda *call: calls.append(call[:2]))
    settings.keep_freed_memory.__wrapped__()
    assert calls == expected


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="GNU's C library alone")
def test_the_c_library_takes_the_values():
    settings.return_freed_memory()
    assert all(settings._c_library("mallopt", *item) == 1 for item in settings._MALLOC.items())


def test_another_c_library_is_left_alone():
    assert settings._c_library("no_such_function", 1) is None
