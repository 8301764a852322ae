"""Standard input, standard output and pipes work as files, and each is read once."""

import io
import os
from threading import Thread

import numpy as np
import pytest

from dicl_flow.cli import main
from dicl_flow.files import decode_flow, encode_flow, read_flow, read_image, write_flow

pytestmark = pytest.mark.heavy


class Stdin(io.TextIOWrapper):
    """A standard input that a test can change."""


@pytest.fixture
def pipe(capsysbinary, monkeypatch):
    """Run the command with bytes on stdin; return its exit code, output and errors."""

    def call(*arguments, stdin=b""):
        monkeypatch.setattr("sys.stdin", Stdin(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as exit_info:
            main([str(argument) for argument in arguments])
        out, err = capsysbinary.readouterr()
        return exit_info.value.code or 0, out, err.decode()

    return call


@pytest.mark.parametrize("place", [0, 1])
def test_an_image_comes_in_and_the_flow_goes_out(pipe, frames, tiny_weights, tmp_path, place):
    expected = tmp_path / "x.npy"
    assert pipe("flow", *frames, "-o", expected, "-w", tiny_weights, "-q")[0] == 0
    names = [*frames]
    names[place] = "-"
    words = ("flow", *names, "-o", "-", "--format", "npy", "-w", tiny_weights)
    code, out, err = pipe(*words, stdin=frames[place].read_bytes())
    assert (code, out) == (0, expected.read_bytes())
    assert "51x37" in err  # the summary
    assert pipe(*words, "-q", stdin=frames[place].read_bytes()) == (0, out, "")


def test_the_default_format_is_flo_and_other_outputs_are_files(
    pipe, frames, tiny_weights, tmp_path
):
    words = ("-w", tiny_weights, "-q", "--overlay", tmp_path / "overlay.png")
    code, out, _ = pipe("flow", "-", frames[1], "-o", "-", *words, stdin=frames[0].read_bytes())
    assert (code, out[:4]) == (0, b"PIEH")
    assert read_image(tmp_path / "overlay.png").shape == (37, 51, 3)


@pytest.mark.parametrize("kind", ["flo", "npz", "png"])
def test_show_and_warp_read_a_flow_from_stdin(pipe, frames, tmp_path, kind):
    data = encode_flow(f"x.{kind}", np.ones((37, 51, 2), np.float32))
    code, out, _ = pipe("show", "-", "--format", kind, stdin=data)
    assert (code, b"1.414" in out) == (0, True)
    words = ("warp", frames[1], "-", "--format", kind, "-o", tmp_path / "x.png", "-q")
    assert pipe(*words, stdin=data)[0] == 0
    write_flow(tmp_path / "x.flo", decode_flow(f"x.{kind}", data))
    words = ("warp", "-", tmp_path / "x.flo", "-o", tmp_path / "y.png", "-q")
    assert pipe(*words, stdin=frames[1].read_bytes())[0] == 0
    assert (tmp_path / "x.png").read_bytes() == (tmp_path / "y.png").read_bytes()


BAD = {
    "flow - - -o x.flo": "only one input can be -",
    "warp - - -o x.png": "only one input can be -",
    "flow - {b} -o x.flo": "stdin is not an image",
    "flow - {b} -o x.flo --format npy": "--format is for -o - only",
    "flow {a} {b} -o - --json": "both need the standard output",
    "flow {a} {b} -o - --format jpeg": "unknown format 'jpeg'",
    "show -": "stdin.flo: not a .flo file",
    "show x.flo --format npy": "--format is for - only",
    "show - --format jpeg": "unknown format 'jpeg'",
}


@pytest.mark.parametrize("command", BAD)
def test_wrong_uses_are_one_sentence(pipe, frames, tmp_path, monkeypatch, command):
    monkeypatch.setattr("dicl_flow.estimation.estimator.load", pytest.fail)
    monkeypatch.chdir(tmp_path)
    words = command.format(a=frames[0], b=frames[1]).split()
    code, out, err = pipe(*words, stdin=b"neither image nor flow")
    assert (code, out) == (2, b"")
    assert BAD[command] in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == sorted(frames)


def test_nothing_on_stdin_is_said(pipe, frames, tmp_path):
    code, _, err = pipe("flow", "-", frames[1], "-o", tmp_path / "x.flo")
    assert (code, err) == (2, "error: stdin is empty (0 bytes)\n")


def test_a_terminal_is_neither_read_nor_filled_with_bytes(pipe, frames, monkeypatch):
    monkeypatch.setattr(Stdin, "isatty", lambda stream: True)
    assert "is a terminal here" in pipe("flow", "-", frames[1], "--image", "x.png")[2]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "not text for a terminal" in pipe("flow", *frames, "-o", "-")[2]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_is_read_only_once(pipe, frames, tiny_weights, tmp_path):
    """The overlay shows frame 1 as well: a second look into the pipe would wait for ever."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = Thread(target=fifo.write_bytes, args=(frames[0].read_bytes(),))
    writer.start()
    words = ("-o", tmp_path / "x.flo", "--overlay", tmp_path / "x.png", "--verbose")
    assert pipe("flow", fifo, frames[1], *words, "-w", tiny_weights)[0] == 0
    writer.join()
    assert read_flow(tmp_path / "x.flo").shape == (37, 51, 2)
