"""Writing that never leaves half a file."""

import errno
import os
import stat

import pytest

from flowtempo.errors import UserError
from flowtempo.files import atomic_folder, atomic_write, read_json


def test_write_replaces_and_makes_parents(tmp_path):
    path = tmp_path / "a" / "b.json"
    for text in ("first", "second"):
        with atomic_write(path) as file:
            file.write(text)
    assert path.read_text() == "second"
    assert os.listdir(path.parent) == ["b.json"]


def test_interrupted_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")

    def interrupted():
        with atomic_write(path, "wb") as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.bin"]


def test_permissions_follow_the_umask(tmp_path):
    old = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "f") as file:
            file.write("")
        with atomic_folder(tmp_path / "d"):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750


def test_folder_appears_whole_or_not_at_all(tmp_path):
    final = tmp_path / "step-1"
    with atomic_folder(final) as folder:
        (folder / "a").write_text("1")
        assert not final.exists()
    assert (final / "a").read_text() == "1"

    def full_disk():
        with atomic_folder(final) as folder:
            (folder / "a").write_text("2")
            raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        full_disk()
    assert (final / "a").read_text() == "1"
    with atomic_folder(final) as folder:
        (folder / "b").write_text("3")
    assert os.listdir(final) == ["b"]
    assert os.listdir(tmp_path) == ["step-1"]


def test_a_failed_write_names_the_file_that_was_asked_for(tmp_path):
    (tmp_path / "taken").mkdir()

    def over_a_folder():
        with atomic_write(tmp_path / "taken") as file:
            file.write("x")

    with pytest.raises(OSError, match="taken") as raised:
        over_a_folder()
    assert raised.value.filename == str(tmp_path / "taken")

    def full():
        with atomic_write(tmp_path / "new"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left") as raised:
        full()
    assert raised.value.filename == str(tmp_path / "new")

    def another_file():
        with atomic_write(tmp_path / "new"):
            open(tmp_path / "absent").close()

    with pytest.raises(FileNotFoundError) as missing:
        another_file()
    assert missing.value.filename == str(tmp_path / "absent")


def test_bytes_are_on_the_disk_before_the_name(tmp_path, monkeypatch):
    told = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)

        def telling(*arguments, name=name, original=original):
            told.append(name)
            return original(*arguments)

        monkeypatch.setattr(os, name, telling)
    with atomic_write(tmp_path / "f") as file:
        file.write("x")
    assert told == ["fsync", "replace", "fsync"]
    told.clear()
    with atomic_folder(tmp_path / "d") as folder:
        (folder / "a").write_text("1")
    assert told == ["fsync", "fsync", "replace", "fsync"]


def test_json_is_read_or_the_file_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": [1, 2.5]}')
    assert read_json(path) == {"a": [1, 2.5]}
    os.mkfifo(tmp_path / "pipe")
    for name, content, message in (
        ("x.json", "{", "is not JSON, or was cut short"),
        ("x.json", "[" * 100_000, "nested too deeply"),
        ("none.json", None, "cannot be read: No such file"),
        ("pipe", None, "not a regular file"),
    ):
        if content is not None:
            path.write_text(content)
        with pytest.raises(UserError, match=message) as raised:
            read_json(tmp_path / name)
        assert str(tmp_path / name) in str(raised.value)
    path.write_text("{")
    with pytest.raises(UserError, match=r"x\.json: not a density: it is not JSON"):
        read_json(path, "a density")
