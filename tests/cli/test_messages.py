"""What libraries say does not reach users; what we say, and a crash, does."""

import io
from contextlib import redirect_stderr
from threading import Event

import numpy as np
import pytest
from children import run_child

from dicl_flow.cli import describe
from dicl_flow.cli.options import Settings
from dicl_flow.errors import InputError, counted
from dicl_flow.files import naming, replacing, write_flow
from dicl_flow.training import run_folder

NOISE = """
import logging, os, sys, warnings
import typer
from dicl_flow.cli import app, main

@app.command("noise")
def noise(crash: bool = False) -> None:
    os.write(2, b"libpng warning\\n")  # as native code writes
    warnings.warn("python warning")
    logging.getLogger("torch").warning("logged warning")
    typer.echo("ours", err=True)
    if crash:
        os.abort()

main(sys.argv[1:])
"""
HIDDEN = ("libpng warning", "python warning", "logged warning")


def test_messages_of_libraries_do_not_reach_users():
    child = run_child("-c", NOISE, "noise")
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "ours\n")


def test_they_come_back_when_asked_for():
    child = run_child("-W", "default", "-c", NOISE, "noise")
    assert all(message in child.stderr for message in (*HIDDEN, "ours"))


def test_a_crash_of_native_code_is_told():
    child = run_child("-c", NOISE, "noise", "--crash")
    assert child.returncode < 0
    assert "Fatal Python error: Aborted" in child.stderr
    assert not any(message in child.stderr for message in HIDDEN)


# --- signs of life ------------------------------------------------------------------------------


class Errors(io.StringIO):
    """A stderr that is no terminal and knows when something has been said."""

    def __init__(self, awaited):
        super().__init__()
        self.awaited, self.heard = awaited, Event()

    def write(self, text):
        count = super().write(text)
        if self.awaited in self.getvalue():
            self.heard.set()
        return count


def test_without_a_terminal_a_line_comes_while_an_item_lasts(monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY", 0.001)
    with redirect_stderr(Errors("eval on data: 1 of 2, 0 s")) as errors:
        items = Settings().track("ab", "eval on data")
        assert next(iter(items)) == "a"
        assert next(items) == "b"
        assert errors.heard.wait(60)
        assert list(items) == []
    assert "━" not in errors.getvalue()


def test_quiet_tells_nothing(monkeypatch):
    monkeypatch.setattr(run_folder, "EVERY", 0.0001)
    monkeypatch.setattr("threading.Thread.start", pytest.fail)
    with redirect_stderr(Errors("x")) as errors:
        assert list(Settings(quiet=True).track("ab", "eval")) == ["a", "b"]
    assert errors.getvalue() == ""


# --- a full disk --------------------------------------------------------------------------------


class FullDisk(io.BytesIO):
    """A file that takes nothing, as on a disk without room."""

    def write(self, data):
        raise OSError(28, "No space left on device")


def test_a_full_disk_names_the_file_and_leaves_the_old_one(run, tmp_path, monkeypatch):
    flow, picture = tmp_path / "x.flo", tmp_path / "picture.png"
    write_flow(flow, np.ones((3, 4, 2), np.float32))
    picture.write_bytes(b"old")
    monkeypatch.setattr("os.fdopen", lambda handle, mode: FullDisk())
    code, out, err = run("show", flow, "-o", picture)
    assert (code, out) == (2, "")
    assert err == f"error: cannot write {picture}: No space left on device\n"
    assert picture.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == [picture, flow]


def test_what_is_written_bit_by_bit_names_its_file_too(tmp_path):
    path = tmp_path / "upload.zip"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match=rf"cannot write {path}: No space left"), replacing(path):
        FullDisk().write(b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match="another file"), naming(path):
        raise FileNotFoundError("another file")


def test_a_message_is_one_line_however_long_the_file():
    text = str(InputError("x.csv: " + "9" * 10**6 + "\nis too long"))
    assert text.startswith("x.csv: 999")
    assert text.endswith("999 is too long")
    assert len(text) < 1100


def test_of_two_names_the_new_one_is_told():
    error = OSError(5, "Input/output error", ".x.flo.part0", None, "x.flo")
    assert describe(error) == "x.flo: Input/output error"


def test_one_thing_is_singular():
    assert counted(1, "segment") == "1 segment"
    assert counted(0, "segment") == "0 segments"
    assert counted(2000, "segment") == "2,000 segments"
