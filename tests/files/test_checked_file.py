"""Files that appear as a whole: what may be in their place, who may read them, and what killed processes leave."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import contextmanager

import pytest

from decodestep.errors import CacheFileError
from decodestep.files import checked_file
from decodestep.files.checked_file import is_there, replacing


@contextmanager
def umask(bits):
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def write(path, mode=None):
    with replacing(path, mode) as file:
        file.write(b"new")


def test_a_file_has_the_permissions_of_the_one_before(tmp_path):
    path = tmp_path / "file"
    with umask(0o022):
        write(path)
        assert mode_of(path) == 0o644
        for mode in (0o600, 0o640, 0o666):
            path.chmod(mode)
            write(path)
            assert mode_of(path) == mode
        write(path, 0o640)
        assert mode_of(path) == 0o640
        write(path, 0o666)
        assert mode_of(path) == 0o644


def test_a_file_is_never_open_to_more_than_the_one_before(tmp_path):
    path = tmp_path / "file"
    write(path)
    path.chmod(0o600)
    with umask(0), replacing(path):
        [part] = tmp_path.glob("*.part")
        assert mode_of(part) == 0o600


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a pipe"), (os.mkdir, "a folder")])
def test_what_is_no_file_is_not_waited_for_or_replaced(tmp_path, make, kind):
    path, link = tmp_path / "place", tmp_path / "link"
    make(path)
    link.symlink_to(path)
    for each in (path, link):
        with pytest.raises(CacheFileError, match=f"{each}: must be a file; it is {kind}"):
            is_there(each)
        with pytest.raises(CacheFileError, match=f"must be a file; it is {kind}"):
            write(each)
    assert sorted(tmp_path.iterdir()) == [link, path] and not path.is_file()
    with pytest.raises(CacheFileError, match="it is a device"):
        is_there(type(path)(os.devnull))


@pytest.mark.parametrize("name", ["missing/file", "file/file", "a" * 250])
def test_errors_name_the_file_and_not_its_part(tmp_path, name):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="No such file|Not a directory|File name too long") as raised:
        write(tmp_path / name)
    assert raised.value.filename == str(tmp_path / name)


def test_a_disk_that_is_full_is_told_with_the_file(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checked_file.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left on device") as raised:
        write(tmp_path / "file")
    assert raised.value.filename == str(tmp_path / "file") and list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    path, other = tmp_path / "file[1]", tmp_path / "file[1].notes123.part"
    left = tmp_path / "file[1].0123abcd.part"
    for each in (left, other):
        each.write_bytes(b"part")
    with replacing(path) as file:
        file.write(b"one")
        assert not left.exists()
        [part] = set(tmp_path.iterdir()) - {other}
        write(path)  # of another process, which leaves alone what is being written
        assert part.exists()
    assert path.read_bytes() == b"one" and sorted(tmp_path.iterdir()) == [path, other]


def test_a_file_system_without_locks_keeps_what_was_left(tmp_path, monkeypatch):
    left = tmp_path / "file.0123abcd.part"
    left.write_bytes(b"part")

    def fail(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", fail)
    write(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new" and left.exists()
