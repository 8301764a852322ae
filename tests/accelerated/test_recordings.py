"""Only shapes that come again are recorded as graphs, and float32 is exact at once."""

from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

from dicl_flow.accelerated import recording
from dicl_flow.accelerated.recording import Graphs
from dicl_flow.accelerated.settings import exact_float32
from dicl_flow.config import ModelConfig
from dicl_flow.estimation.compute import CudaEngine, Engine, PlainEngine, choose_compute


def test_float32_is_exact_at_the_first_call():
    """What cuDNN takes without a search has fewer digits."""
    with exact_float32():
        assert torch.backends.cudnn.benchmark
        assert not torch.backends.cudnn.allow_tf32


class Pretended(Graphs):
    """Graphs without a GPU: a recording is noted in `log`."""

    def __init__(self, log):
        self._compute, self._seen = lambda x: log.append("computed") or x, set()
        self._recordings, self.log = OrderedDict(), log

    def __call__(self, *inputs):
        return self._run(inputs)

    def _record(self, inputs):
        self.log.append("recorded")
        graph = SimpleNamespace(replay=lambda: self.log.append("replayed"))
        return recording.Recording(graph, tuple(x.clone() for x in inputs), inputs[0])


def test_graphs_are_recorded_for_the_shapes_that_come_again(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(recording, "MOST_KEPT", 1)
    log = []
    graphs, small, large = Pretended(log), torch.zeros(2), torch.zeros(3)

    def call(x):
        log.clear()
        graphs(x)
        return log[:]

    assert call(small) == ["computed", "computed"]  # once only to compile the kernels
    assert call(large) == ["computed"]
    assert call(small) == ["recorded", "replayed"]
    assert call(small) == ["replayed"]
    assert call(large) == ["recorded", "replayed"]  # in the place of the other
    assert call(small) == ["computed"]
    assert call(large) == ["replayed"]


@pytest.mark.parametrize(
    ("engine", "device", "precision", "value"),
    [
        (CudaEngine, "cuda", "fp16", "no recording"),
        (PlainEngine, "cuda", "fp32", "search"),
        (PlainEngine, "cuda", "fp16", "as it comes"),
        (PlainEngine, "cpu", "fp32", "as it comes"),
    ],
)
def test_the_path_of_a_single_pair_has_a_reason(monkeypatch, engine, device, precision, value):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    made = object.__new__(engine)
    Engine.__init__(made, None, choose_compute(ModelConfig(), device, precision, "plain"))
    assert made.once().value == value
    assert made.once().reason


def test_kernels_are_compiled_instead_of_launched():
    pytest.importorskip("triton")
    from dicl_flow.accelerated.kernels import Kernel, compiling

    class Compiled:
        def warmup(self, *arguments, grid, **constants):
            return "compiled", arguments, grid, constants

        def __getitem__(self, grid):
            return lambda *arguments, **constants: ("launched", arguments, grid, constants)

    x = torch.zeros(1)
    kernel, given = Kernel(Compiled()), ((x,), (4,), {"rows": 2})
    with compiling():
        assert kernel[4,](x, rows=2) == ("compiled", *given)
    assert kernel[4,](x, rows=2) == ("launched", *given)
