"""Fixtures of all tests: small networks and weights, frames, the command, real pairs."""

import gc
import os
import sys
from pathlib import Path

import dicl_flow  # noqa: F401  # isort: skip (first: torch reads what it sets)

import numpy as np
import pytest
import torch
from children import end_forking
from exports import Exported, export_both
from golden import formula
from small_study import use_small_scenes

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports Triton

from dicl_flow.accelerated.settings import has_bf16, network_bytes
from dicl_flow.cli import main
from dicl_flow.config import LevelConfig, ModelConfig
from dicl_flow.models import build
from dicl_flow.weights import Weights, encode_weights

try:
    import resource
except ImportError:  # Windows
    resource = None

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores

DATASETS = Path(
    os.environ.get("DICL_FLOW_DATASETS") or Path(__file__).parents[2] / "shared" / "datasets"
)
"""A few real pairs in the layouts of the benchmarks; without them, some tests are skipped."""
NO_DATASETS = "no real pairs: DICL_FLOW_DATASETS names no folder"

FAST_BYTES = network_bytes(torch.float32, torch.device("cpu"), fast=True)
"""What the accelerated network needs for each pixel, in float32 on a CPU."""

HAS_BF16 = has_bf16(torch.device("cpu"))
"""If not, bfloat16 is emulated and hundreds of times slower: one small case is enough."""
needs_bf16 = pytest.mark.skipif(not HAS_BF16, reason="this CPU only emulates bfloat16")

slow_interpreted = () if torch.cuda.is_available() else pytest.mark.slow
"""Marks a kernel's test that takes Triton's interpreter seconds, and a GPU none."""

PEAK = "peak GiB of one process"
_PROCESSES = () if resource is None else (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)

SMALL = ModelConfig(levels=(LevelConfig(8, 2, ((8, 1),)), LevelConfig(4, 1, ((8, 1), (8, 2)))))
"""A network of two levels that a test can afford."""
SMALL_LEVELS = (
    "model.levels=[{ stride = 8, radius = 2, context = [[8, 1]] }, "
    "{ stride = 4, radius = 1, context = [[8, 1], [8, 2]] }]"
)
"""The same as a change of a recipe."""
TINY = ModelConfig(levels=(LevelConfig(4, 1, ((8, 1),)),))
"""A network of one level, at half the price: for tests of what is around it."""
TINY_LEVEL = "model.levels=[{ stride = 4, radius = 1, context = [[8, 1]] }]"
"""The same as a change of a recipe."""


@pytest.fixture(scope="session")
def datasets() -> Path:
    """The folder of real pairs, if there is one."""
    if not DATASETS.is_dir():
        pytest.skip(NO_DATASETS)
    return DATASETS


_frozen = [0]  # numbers of modules


def pytest_collection_finish():
    """Garbage collection leaves out what is imported by now: a tenth of the time of all tests."""
    if len(sys.modules) > _frozen[-1] + 300:
        _frozen.append(len(sys.modules))
        gc.collect()
        gc.freeze()


def pytest_runtest_logfinish():
    """So it does with what a test has imported: the first optimizer alone, hundreds of modules."""
    pytest_collection_finish()


def pytest_unconfigure():
    """At the end all is freed; nanobind would print what is not."""
    end_forking()
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Record the peak memory of this process and its children so far."""
    report = yield
    if call.when == "teardown" and resource is not None:
        peaks = (resource.getrusage(who).ru_maxrss for who in _PROCESSES)
        report.user_properties.append((PEAK, max(peaks) / 2**20))  # KiB on Linux
    return report


def pytest_terminal_summary(terminalreporter):
    """Print how many tests were skipped for lack of data, and the peak memory."""
    reports = terminalreporter.stats
    without = sum(NO_DATASETS in str(report.longrepr) for report in reports.get("skipped", []))
    if without:
        terminalreporter.write_line(f"{without} tests skipped: {NO_DATASETS}")
    peaks = {
        report.nodeid: value
        for report in reports.get("", [])  # set-ups and teardowns that passed
        for name, value in report.user_properties
        if name == PEAK
    }
    if peaks:
        first = max(peaks, key=peaks.__getitem__)  # the first of equal ones
        terminalreporter.write_line(f"{PEAK}: {peaks[first]:.2f}, reached in {first}")


@pytest.fixture
def small_scenes(monkeypatch):
    """Small procedural textures and few outlines, for tests that do not look at them."""
    use_small_scenes(monkeypatch.setattr)


@pytest.fixture
def one_thread():
    """As many threads as the children have: otherwise sums are rounded differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def golden_state() -> dict[str, torch.Tensor]:
    return formula.state_dict()


@pytest.fixture(scope="session")
def golden_images() -> tuple[torch.Tensor, torch.Tensor]:
    """The 256x256 pair of the golden outputs, (1, 3, H, W) float64, normalised."""
    image1, image2 = (
        torch.from_numpy(image.transpose(2, 0, 1)[None] / 127.5 - 1)
        for image in formula.pair(256, 256)
    )
    return image1, image2


@pytest.fixture(scope="session")
def golden_outputs() -> dict[str, np.ndarray]:
    with np.load(Path(formula.__file__).with_name("outputs.npz")) as archive:
        return dict(archive)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, golden_state) -> Path:
    """A checkpoint as the authors' code writes it."""
    path = tmp_path_factory.mktemp("legacy") / "ckpt.pth.tar"
    torch.save({"epoch": 1, "arch": "dicl", "state_dict": golden_state}, path)
    return path


@pytest.fixture(scope="session")
def small_weights(tmp_path_factory) -> Path:
    """A weights file of the small network."""
    return write_weights(tmp_path_factory.mktemp("weights") / "small.safetensors", SMALL)


@pytest.fixture(scope="session")
def tiny_weights(tmp_path_factory) -> Path:
    """A weights file of the tiny network."""
    return write_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors", TINY)


def write_weights(path: Path, config: ModelConfig) -> Path:
    """Write random weights; return the path."""
    torch.manual_seed(0)
    state = build(config).state_dict()
    path.write_bytes(encode_weights(Weights(config, state, {"recipe": "none"})))
    return path


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Exported:
    """Files of a tiny network for other programs."""
    return export_both(tmp_path_factory.mktemp("exported"))


@pytest.fixture
def frames(tmp_path) -> tuple[Path, Path]:
    """Two PNG files of one size."""
    import cv2

    paths = tmp_path / "frame1.png", tmp_path / "frame2.png"
    for path, image in zip(paths, formula.pair(37, 51), strict=True):
        cv2.imwrite(str(path), image)
    return paths


@pytest.fixture
def run(capsys):
    """Run the command; return its exit code, output and errors."""

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit_info.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def exact_convolutions():
    """The same numbers again, and none rounded to TF32: what kernels are compared with."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        torch.manual_seed(0)
        yield
