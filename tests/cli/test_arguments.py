"""Numbers and outputs that cannot be used are refused by every command before any work."""

import json
from pathlib import Path
from typing import Annotated, get_args, get_origin

import numpy as np
import pytest
from children import run_child
from commands import COMMANDS

from dicl_flow import cli
from dicl_flow.files import write_flow

SETTINGS = {
    f"{group}{name}": settings
    for group, commands in (
        ("", cli._COMMANDS),
        ("bulk ", cli._BULK),
        ("data ", cli._DATA),
        ("analyze ", cli._ANALYSES),
    )
    for name, settings in commands.items()
}


def types(kind):
    """The plain types in an annotation: those of list[int] | None are int and None."""
    inner = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
    return {t for part in inner for t in types(part)} if inner else {kind}


def options_of(*kinds):
    """(command, option) of every option with a value of one of these types."""
    for command, settings in SETTINGS.items():
        found = settings.option_types()
        for parameter in COMMANDS[command].params:
            if parameter.name in found and types(found[parameter.name]) & set(kinds):
                yield command, parameter


# --- numbers --------------------------------------------------------------------------------------

ZERO = {"--port", "--min-confidence", "--time", "--max-errors", "--seed", "--workers", "--motion"}
ZERO |= {("bulk verify", "--samples")}
"""Options that may be 0, of every command or of one."""
MOST = {"--port": 65535, "--min-confidence": 1, "--time": 1, "--motion": 10, "--scale": 8}
MOST |= {"--fps": 480, "--factor": 64, ("ablate", "--seed"): 1_000_000}
CHILD = """
import json, sys
from dicl_flow.cli import main

for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        print(json.dumps([end.code, "torch" in sys.modules]))
"""


def bad_numbers():
    """Words with a number out of range, and the name of its option; no input exists."""
    for command, bad in options_of(int, float):
        if bad.param_type_name == "argument":  # a word that starts with - is no argument
            continue
        option, needed = bad.opts[0], []
        values = ["-1", "-1e-9", "nan", "inf", "-inf", "some"]
        values += [] if {option, (command, option)} & ZERO else ["0"]
        most = MOST.get((command, option), MOST.get(option))
        values += [] if most is None else [str(most + 1)]
        for parameter in COMMANDS[command].params:
            if parameter.required and parameter is not bad:
                value = "0" if parameter.name in ("x", "y") else "no.csv"
                name = [parameter.opts[0]] if parameter.param_type_name == "option" else []
                needed += [*name, value]
        for value in values:
            rest = ["no"] if bad.nargs == 2 else []
            yield [*command.split(), *needed, option, value, *rest], option


def test_a_number_out_of_range_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = list(bad_numbers())
    assert len(cases) > 400
    child = run_child("-c", CHILD, json.dumps([words for words, _ in cases]))
    ends, errors = child.stdout.splitlines(), child.stderr.splitlines()
    assert len(ends) == len(errors) == len(cases), child.stderr
    for (words, option), end, error in zip(cases, ends, errors, strict=True):
        assert json.loads(end) == [2, False], words
        assert error.startswith(f"error: {option} "), words
        assert " must be a" in error or " must be positive" in error, words
    assert not list(tmp_path.iterdir())


def test_the_largest_number_is_a_bound_and_zero_is_taken_where_it_means_something(run):
    bounds = {parameter.opts[0] for _, parameter in options_of(int, float)}
    assert {name for name in ZERO | MOST.keys() if isinstance(name, str)} <= bounds
    assert run("interpolate", "a", "b", "-o", "x.png", "--time", 0)[2] == "error: no such file: a\n"
    code, _, error = run("analyze", "pixel", "-o", "x", "--", "-1", "0")
    assert (code, error) == (2, "error: X must be a number, at least 0\n")


# --- outputs --------------------------------------------------------------------------------------

READ = {"--initial", "--truth", "--pair", "--predictions", "--without-projection"}
READ |= {"--mask", "--difference", "--frame", "--points"}
WORDS = {
    "demo": "",
    "flow": "{a} {b}",
    "video": "{frames}",
    "track": "{frames} --grid 8",
    "show": "{flow}",
    "warp": "{b} {flow}",
    "interpolate": "{a} {b}",
    "stabilize": "{frames}",
    "adapt": "{frames}",
    "convert": "{weights}",
    "calibrate": "-d rendered=procedural",
    "export": "--dynamic",
    "bench": "--quick",
    "train": "rendered-0 --data rendered=procedural",
    "reproduce": "chairs",
    "table2": "{folder} --data kitti15={folder}",
    "render": "procedural",
    "eval": "--data pairs={pairs}",
    "submit": "kitti15 {folder}",
    "ablate": "metrics --data rendered=procedural",
    "bulk run": "{frames}",
    "bulk list": "{frames}",
    "data check": "pairs {pairs}",
    "analyze pixel": "3 4",
    "analyze compare": "dis",
    "analyze levels": "--rendered procedural",
    **dict.fromkeys(("analyze peaks", "analyze kernels", "analyze layers"), ""),
}
"""What else a command needs to look at its outputs."""
ANY = {"--markdown", ("eval", "--output"), ("table2", "--output"), ("bench", "--output")}
"""Files of any name."""
FLOWS = {("flow", "--output"), ("flow", "--backward")}


def ending_of(command, option):
    """An ending that the option takes; "" for a folder."""
    known = dict.fromkeys(("convert", "calibrate", "adapt"), ".safetensors")
    known |= {"export": ".onnx"}
    known |= {"submit": ".zip", "bulk list": ".csv", "video": ".npy", "track": ".npz"}
    if (command, option) in FLOWS:
        return ".flo"
    if option == "--video":
        return ".mp4"
    if option == "--stats":
        return ".csv" if command == "video" else ".png"
    folder = command in ("demo", "train", "reproduce", "ablate", "render", "bulk run")
    folder |= command.startswith("analyze ")
    if (folder and option == "--output") or option in ("--keep", "--worst"):
        return ""
    return known.get(command, ".png") if option == "--output" else ".png"


def outputs():
    for command, parameter in [*options_of(Path), *bulk_output()]:
        if parameter.param_type_name == "option" and parameter.opts[0] not in READ:
            yield command, parameter.opts[0]


def bulk_output():
    """It may be an address, so that it is text."""
    yield "bulk run", next(p for p in COMMANDS["bulk run"].params if p.name == "output")


@pytest.fixture
def refuses(run, tmp_path, frames, small_weights, monkeypatch):
    """Run a command with an output that cannot be written; return the message."""

    def fail(*arguments, **options):
        raise AssertionError("the outputs are looked at too late")

    for name in ("load", "FlowEstimator"):
        monkeypatch.setattr(f"dicl_flow.estimation.estimator.{name}", fail)
    for folder in ("pairs", "frames"):
        (tmp_path / folder).mkdir()
        for number, frame in enumerate(frames, 1):
            (tmp_path / folder / f"x_img{number}.png").write_bytes(frame.read_bytes())
    write_flow(tmp_path / "pairs" / "x_flow.flo", np.ones((37, 51, 2), np.float32))
    (tmp_path / "file").write_text("no folder")
    monkeypatch.chdir(tmp_path)
    places = {"a": frames[0], "b": frames[1], "flow": "pairs/x_flow.flo", "folder": tmp_path}
    places |= {"pairs": "pairs", "frames": "frames", "weights": small_weights}

    def call(command, option, path):
        before = sorted(tmp_path.rglob("*"))
        value = ["3", path] if option == "--worst" else [path]
        words = [*command.split(), *WORDS[command].format(**places).split(), option, *value]
        if option != "--output" and command not in ("flow", "eval", "table2", "bench"):
            words += ["--output", f"x{ending_of(command, '--output')}"]
        code, out, error = run(*words)
        assert (code, out, error.count("\n")) == (2, "", 1), error
        assert sorted(tmp_path.rglob("*")) == before
        return error

    return call


OUTPUTS = list(outputs())
NAMED = [
    (command, option)
    for command, option in OUTPUTS
    if ending_of(command, option) and not {option, (command, option)} & ANY
]


@pytest.mark.parametrize(("command", "option"), OUTPUTS)
def test_an_output_that_cannot_be_created_is_refused_before_the_work(refuses, command, option):
    ending = ending_of(command, option)
    assert "error: cannot write" in refuses(command, option, f"file/x{ending}")


@pytest.mark.parametrize(("command", "option"), NAMED)
def test_an_output_of_another_kind_is_refused_before_the_work(refuses, command, option):
    error = refuses(command, option, "x.avi")
    assert "must end in" in error or "unknown image extension" in error or "must be a .csv" in error
