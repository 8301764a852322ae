"""Files are written completely or not at all, whatever interrupts the writing."""

import os
import stat
from pathlib import Path

import pytest

from dicl_flow.errors import InputError
from dicl_flow.files import check_writable, read_bytes, replacing, write_files


def test_all_or_none(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"x")
    with pytest.raises(NotADirectoryError, match=r"b\.txt: .*file is not a folder"):
        write_files({tmp_path / "new" / "a.txt": b"1", file / "b.txt": b"2"})
    assert [*tmp_path.iterdir()] == [file]


def test_missing_folders_are_created_and_stay_only_with_a_file(tmp_path, monkeypatch):
    paths = [tmp_path / "a" / "b" / "1", tmp_path / "a" / "c" / "2"]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *names: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            write_files(dict.fromkeys(paths, b"x"))
    assert not [*tmp_path.iterdir()]
    write_files(dict.fromkeys(paths, b"x"))
    assert [path.read_bytes() for path in paths] == [b"x", b"x"]
    with replacing(tmp_path / "d" / "e" / "3") as temporary:
        temporary.write_bytes(b"y")
    assert (tmp_path / "d" / "e" / "3").read_bytes() == b"y"


def test_a_failed_write_leaves_the_old_file_and_no_traces(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def full_disk(handle, mode):
        os.close(handle)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full_disk)
    with pytest.raises(OSError, match=r"cannot write .*a.txt: No space left on device"):
        write_files({path: b"new"})
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_an_interrupt_leaves_no_traces(tmp_path, monkeypatch):
    def interrupt(handle, mode):
        os.close(handle)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_files({tmp_path / "a.txt": b"new"})
    assert not list(tmp_path.iterdir())


def test_durable_files_are_on_the_disk_before_they_get_their_names(tmp_path, monkeypatch):
    path, events = tmp_path / "a.txt", []
    sync, rename = os.fsync, Path.replace

    def note_sync(handle):
        events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    def note_rename(self, target):
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    write_files({path: b"new"}, durable=True)
    assert events == ["file", "rename", "folder"]
    assert path.read_bytes() == b"new"


def test_written_files_have_ordinary_permissions(tmp_path):
    ordinary, ours = tmp_path / "ordinary", tmp_path / "ours"
    ordinary.write_bytes(b"")
    write_files({ours: b"x"})
    assert ours.stat().st_mode == ordinary.stat().st_mode


def test_unwritable_places_are_named(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="is a folder"):
        check_writable(tmp_path)
    file = tmp_path / "file"
    file.write_bytes(b"x")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for place in (file / "inside.flo", file / "a" / "b.flo", tmp_path / "nowhere" / "x.flo"):
        with pytest.raises(NotADirectoryError, match="is not a folder"):
            check_writable(place)
    check_writable(tmp_path / "new" / "folder" / "x.flo")
    assert sorted(tmp_path.iterdir()) == [file, tmp_path / "nowhere"]
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="not writable"):
        check_writable(tmp_path / "x.flo")


def test_a_folder_that_refuses_new_files_is_named():
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc here")
    with pytest.raises(OSError, match="cannot write /proc/self/x"):
        write_files({Path("/proc/self/x.flo"): b"x"})


def test_reading_names_what_is_wrong(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_bytes(tmp_path / "nope")
    with pytest.raises(InputError, match="is a folder"):
        read_bytes(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="0 bytes"):
        read_bytes(tmp_path / "empty")


def test_what_a_kill_has_left_is_removed_by_the_next_write(tmp_path):
    path = tmp_path / "a.txt"
    left = tmp_path / ".a.txt.part0"
    left.write_bytes(b"half")  # and nobody has locked it
    write_files({tmp_path / "b.txt": b"of another name"})
    assert left.exists()
    write_files({path: b"new"})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.txt", "b.txt"]
    assert path.read_bytes() == b"new"


def test_two_writers_of_one_file_do_not_meet(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as first, replacing(path) as second:
        first.write_bytes(b"first")
        second.write_bytes(b"second")
        write_files({path: b"third"})
        assert len({first, second}) == 2
        assert path.read_bytes() == b"third"
    assert path.read_bytes() == b"first"  # which ended last
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_with_the_name_of_a_temporary_file_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"of another user")
    (tmp_path / ".a.txt.part0").symlink_to(other)
    write_files({tmp_path / "a.txt": b"new"})
    assert other.read_bytes() == b"of another user"


def test_more_files_than_a_process_may_open(tmp_path):
    resource = pytest.importorskip("resource")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, most[1]))
    try:
        write_files({tmp_path / str(number): b"x" for number in range(400)})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert len(list(tmp_path.iterdir())) == 400
