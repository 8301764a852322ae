"""Messages name options on the command line and parameters in Python."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import COMMANDS

import dicl_flow
from dicl_flow.cli.command import as_flags
from dicl_flow.cli.options import Size, in_words, parse_size
from dicl_flow.data import demo_pairs
from dicl_flow.errors import InputError
from dicl_flow.estimation.result import FlowResult
from dicl_flow.evaluation.drawings import demo_rows
from dicl_flow.files import read_flow, write_flow
from dicl_flow.lab.analyses import PixelMap
from dicl_flow.pictures.figures import PAPER

PACKAGE = Path(dicl_flow.__file__).parent


OPTIONS = {option for command in COMMANDS.values() for p in command.params for option in p.opts}


@cache
def list_messages():
    """(place, text) of every string outside the command line that is no docstring."""
    return list(_messages())


def _messages():
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.parent.name == "cli":
            continue
        tree = ast.parse(path.read_text())
        comments = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in comments:
                yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


# --- parameters and options --------------------------------------------------------------------


def test_the_library_does_not_speak_of_options():
    spoken = [place for place, text in list_messages() if re.search(r"(?<![\w-])--[a-z]", text)]
    assert spoken == []


def test_every_parameter_in_a_message_is_an_option_of_a_command():
    named = {}
    for place, text in list_messages():
        for name in re.findall(r"`([a-z_]\w*)(?==|`)", text):
            named[place, name] = as_flags(f"`{name}`")
    assert len(named) > 10
    assert {key: option for key, option in named.items() if option not in OPTIONS} == {}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("use `device='cpu'`", "use --device cpu"),
        ("with `resume=True`, or", "with --resume, or"),
        ("`on_error` is", "--on-error is"),
        ("`num_samples=99`: 3 pairs", "--overfit 99: 3 pairs"),
        ("`changes=['backend=plain']`", "--set backend=plain"),
        ("`roots={'pairs': PATH}`", "--data pairs=PATH"),
        ("`initial='runs/a/w.safetensors'`", "--init runs/a/w.safetensors"),
        ("nothing, 'quoted' or {not}", "nothing, 'quoted' or {not}"),
    ],
)
def test_a_parameter_is_said_as_an_option(said, shown):
    assert as_flags(said) == shown


def test_a_device_that_is_not_there(run, frames, tiny_weights, tmp_path, monkeypatch):
    """The same error, to a programmer and at the command line."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="use `device='cpu'`"):
        dicl_flow.load(tiny_weights, device="cuda")
    words = ("-o", tmp_path / "x.flo", "-w", tiny_weights, "--device", "cuda")
    code, _, err = run("flow", *frames, *words)
    assert (code, err) == (2, "error: no cuda device on this machine; use --device cpu\n")


# --- help --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", "data", "analyze", *COMMANDS])
def test_help_shows_no_types_of_python(run, command):
    code, out, _ = run(*command.split(), "--help")
    assert code == 0
    assert not re.search(r"<[a-z]|list\[|Optional", out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_speaks_to_machines(command):
    (option,) = (p for p in COMMANDS[command].params if "--json" in p.opts)
    assert option.is_flag


WRITING = sorted(COMMANDS.keys() - {"info", "data bench", "serve", "explore", "bulk verify"})
ESTIMATING = [
    "flow",
    "video",
    "track",
    "stabilize",
    "eval",
    "submit",
    "interpolate",
    "demo",
    "calibrate",
]
ESTIMATING += ["analyze compare", "serve", "bulk run"]


@pytest.mark.parametrize("command", WRITING)
def test_every_command_that_writes_has_an_output_option(command):
    assert any({"-o", "--output"} <= {*p.opts} for p in COMMANDS[command].params)


@pytest.mark.parametrize("command", ESTIMATING)
def test_every_estimate_can_be_told_where_and_how(command):
    options = {option for p in COMMANDS[command].params for option in p.opts}
    assert {"--device", "--precision", "--backend", "--memory-limit"} <= options


def test_sizes_have_one_order():
    texts = {p: f"{p.help} {p.metavar}" for c in COMMANDS.values() for p in c.params}
    assert not [p.name for p, text in texts.items() if "HEIGHTxWIDTH" in text]
    assert sum("WIDTHxHEIGHT" in text for text in texts.values()) > 5
    size = parse_size("--size", "1024x436")
    assert (size, str(size)) == ((436, 1024), "1024x436")


# --- words that are too many or in the wrong place ---------------------------------------------


@pytest.fixture
def many(tmp_path, monkeypatch):
    """A folder with three flow files, where the command runs."""
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write_flow(tmp_path / f"{name}.flo", np.ones((3, 4, 2), np.float32))
    return sorted(path.name for path in tmp_path.iterdir())


def refused(run, *words):
    before = sorted(Path().iterdir())
    code, out, err = run(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert sorted(Path().iterdir()) == before
    return err


@pytest.mark.parametrize(
    ("command", "taken", "advice"),
    [
        ("show", "show takes FLOW; unexpected: b.flo, c.flo", "give the files one by one"),
        ("flow", "flow takes IMAGE1 IMAGE2; unexpected: c.flo", "for a sequence of frames"),
        ("data check", "check takes NAME ROOT; unexpected: c.flo", "give the folder"),
        (
            "eval -d pairs=.",
            "eval takes options only; unexpected: a.flo",
            "give the files one by one",
        ),
    ],
)
def test_a_pattern_that_the_shell_expanded(run, many, command, taken, advice):
    err = refused(run, *command.split(), *many)
    assert taken in err
    assert f"If the shell expanded a pattern such as *.png: {advice}" in err


@pytest.mark.usefixtures("many")
def test_other_surplus_words_are_no_pattern(run):
    assert refused(run, "show", "a.flo", "twice") == "error: show takes FLOW; unexpected: twice\n"
    first = refused(run, "eval", "twice", "-d", "pairs=.", "--quiet")
    assert first == "error: eval takes options only; unexpected: twice\n"


@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("eval -d pairs=. --markdown --quiet", "--markdown needs a value, but the option --quiet"),
        ("bench -o --json", "-o needs a value, but the option --json follows"),
        ("eval -d pairs=. --worst 3 --quiet", "--worst needs a value, but the option --quiet"),
        ("eval -d pairs=. --json x.json", "--json takes no value, but 'x.json' follows; to write"),
        ("eval -d pairs=. --json x.json", "a file: -o x.json"),
        ("show a.flo --json x.json", "--json takes no value, but 'x.json' follows\n"),
    ],
)
def test_a_value_that_is_missing_or_surplus(run, words, message):
    assert message in refused(run, *words.split())


@pytest.mark.usefixtures("many")
def test_a_value_may_begin_with_a_dash(run):
    """A number below zero is one; after -- everything is."""
    assert "must be positive, got -3" in refused(run, "show", "a.flo", "-o", "x.png", "--max", "-3")
    Path("a.flo").rename("--quiet.flo")
    assert run("show", "-q", "--", "--quiet.flo")[0] == 0


# --- what is printed ---------------------------------------------------------------------------


def test_written_is_a_list_of_files(run, frames, tiny_weights, tmp_path):
    flow, picture = str(tmp_path / "x.flo"), str(tmp_path / "x.png")
    weights = ("-w", tiny_weights, "--device", "cpu")
    for written, words in [
        ([flow, picture], ("flow", *frames, "-o", flow, "--image", picture, *weights)),
        ([], ("show", flow)),
        ([picture], ("show", flow, "-o", picture)),
    ]:
        code, out, _ = run(*words, "--json", "--quiet")
        assert (code, json.loads(out)["written"]) == (0, written)
    assert f"written        {picture}\n" in run("show", flow, "-o", picture)[1]
    assert "\nwritten" not in run("show", flow)[1]
    assert read_flow(flow).shape == (37, 51, 2)


def test_people_read_yes_and_no(run, tiny_weights):
    assert re.search(r"^projection +yes$", run("info", tiny_weights)[1], re.MULTILINE)


def test_a_pixel_is_described_in_words():
    probability = np.full((5, 5), 0.1 / 23)
    probability[4, 1], probability[0, 0] = 0.7, 0.2  # (u, v) = (2, -1) and (-2, -2)
    found = PixelMap(8, probability, (1.75, -0.5))
    assert str(found) == "most probable (2, -1) with 0.70, next best 0.20; right (1.75, -0.50)"
    assert str(PixelMap(8, probability, None)).endswith("next best 0.20")
    assert found.summary()["displacement"] == (2, -1)


@pytest.mark.parametrize("pair", demo_pairs(), ids=lambda pair: pair.name)
def test_captions_stand_above_their_own_pictures(pair):
    shape = (384, 512)
    flow = np.full((*shape, 2), 3, np.float32)
    rows = demo_rows(pair, FlowResult(flow, np.full(shape, 0.5, np.float32)))
    captions = {text: picture for pictures in rows.values() for text, picture in pictures.items()}
    (grey,) = (picture for text, picture in captions.items() if "white is confident" in text)
    assert (grey == 128).all()
    for text, picture in captions.items():  # pictures of flow have a key, bottom right
        flow_is_shown = any(word in text for word in ("flow", "coloured", "truth"))
        assert (picture[-3:, -60:] == PAPER).all() == flow_is_shown, text
    assert not any("white" in line for line in rows)
    assert sum("full colour is" in text for text in captions) == 1


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("hours", 0.0029, "time 10.4 s"),
        ("cpu_hours", 31.4, "cpu time 31.4 h"),
        ("gpu_hours", 12345.6, "gpu time 12,346 h"),
        ("seconds", 0.591, "time 0.591 s"),
        ("bunny_seconds", 300.0, "bunny time 5 min"),
        ("gigabytes", 6.473e-05, "data 64.7 kB"),
        ("gigabytes", 8123.0, "data 8.12 TB"),
        ("megabytes", 45.2, "data 45.2 MB"),
        ("bytes", 731, "data 731 B"),
        ("bytes", 999_999, "data 1,000 kB"),
        ("bytes", 0, "data 0 B"),
        ("flows_per_second", 12.3, "speed 12.3 flows/s"),
        ("mean_length", 8.758, "mean length 8.758 px"),
        ("min_x", -3, "min x -3 px"),
        ("rendered_epe", 1.234, "rendered epe 1.234 px"),
        ("known", 0.25, "known 25 %"),
        ("mean_difference_px", 1e-5, "mean difference 1e-05 px"),
        ("read_ms", 3.25, "read 3.25 ms"),
        ("flows", 12, "flows 12"),
        ("calibrated", True, "calibrated yes"),
        ("max_pixels", "any number", "max pixels any number"),
        ("size", Size(436, 1024), "size 1024x436"),
        ("dis", {"epe": 2.0, "fl_all": 3.5}, "dis epe 2 px, fl all 3.5 %"),
    ],
)
def test_people_read_units(key, value, shown):
    assert " ".join(in_words(key, value)) == shown


def test_machines_read_plain_numbers(run, tmp_path):
    write_flow(tmp_path / "a.flo", np.full((3, 4, 2), 3, np.float32))
    assert "mean length    4.243 px\n" in run("show", tmp_path / "a.flo")[1]
    found = json.loads(run("show", tmp_path / "a.flo", "--json")[1])
    assert (found["mean_length"], found["size"]) == (pytest.approx(4.2426, abs=1e-4), "4x3")


def test_a_number_below_zero_is_no_option(run, tmp_path):
    for words in (("-1", "2"), ("2", "-1"), ("--", "-1", "2")):
        code, _, err = run("analyze", "pixel", "-o", tmp_path / "out", *words)
        assert (code, err.count("\n")) == (2, 1)
        assert "must be a number, at least 0" in err
    err = run("analyze", "pixel", "-o", tmp_path / "out", "2", "384")[2]
    assert "is outside the 512x384 frame: x must be from 0 to 511, y from 0 to 383" in err
    assert not (tmp_path / "out").exists()
    assert "unexpected: -7" in run("show", "a.flo", "-7")[2]
