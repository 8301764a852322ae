"""The shape of the package: what is public, what imports what, what it costs to import."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from children import run_child
from rooms import PAGE, ROOMS, SOURCE, shown, tree

import dicl_flow

TESTS = Path(__file__).parent


def home_of(path):
    """The room that a file is in."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def file_of(module, source):
    """The file of a module of the package; None for modules of others."""
    if module[0] != "dicl_flow":
        return None
    place = source.joinpath(*module[1:])
    return next((f for f in (place.with_suffix(".py"), place / "__init__.py") if f.is_file()), None)


def imported_modules(path, source):
    """Modules that a file imports, at the top or inside functions, each before what contains it."""
    package = ("dicl_flow", *path.relative_to(source).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((tuple(alias.name.split(".")),) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            yield from (((*module, alias.name), module) for alias in node.names)


@cache
def imports_between_files(source=SOURCE):
    """Each file of the package with those it imports."""
    imports = {}
    for path in source.rglob("*.py"):
        files = (
            next(filter(None, (file_of(module, source) for module in modules)), None)
            for modules in imported_modules(path, source)
        )
        imports[path] = set(files) - {path, None}
    return imports


def reached_from(start, imports):
    """All files that `start` imports, directly or through others."""
    reached, waiting = set(), [start]
    while waiting:
        following = imports[waiting.pop()] - reached
        reached |= following
        waiting += following
    return reached


def circles(imports):
    """Groups of files that import each other, directly or through others."""
    reached = {path: reached_from(path, imports) for path in imports}
    return {
        frozenset(other for other in reached[path] if path in reached[other])
        for path in imports
        if path in reached[path]
    }


def test_the_rooms_and_arrows_are_those_on_the_list():
    """A new one belongs into `ROOMS` of tests/support/rooms.py, one that is gone does not."""
    imports = imports_between_files()
    assert {home_of(path) for path in imports} == set(ROOMS)
    found = {name: set() for name in ROOMS}
    for path, imported in imports.items():
        found[home_of(path)] |= {home_of(other) for other in imported} - {home_of(path)}
    assert found == {name: room.imports for name, room in ROOMS.items()}


def test_imports_point_down():
    """Whoever is listed first is above: so there is no circle of rooms."""
    height = {name: -index for index, name in enumerate(ROOMS)}
    upward = [(a, b) for a, room in ROOMS.items() for b in room.imports if height[b] >= height[a]]
    assert upward == []


def test_no_files_import_each_other():
    """Not even inside functions."""
    found = circles(imports_between_files())
    assert [[path.relative_to(SOURCE).as_posix() for path in circle] for circle in found] == []


def test_a_circle_is_found_wherever_the_imports_are(tmp_path):
    (tmp_path / "inner").mkdir()
    code = {
        "__init__.py": "",
        "inner/__init__.py": "from .a import one",
        "inner/a.py": "def one():\n    from . import b",
        "inner/b.py": "import dicl_flow.inner.c",
        "inner/c.py": "from ..inner.a import one",
        "inner/d.py": "from .a import one",
    }
    for name, text in code.items():
        (tmp_path / name).write_text(text)
    (circle,) = circles(imports_between_files(tmp_path))
    assert {path.name for path in circle} == {"a.py", "b.py", "c.py"}


def test_the_page_shows_the_rooms():
    assert shown() == tree(), "python tests/support/rooms.py rewrites it"


def test_the_page_names_files_that_exist():
    names = set(re.findall(r"\b\w+\.py\b", PAGE.read_text(encoding="utf-8")))
    folders = (SOURCE, PAGE.parents[1] / "benchmarks", TESTS)
    assert len(names) > 8
    assert names <= {path.name for folder in folders for path in folder.rglob("*.py")}


@pytest.mark.parametrize("room", ["ops", "models", "config"])
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
    assert modules == {"settings", "losses", "recording", "training"}


TORCH_IS_SOUGHT = """
import os, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("MIMALLOC_PURGE_DELAY"))
            sys.exit()
sys.meta_path.insert(0, Watch())
"""


@pytest.mark.parametrize(
    "line",
    [
        "import dicl_flow; dicl_flow.load()",
        "import dicl_flow; import torch",
        "from dicl_flow.models import build",
        "from dicl_flow.hub import HubNetwork",
        "import hubconf",
    ],
)
def test_whatever_imports_torch_has_told_its_threads_not_to_spin(monkeypatch, line):
    for name in ("GOMP_SPINCOUNT", "MIMALLOC_PURGE_DELAY", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    assert run_child("-c", TORCH_IS_SOUGHT + line).stdout == "10000 10000\n"
    child = run_child("-c", TORCH_IS_SOUGHT + line, OMP_WAIT_POLICY="active")
    assert child.stdout == "None 10000\n"


@pytest.mark.parametrize(
    ("asked", "expected"), [({}, "True None"), ({"GOMP_SPINCOUNT": "6"}, "False 6")]
)
def test_nothing_is_set_once_torch_is_there(monkeypatch, asked, expected):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import os, sys; sys.modules['torch'] = object()\n"
        "from dicl_flow.environ import threads_spin_long\n"
        "print(threads_spin_long(), os.environ.get('GOMP_SPINCOUNT'))"
    )
    assert run_child("-c", code, **asked).stdout.split() == expected.split()


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


def test_every_test_file_says_what_it_proves():
    files = [*TESTS.rglob("test_*.py"), *TESTS.glob("support/*.py")]
    assert [path.name for path in files if not path.read_text().startswith('"""')] == []


def test_no_test_forks_and_none_imports_another():
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr != "fork", path.name
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("test_"), path.name
