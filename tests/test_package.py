"""The shape of the package: what is public, what imports what, what it costs to import."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from children import run_child
from rooms import MOST_ARROWS, MOST_ROOMS, PAGE, ROOMS, SOURCE, shown, tree

import dicl_flow


# Files of one name: each pair is about the same thing, seen from two sides.
def home_of(path):
    """The room that a file is in."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def internal_imports(path):
    """Rooms that the file imports from, at the top or inside functions."""
    package = path.relative_to(SOURCE).parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            names = [node.module] if node.module else [alias.name for alias in node.names]
            for name in names:
                yield (*base, *name.split("."))[0]


def test_the_rooms_and_arrows_are_those_on_the_list():
    """A new one belongs into `ROOMS` of tests/rooms.py, one that is gone does not."""
    files = list(SOURCE.rglob("*.py"))
    assert {home_of(path) for path in files} == set(ROOMS)
    found = {name: set() for name in ROOMS}
    for path in files:
        found[home_of(path)] |= set(internal_imports(path)) - {home_of(path)}
    assert found == {name: room.imports for name, room in ROOMS.items()}


def test_imports_point_down_and_the_house_stays_small():
    """Whoever is listed first is above: so there is no circle."""
    height = {name: -index for index, name in enumerate(ROOMS)}
    upward = [(a, b) for a, room in ROOMS.items() for b in room.imports if height[b] >= height[a]]
    assert upward == []
    assert len(ROOMS) <= MOST_ROOMS
    assert sum(len(room.imports) for room in ROOMS.values()) <= MOST_ARROWS


def test_the_page_shows_the_rooms():
    assert shown() == tree(), "python tests/rooms.py rewrites it"


def test_the_page_names_files_that_exist():
    """As far as it speaks of today."""
    today = PAGE.read_text(encoding="utf-8").partition("## Four walks")[0]
    names = set(re.findall(r"\b\w+\.py\b", today))
    folders = (SOURCE, PAGE.parents[1] / "benchmarks", Path(__file__).parent)
    assert len(names) > 20
    assert names <= {path.name for folder in folders for path in folder.rglob("*.py")}


@pytest.mark.parametrize("room", ["ops", "nn", "matching", "models", "config"])
def test_devices_are_spoken_of_only_at_the_edges(room):
    """No room that computes mentions a device kind; it follows its inputs."""
    files = [*(SOURCE / room).rglob("*.py"), *SOURCE.glob(f"{room}.py")]
    assert files
    for file in files:
        constants = (
            n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)
        )
        assert not {n.value for n in constants} & {"cuda", "mps", "cpu"}, file


def test_training_uses_the_estimator_and_no_accelerated_inference():
    text = "".join(path.read_text() for path in (SOURCE / "training").glob("*.py"))
    assert set(re.findall(r"from \.\.estimation\S* import (.*)", text)) == {"FlowEstimator"}
    modules = set(re.findall(r"from \.\.accelerated\.?(\S*) import", text))
    assert modules == {"settings", "losses", "training"}


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


@cache
def torch_seconds():
    """Processor time of the import of torch."""
    return cpu_seconds("import torch")


@pytest.mark.heavy
@pytest.mark.xdist_group("imports")
def test_importing_everything_takes_at_most_three_times_torch():
    everything = "import dicl_flow; [getattr(dicl_flow, name) for name in dicl_flow.__all__]"
    assert cpu_seconds(everything) < 3 * torch_seconds()


@pytest.mark.heavy
@pytest.mark.xdist_group("imports")
def test_help_needs_no_heavy_import():
    code = (
        "import sys; from dicl_flow.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cv2', 'numpy'} & set(sys.modules); assert not heavy, heavy"
    )
    assert cpu_seconds(code) < torch_seconds()


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
