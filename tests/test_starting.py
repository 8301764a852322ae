"""How a command starts and ends: what Python need not collect."""

import gc
import sys

import pytest

from dicl_flow.cli import starting


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_off_for_a_while_and_then_as_before(monkeypatch, enabled):
    calls = []
    monkeypatch.setattr(gc, "isenabled", lambda: enabled)
    monkeypatch.setattr(gc, "disable", lambda: calls.append("off"))
    monkeypatch.setattr(gc, "enable", lambda: calls.append("on"))
    with starting.without_collection():
        assert calls == ["off"]
    assert calls == (["off", "on"] if enabled else ["off"])


@pytest.mark.parametrize("with_triton", [False, True])
def test_the_end_leaves_objects_to_the_system_unless_triton_would_complain(
    monkeypatch, with_triton
):
    calls = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("frozen"))
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    if with_triton:
        monkeypatch.setitem(sys.modules, "triton", gc)
    starting.leave_to_system()
    assert calls == ([] if with_triton else ["frozen"])


def test_parts_follow_each_other(monkeypatch):
    clock = iter([0.0, 2.0, 7.0, 7.5])
    monkeypatch.setattr(starting, "perf_counter", lambda: next(clock))
    parts = starting.Parts()
    parts.end("torch")
    parts.take({"weights": 1.0})
    parts.end("estimate")
    assert parts.seconds == {"torch": 2.0, "weights": 1.0, "estimate": 0.5}
    assert str(parts) == "torch 2.00 s, weights 1.00 s, estimate 0.50 s"
