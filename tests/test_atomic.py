"""A file is the old one or the new one, whatever happens in between."""

import os
from pathlib import Path

import pytest

from cudal2.atomic import write_atomically
from cudal2.errors import EnvironmentProblemError


def test_text_and_bytes_replace_what_was_there_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_atomically(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    write_atomically(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01" and path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["file"]


def test_a_failure_keeps_the_old_file_leaves_nothing_and_says_what_to_do(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "file"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentProblemError, match=r"cannot write .*file: No space left on device: make room$"):
        write_atomically(path, "new", "make room")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblemError, match=r"cannot write .*: File exists$"):
        write_atomically(tmp_path / "file" / "below", "x")
