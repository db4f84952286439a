"""Files that are whole or absent."""

import os
import stat

import pytest

from patevolve.shared import files
from patevolve.shared.files import write_atomic, write_new


def test_a_file_is_written_replaced_and_readable(tmp_path):
    path = tmp_path / "deep" / "file.bin"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]


def test_the_mode_is_as_asked(tmp_path):
    write_atomic(tmp_path / "a", b"", mode=0o600)
    write_new(tmp_path / "b", b"", mode=0o600)
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"} == {0o600}


def test_a_new_file_is_never_overwritten(tmp_path):
    write_new(tmp_path / "x" / "f", b"first")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "x" / "f", b"second")
    assert (tmp_path / "x" / "f").read_bytes() == b"first"


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_a_failure_at_any_step_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch, step):
    path = tmp_path / "f"
    write_atomic(path, b"old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(files.os, "fsync", fail)
    else:
        monkeypatch.setattr(files.Path, step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["f"]


def test_the_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    """Order: the data is synced, then the name appears, then the folder is synced."""
    order = []
    sync, replace = os.fsync, files.Path.replace

    def synced(handle):
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "data")
        sync(handle)

    def renamed(self, target):
        order.append("name")
        return replace(self, target)

    monkeypatch.setattr(files.os, "fsync", synced)
    monkeypatch.setattr(files.Path, "replace", renamed)
    write_atomic(tmp_path / "f", b"x")
    assert order == ["data", "name", "folder"]


def test_a_long_name_is_no_obstacle(tmp_path):
    path = tmp_path / ("n" * 200)
    write_atomic(path, b"x")
    assert path.read_bytes() == b"x"
