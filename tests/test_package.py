"""The shape of the package: what is public, what imports what, what it costs to import."""

import ast
from pathlib import Path

import pytest
from children import run_child

import dicl_flow

SOURCE = Path(dicl_flow.__file__).parent

# Who may import whom: a module may import its own layer's package and any layer below it.
LAYERS = [
    ["__main__"],
    ["cli"],
    ["analysis"],
    ["bench", "video"],
    ["sequence", "export", "choices", "hub"],
    ["training", "evaluation", "estimator"],
    ["sheets", "result"],
    [
        *(
            "weights",
            "data",
            "render",
            "warping",
            "tiling",
            "passes",
            "confidence",
            "gate",
            "compute",
        ),
        "interpolation",
    ],
    ["fast"],
    ["models"],
    ["matching"],
    ["nn"],
    ["occlusion", "feeding"],
    ["ops", "inputs", "visualize", "kernels"],
    ["config", "files"],
    ["errors", "_version", "lazy"],
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


def cpu_seconds(*code):
    """Processor time of a child that runs `code`: other programs do not slow it much."""
    timed = (*code, "import os; print(sum(os.times()[:2]))")
    child = run_child("-c", "\n".join(timed))
    assert child.returncode == 0, child.stderr
    return float(child.stdout.split()[-1])


@pytest.mark.heavy
def test_importing_everything_takes_at_most_three_times_torch():
    everything = "import dicl_flow; [getattr(dicl_flow, name) for name in dicl_flow.__all__]"
    assert cpu_seconds(everything) < 3 * cpu_seconds("import torch")


@pytest.mark.heavy
def test_help_needs_no_heavy_import():
    code = (
        "import sys; from dicl_flow.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cv2', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    assert cpu_seconds(code) < cpu_seconds("import torch")


def test_the_module_runs_as_a_command():
    assert (
        run_child("-m", "dicl_flow", "--version").stdout == f"dicl-flow {dicl_flow.__version__}\n"
    )


@pytest.mark.xdist_group("together")
def test_groups_reach_the_scheduler(request):
    """Else every worker would build every dear fixture for itself, without a word."""
    if request.config.getoption("loadgroup", False):
        assert request.node.nodeid.endswith("@together")


def test_no_test_forks_and_none_imports_another():
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr != "fork", path.name
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("test_"), path.name
