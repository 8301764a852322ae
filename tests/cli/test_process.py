"""A command starts and ends quickly: no garbage collection, CUDA loaded early, a quick exit."""

import ctypes
import gc
import sys
from types import SimpleNamespace

import pytest
import torch
from children import run_child

from dicl_flow.cli import command


@pytest.mark.parametrize(("enabled", "is_new"), [(True, True), (False, True), (True, False)])
def test_collection_is_off_for_a_while_and_then_as_before(monkeypatch, enabled, is_new):
    calls = []
    if is_new:
        monkeypatch.delitem(sys.modules, "torch", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "torch", gc)
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    monkeypatch.setattr(gc, "disable", lambda: calls.append("off"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("on"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("left out"))
    with command.without_collection():
        assert calls == ["off"]
    assert calls == ["off", *["left out"] * is_new, *["on"] * enabled]


CHILD = """
import atexit, sys
from dicl_flow.cli.command import quick_end

class Object:
    def __del__(self):
        print("taken apart", flush=True)

kept = Object()
with quick_end():
    atexit.register(print, "registered")
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code", "last"),
    [
        ("sys.exit(2)", 2, "registered"),
        ("raise KeyError", 1, "taken apart"),
        ("sys.stdout.close(); sys.exit(3)", 3, ""),
    ],
)
def test_the_end_leaves_objects_to_the_system_unless_python_has_something_to_report(
    end, code, last
):
    child = run_child("-c", CHILD.format(end=end))
    assert child.returncode == code
    assert child.stdout.splitlines()[-1:] == ([last] if last else [])


def test_parts_follow_each_other(monkeypatch):
    clock = iter([0.0, 2.0, 7.0, 7.5])
    monkeypatch.setattr(command, "perf_counter", lambda: next(clock))
    parts = command.Parts()
    parts.end("torch")
    parts.take({"weights": 1.0})
    parts.end("estimate")
    assert parts.seconds == {"torch": 2.0, "weights": 1.0, "estimate": 0.5}
    assert str(parts) == "torch 2.00 s, weights 1.00 s, estimate 0.50 s"


def test_cuda_is_woken_where_it_may_be_used(monkeypatch):
    woken = []
    thread = lambda target, args, daemon: SimpleNamespace(start=lambda: woken.append(args))  # noqa: E731
    monkeypatch.setattr(command, "Thread", thread)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    for built_for_cuda in (False, True):
        monkeypatch.setattr(command, "_torch_has_cuda", lambda there=built_for_cuda: there)
        for device in ("auto", "cuda", "cuda:1", "cpu", "mps", "cuda:x", "tpu"):
            command.preload_cuda(device)
    monkeypatch.setitem(sys.modules, "torch", gc)
    command.preload_cuda("cuda")
    assert woken == [(0,), (0,), (1,)]


@pytest.mark.parametrize(
    ("codes", "convolved"),
    [((0, 0, 0), ["cuda:1"]), ((100, 0, 0), []), ((0, 101, 0), []), ((0, 0, 2), [])],
)
def test_cudnn_follows_a_context_that_was_made(monkeypatch, codes, convolved):
    names = ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain")
    answers = {name: lambda *x, code=code: code for name, code in zip(names, codes, strict=True)}
    found: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(**answers))
    monkeypatch.setattr(command, "_convolve", found.append)
    command._preload(1)
    assert found == convolved


def test_a_machine_without_a_driver_is_no_error(monkeypatch):
    asked: list[str] = []
    convolved: list[str] = []

    def missing(name):
        asked.append(name)
        raise OSError(name)

    monkeypatch.setattr(command, "_convolve", convolved.append)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    command._preload(0)
    assert asked == ["libcuda.so.1"]
    assert convolved == []


def test_the_first_convolution_runs(monkeypatch):
    outputs = []
    conv2d = torch.nn.functional.conv2d
    monkeypatch.setattr(
        torch.nn.functional, "conv2d", lambda *inputs: outputs.append(conv2d(*inputs))
    )
    command._convolve("cpu")
    (output,) = outputs
    assert (output.shape, output.dtype) == ((1, 8, 6, 6), torch.float16)


STARTS = """
import os, sys
from dicl_flow import cli
names = "MIMALLOC_PURGE_DELAY", "GOMP_SPINCOUNT"
cli.main = lambda: print(*map(os.environ.get, names), "torch" in sys.modules)
cli.run()
"""


@pytest.mark.parametrize(
    ("command", "asked", "expected"),
    [
        ("video", {}, "10000 10000"),
        ("video", {"MIMALLOC_PURGE_DELAY": "5", "GOMP_SPINCOUNT": "6"}, "5 6"),
        ("video", {"OMP_WAIT_POLICY": "active"}, "10000 None"),
        ("bench", {}, "None 10000"),
    ],
)
def test_allocator_and_threads_are_told_before_torch_is_there(
    monkeypatch, command, asked, expected
):
    for name in ("MIMALLOC_PURGE_DELAY", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    child = run_child("-c", STARTS, command, **asked)
    assert child.stdout.split() == [*expected.split(), "False"]
