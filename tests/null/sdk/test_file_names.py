"""Where files go that a server, or a program behind it, has named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from inferd import InvalidRequest
from inferd.client.file_names import MAX_NAME_BYTES, new_file, open_to_send, safe_name


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("a.txt", "a.txt"), ("../../etc/passwd", "passwd"), ("..\\..\\x.dll", "x.dll"), (".bashrc", "bashrc"), ("..", "file"),
        ("", "file"), ("/", "file"), ("nul", "file-nul"), ("COM1.txt", "file-COM1.txt"), ("a\0b", "a_b"), ("x:y", "x_y"),
        ("\u202egpj.exe", "_gpj.exe"), ("\x1b[2J", "_[2J"),
    ],
)  # fmt: skip
def test_a_hostile_name_becomes_one_of_this_folder(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@given(st.text(max_size=400))
def test_every_name_is_one_part_of_a_path_and_short(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert len(safe.encode()) <= MAX_NAME_BYTES + 10
    assert not {"/", "\\", "\0"} & set(safe)
    assert not safe.startswith(".")


def test_nothing_that_is_there_is_touched(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("mine")
    (tmp_path / "out" / "a-1.txt").symlink_to(elsewhere)
    with new_file(tmp_path / "out", "../a.txt") as file:
        file.write(b"theirs")
    assert Path(file.name).name == "a-2.txt"
    assert (tmp_path / "out" / "a.txt").read_text() == "mine"
    assert not elsewhere.exists()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        new_file(tmp_path / "out" / "a.txt", "b")


def test_only_regular_files_are_sent(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        open_to_send(tmp_path)
    with pytest.raises(InvalidRequest, match="regular"):
        open_to_send(Path(os.devnull))
