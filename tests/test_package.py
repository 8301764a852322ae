"""The shape of the package: what is public, what imports what, what it costs to import."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dicl_flow

SOURCE = Path(dicl_flow.__file__).parent

# Who may import whom: a module may import its own layer's package and any layer below it.
LAYERS = [
    ["__main__"],
    ["cli"],
    ["analysis"],
    ["bench", "video"],
    ["sequence", "export", "choices"],
    ["training", "evaluation", "estimator", "hub"],
    ["sheets", "result"],
    ["weights", "data", "render", "warping", "tiling", "confidence", "interpolation"],
    ["fast"],
    ["models"],
    ["matching"],
    ["nn"],
    ["occlusion"],
    ["ops", "inputs", "visualize", "kernels"],
    ["config", "files"],
    ["errors", "_version"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# Neighbours of one layer that may look at each other.
ALLOWED = {("config", "files"), ("render", "data")}


def internal_imports(path):
    """Packages of dicl_flow that the file imports, at the top or inside functions."""
    package = path.relative_to(SOURCE).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield (*base, *name.split("."))[0]


FILES = sorted(
    path for path in SOURCE.rglob("*.py") if path.name != "__init__.py" or path.parent != SOURCE
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path):
    home = path.relative_to(SOURCE).with_suffix("").parts[0]
    assert home in RANK, f"say in LAYERS where {home} belongs"
    for target in internal_imports(path):
        below = RANK[target] > RANK[home] or target == home
        assert below or (home, target) in ALLOWED, f"{home} must not import {target}"


def test_devices_are_spoken_of_only_at_the_edges():
    """No layer that computes mentions a device kind; they follow their inputs."""
    for package in ("ops", "nn", "matching", "models", "config.py"):
        path = SOURCE / package
        for file in [path] if path.is_file() else path.rglob("*.py"):
            words = {
                n.value
                for n in ast.walk(ast.parse(file.read_text()))
                if isinstance(n, ast.Constant)
            }
            assert not words & {"cuda", "mps", "cpu"}, file


def test_public_names_exist():
    for name in dicl_flow.__all__:
        assert getattr(dicl_flow, name) is not None
    assert set(dicl_flow.__all__) <= set(dir(dicl_flow))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dicl_flow.nonsense  # noqa: B018


def seconds(code):
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - start


def test_import_costs_under_two_seconds_beyond_torch():
    everything = "import dicl_flow; [getattr(dicl_flow, name) for name in dicl_flow.__all__]"
    beyond = min(seconds(everything) - seconds("import torch") for _ in range(2))
    assert beyond < 2


def test_help_needs_no_heavy_import_and_half_a_second():
    code = (
        "import sys; from dicl_flow.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cv2', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    assert min(seconds(code) for _ in range(5)) < 0.5


def test_the_module_runs_as_a_command():
    command = [sys.executable, "-m", "dicl_flow", "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == f"dicl-flow {dicl_flow.__version__}\n"
