"""`flow`, `show` and `info` write every output; bad input is one sentence and exit code 2."""

import json

import cv2
import numpy as np
import pytest
import torch
from children import run_child
from fake_trees import EXACT
from networks import Evil

from dicl_flow.accelerated import settings
from dicl_flow.files import read_flow, write_flow
from dicl_flow.pictures.visualize import arrow_scale


def test_flow_writes_every_output(run, frames, tiny_weights, tmp_path):
    outputs = {
        kind: tmp_path / f"{kind}.png" for kind in ("image", "overlay", "arrows", "confidence")
    }
    options = [word for kind, path in outputs.items() for word in (f"--{kind}", path)]
    code, out, _ = run("flow", *frames, "-o", tmp_path / "x.flo", *options, "-w", tiny_weights)
    assert code == 0
    assert read_flow(tmp_path / "x.flo").shape == (37, 51, 2)
    assert all(cv2.imread(str(path)).shape == (37, 51, 3) for path in outputs.values())
    assert "51x37" in out


@pytest.mark.parametrize("suffix", [".flo", ".png", ".pfm", ".npz", ".npy"])
def test_flow_formats_by_extension(run, frames, tiny_weights, tmp_path, suffix):
    output = tmp_path / f"out{suffix}"
    code, out, err = run("flow", *frames, "-o", output, "-w", tiny_weights, "--quiet")
    assert (code, out, err) == (0, "", "")
    assert read_flow(output).shape == (37, 51, 2)


def test_json_is_for_machines(run, frames, tiny_weights, checkpoint, tmp_path):
    flow = tmp_path / "x.flo"
    summary = json.loads(run("flow", *frames, "-o", flow, "-w", tiny_weights, "--json")[1])
    assert summary["size"] == "51x37"
    assert summary["backend"] == "fast"
    assert summary["precision"] in ("fp32", "bf16", "fp16")
    assert json.loads(run("show", flow, "--json")[1])["known"] == 1
    assert json.loads(run("info", tiny_weights, "--json")[1])["parameters"] > 0
    assert "torch" in json.loads(run("info", "--json")[1])
    converted = tmp_path / "c.safetensors"
    summary = json.loads(run("convert", checkpoint, "-o", converted, "--json")[1])
    assert (summary["tensors"], summary["written"]) == (522, [str(converted)])


def test_show_prints_statistics_and_draws(run, tmp_path):
    flow, picture = tmp_path / "x.flo", tmp_path / "x.png"
    write_flow(flow, np.full((4, 6, 2), 3, np.float32))
    code, out, _ = run("show", flow, "-o", picture, "--max", 10)
    assert code == 0
    assert "4.243" in out
    assert cv2.imread(str(picture)).shape == (4, 6, 3)


def test_show_draws_arrows_and_a_key(run, tmp_path):
    flow, names = tmp_path / "x.flo", ("colours.png", "arrows.png")
    write_flow(flow, np.full((96, 128, 2), 3, np.float32))
    pictures = {}
    for key in ([], ["--key"]):
        outputs = [tmp_path / name for name in names]
        code, out, _ = run("show", flow, "-o", outputs[0], "--arrows", outputs[1], *key, "--json")
        assert code == 0
        summary = json.loads(out)
        assert summary["written"] == [*map(str, outputs)]
        pictures[bool(key)] = [cv2.imread(str(path)) for path in outputs]
    assert summary["arrow_scale"] == pytest.approx(arrow_scale((96, 128), 18**0.5))
    for plain, explained in zip(pictures[False], pictures[True], strict=True):
        assert plain.shape == explained.shape == (96, 128, 3)
        assert (plain != explained)[64:, 64:].any()
        assert (plain == explained)[:40, :40].all()
    assert (pictures[False][0] == pictures[False][0][0, 0]).all()  # one motion, one colour
    assert len(np.unique(pictures[False][1].reshape(-1, 3), axis=0)) > 2


def test_show_draws_arrows_on_a_frame(run, tmp_path):
    flow, frame, picture = tmp_path / "x.flo", tmp_path / "f.png", tmp_path / "a.png"
    write_flow(flow, np.zeros((96, 128, 2), np.float32))  # dots, between which the frame is seen
    cv2.imwrite(str(frame), np.full((96, 128, 3), (0, 100, 200), np.uint8))
    assert run("show", flow, "--arrows", picture, "--frame", frame)[0] == 0
    assert cv2.imread(str(picture))[0, 0].tolist() == [32, 82, 132]
    cv2.imwrite(str(frame), np.zeros((96, 120, 3), np.uint8))
    code, _, err = run("show", flow, "--arrows", picture, "--frame", frame)
    assert (code, "must have the size of the flow, 128x96, got 120x96" in err) == (2, True)
    assert "give --arrows PNG too" in run("show", flow, "--frame", frame)[2]


def test_show_says_that_a_wild_arrow_is_cut(run, tmp_path):
    flow, vectors = tmp_path / "x.flo", np.full((96, 128, 2), (2, 0), np.float32)
    vectors[5, 5] = 1000
    write_flow(flow, vectors)
    code, out, _ = run("show", flow, "--arrows", tmp_path / "a.png", "--json")
    cut = "motion beyond 6 px has arrows of that length"
    assert (code, json.loads(out)["arrows_cut"]) == (0, cut)
    assert "arrows_cut" not in run("show", flow, "--arrows", tmp_path / "a.png", "--max", 400)[1]


def test_show_draws_the_difference_of_two_flows(run, tmp_path):
    first, second, other = (tmp_path / name for name in ("a.flo", "b.png", "c.flo"))
    flow = np.zeros((4, 6, 2), np.float32)
    flow[0, 0] = (3, 4)
    write_flow(first, flow)
    flow[0, 0] = (4, 4)
    write_flow(second, flow)
    write_flow(other, np.zeros((6, 4, 2), np.float32))
    picture = tmp_path / "x.png"
    code, out, _ = run("show", first, "--difference", second, "-o", picture, "--json")
    assert code == 0
    summary = json.loads(out)
    assert (summary["min_x"], summary["max_length"], summary["minus"]) == (-1, 1, str(second))
    assert (cv2.imread(str(picture))[1:] == 255).all()
    picture.unlink()
    code, out, err = run("show", first, "--difference", other, "-o", picture)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "both flows must have one size" in err
    assert "is 6x4" in err
    assert "is 4x6" in err
    assert not picture.exists()
    assert "only one input can be -" in run("show", "-", "--difference", "-")[2]
    assert "is the input" in run("show", first, "--difference", second, "-o", second)[2]


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("show {0} --key", "--output or --arrows"),
        ("flow {0} {0} -o x.flo --key", "or --overlay or"),
    ],
)
def test_a_key_needs_a_picture(run, tmp_path, command, wanted):
    write_flow(tmp_path / "x.flo", np.zeros((4, 6, 2), np.float32))
    code, out, err = run(*command.format(tmp_path / "x.flo").split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--key needs a picture to be drawn on" in err
    assert wanted in err


def test_flow_adds_keys_where_asked_for(run, tiny_weights, tmp_path):
    frames = [tmp_path / "1.png", tmp_path / "2.png"]
    for seed, path in enumerate(frames):
        cv2.imwrite(str(path), np.random.default_rng(seed).integers(0, 255, (96, 128, 3)))
    kinds = ("image", "overlay", "arrows", "confidence")
    pictures = {}
    for key in ([], ["--key"]):
        options = [word for kind in kinds for word in (f"--{kind}", tmp_path / f"{kind}.png")]
        assert run("flow", *frames, *options, *key, "-w", tiny_weights, "-q")[0] == 0
        pictures[bool(key)] = [cv2.imread(str(tmp_path / f"{kind}.png")) for kind in kinds]
    pairs = zip(pictures[False], pictures[True], strict=True)
    assert [(plain != explained).any() for plain, explained in pairs] == [True] * 3 + [False]


def test_info_describes_weights(run, small_weights):
    out = run("info", small_weights)[1]
    assert "1/8 (radius 2), 1/4 (radius 1)" in out
    assert "recipe" in out
    assert "sha256" in out


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize("quiet", [False, True])
def test_slow_precision_is_one_line_on_stderr(run, frames, tiny_weights, monkeypatch, quiet):
    """Before the estimate, which would take long: here a frame of another size ends it."""
    cv2.imwrite(str(frames[1]), np.zeros((9, 9, 3), np.uint8))
    monkeypatch.setattr(settings, "has_bf16", lambda device: False)
    words = ["flow", *frames, "--image", frames[0].with_name("x.png"), "-w", tiny_weights]
    words += ["--precision", "bf16", "--device", "cpu", *["--quiet"] * quiet]
    code, out, err = run(*words)
    warning, *rest = ["", err] if quiet else err.splitlines(keepends=True)
    assert (code, out) == (2, "")
    assert warning.startswith("" if quiet else "warning: this CPU has no bf16 arithmetic")
    assert len(rest) == 1
    assert rest[0].startswith("error: ")


@pytest.mark.parametrize("command", ["flow", "show", "info", "convert"])
def test_help_has_examples(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"dicl-flow {command}" in out


# --- what people get wrong ----------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, frames, tiny_weights, checkpoint):
    """A folder of good and bad files, by name."""
    folder = tmp_path / "in"
    folder.mkdir()
    names = {"a": frames[0], "b": frames[1], "weights": tiny_weights, "checkpoint": checkpoint}

    def add(name, content):
        names[name] = folder / name
        names[name].write_bytes(content)

    add("text.png", b"not a picture")
    add("empty.png", b"")
    add("empty.flo", b"")
    add("text.txt", b"hello")
    add("magic.flo", b"HEIP" + bytes(20))
    write_flow(folder / "good.flo", np.ones((3, 4, 2), np.float32))
    add("short.flo", (folder / "good.flo").read_bytes()[:-5])
    add("zero.flo", b"PIEH" + bytes(8))
    add("text.safetensors", b"not weights at all")
    names |= {"good.flo": folder / "good.flo", "folder": folder, "missing.png": folder / "nope.png"}
    names["other.png"] = folder / "other.png"
    cv2.imwrite(str(names["other.png"]), np.zeros((9, 9, 3), np.uint8))
    names["nan.tiff"] = folder / "nan.tiff"
    cv2.imwrite(str(names["nan.tiff"]), np.full((37, 51, 3), np.nan, np.float32), EXACT)
    names["other.pth"] = folder / "other.pth"
    torch.save(torch.nn.Linear(2, 2).state_dict(), names["other.pth"])
    names["evil.pth"] = folder / "evil.pth"
    torch.save({"state_dict": {"a": Evil()}}, names["evil.pth"])
    names["inside-file.flo"] = folder / "text.txt" / "out.flo"
    names["out"] = tmp_path / "out"
    names["out"].mkdir()
    return names


FLOW = "flow {a} {b} -w {weights} "
BAD = {
    "missing first image": ("flow {missing.png} {b} -w {weights} -o {out}/x.flo", "no such file"),
    "missing second image": ("flow {a} {missing.png} -w {weights} -o {out}/x.flo", "no such file"),
    "folder as image": ("flow {folder} {b} -w {weights} -o {out}/x.flo", "is a folder"),
    "text as image": ("flow {text.png} {b} -w {weights} -o {out}/x.flo", "is not an image"),
    "empty image": ("flow {empty.png} {b} -w {weights} -o {out}/x.flo", "0 bytes"),
    "NaN pixels": ("flow {nan.tiff} {b} -w {weights} -o {out}/x.flo", "NaN or infinite"),
    "sizes differ": ("flow {a} {other.png} -w {weights} -o {out}/x.flo", "51x37 and 9x9"),
    "unknown flow extension": (FLOW + "-o {out}/x.jpeg", "flow files must end in .flo"),
    "no extension": (FLOW + "-o {out}/x", "flow files must end in .flo"),
    "unknown picture extension": (FLOW + "--image {out}/x.abc", "unknown image extension"),
    "one good and one bad output": (FLOW + "-o {out}/x.flo --image {out}/x.abc", "unknown image"),
    "nothing to write": (FLOW, "nothing to write"),
    "two outputs of one name": (FLOW + "-o {out}/x.png --image {out}/x.png", "the same name"),
    "output is a folder": (FLOW + "-o {out}", "is a folder"),
    "output inside a file": (FLOW + "-o {inside-file.flo}", "text.txt is not a folder"),
    "negative maximum": (FLOW + "--image {out}/x.png --max -3", "must be positive"),
    "unknown device": (FLOW + "-o {out}/x.flo --device tpu", "unknown device"),
    "unknown precision": (FLOW + "-o {out}/x.flo --precision fp7", "unknown precision"),
    "weights missing": ("flow {a} {b} -o {out}/x.flo -w {folder}/no.safetensors", "no weights"),
    "weights are text": ("flow {a} {b} -o {out}/x.flo -w {text.safetensors}", "not a safetensors"),
    "weights are a pickle": ("flow {a} {b} -o {out}/x.flo -w {checkpoint}", "dicl-flow convert"),
    "weights of no known name": ("flow {a} {b} -o {out}/x.flo -w sintell", "unknown weights"),
    "show: missing": ("show {folder}/no.flo", "no such file"),
    "show: folder": ("show {folder}", "extension"),
    "show: truncated": ("show {short.flo} -o {out}/x.png", "truncated"),
    "show: wrong magic": ("show {magic.flo} -o {out}/x.png", "not a .flo file"),
    "show: no pixels": ("show {zero.flo} -o {out}/x.png", "invalid .flo size"),
    "show: empty": ("show {empty.flo} -o {out}/x.png", "0 bytes"),
    "show: unknown extension": ("show {text.txt}", "unknown flow file extension"),
    "show: ordinary picture": ("show {a} -o {out}/x.png", "16-bit RGB PNG"),
    "show: text as png": ("show {text.png} -o {out}/x.png", "not a PNG"),
    "convert: missing": ("convert {folder}/no.pth -o {out}/x.safetensors", "no such file"),
    "convert: other network": ("convert {other.pth} -o {out}/x.safetensors", "not a DICL-Flow"),
    "convert: code inside": ("convert {evil.pth} -o {out}/x.safetensors", "refused"),
    "convert: text": ("convert {text.txt} -o {out}/x.safetensors", "not a PyTorch checkpoint"),
    "convert: output extension": (
        "convert {checkpoint} -o {out}/x.pth",
        "must end in .safetensors",
    ),
    "convert: padding": (
        "convert {checkpoint} -o {out}/x.safetensors --padding grey",
        "unknown padding",
    ),
    "info: missing": ("info {folder}/no.safetensors", "no weights"),
    "info: folder": ("info {folder}", "is a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_sentence_and_no_file(run, files, case):
    command, message = BAD[case]
    for name, path in files.items():
        command = command.replace("{" + name + "}", str(path))
    code, out, err = run(*command.split())
    assert code == 2
    assert message in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert list(files["out"].iterdir()) == []


def test_an_unwritable_file_system_is_named(run, frames, tiny_weights):
    code, _, err = run("flow", *frames, "-w", tiny_weights, "-o", "/proc/self/x.flo")
    assert code == 2
    assert "/proc/self/x.flo" in err


def test_an_unknown_option_exits_with_two(run):
    assert run("flow", "--nonsense")[0] == 2


def test_as_a_process_too(tmp_path):
    process = run_child("-m", "dicl_flow", "show", tmp_path / "nope.flo")
    assert process.returncode == 2
    assert process.stderr == f"error: no such file: {tmp_path / 'nope.flo'}\n"
