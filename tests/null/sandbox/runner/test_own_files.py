"""Python's own ways to read files, on those of a program."""

from __future__ import annotations

import os
import stat
from base64 import b64encode
from pathlib import Path

import pytest

from inferd_runtime.sandbox.runner.own_files import OwnFiles
from inferd_runtime.sandbox.runner.program import LoadedProgram

DATA = {"table.json": b'{"a": 1}', "notes/ä b.txt": "grüß\r\n".encode(), "notes/deep/x.bin": b"\x00\xff"}
FILES = OwnFiles(
    LoadedProgram("test", {"main.py": "x = 1\n"}, "main.py", data={k: b64encode(v).decode() for k, v in DATA.items()})
)


@pytest.mark.parametrize(
    "path", ["table.json", "./table.json", "/table.json", "notes/../table.json", Path("table.json")]
)
def test_a_file_is_found_by_every_way_of_writing_its_path(path: str | Path) -> None:
    with FILES.open(path) as file:
        assert (file.read(), file.name) == ('{"a": 1}', str(path))
    assert FILES.stat(path).st_size == 8


def test_text_and_bytes_are_read_as_the_built_in_reads_them() -> None:
    with FILES.open("notes/ä b.txt") as file:
        assert (list(file), file.writable()) == (["grüß\n"], False)
    assert FILES.open("notes/ä b.txt", newline="").read() == "grüß\r\n"
    assert FILES.open("notes/ä b.txt", encoding="latin-1").read()[:2] == "gr"
    with FILES.open("notes/deep/x.bin", "rb") as file:
        assert (file.read(1), file.seek(0), file.read()) == (b"\x00", 0, b"\x00\xff")


def test_folders_are_listed_and_told_from_files() -> None:
    assert FILES.listdir() == FILES.listdir("/") == ["main.py", "notes", "table.json"]
    with FILES.scandir("notes") as entries:
        assert [(entry.name, os.fspath(entry), entry.is_dir(), entry.is_file()) for entry in entries] == [
            ("deep", "notes/deep", True, False),
            ("ä b.txt", "notes/ä b.txt", False, True),
        ]
    assert stat.S_ISDIR(FILES.stat("notes").st_mode)
    assert [FILES.access(path, os.R_OK) for path in ("notes", "main.py", "other")] == [True, True, False]
    assert not FILES.access("main.py", os.W_OK)


def test_a_file_beside_a_program_that_is_run_alone_is_missed_with_how_it_comes_along() -> None:
    """`inferd run main.py` takes that file alone, and its author saw the other one in the same folder."""
    with pytest.raises(FileNotFoundError, match=r"where the folder with its main\.py is run"):
        FILES.open("story.txt")


def test_what_is_not_there_or_no_file_is_said_by_type_and_name() -> None:
    with pytest.raises(FileNotFoundError, match=r"inferd.files.names\(\) lists.*'/etc/passwd'"):
        FILES.open("/etc/passwd")
    with pytest.raises(FileNotFoundError):
        FILES.stat("../other")
    with pytest.raises(IsADirectoryError):
        FILES.open("notes")
    with pytest.raises(NotADirectoryError):
        FILES.listdir("main.py")
    with pytest.raises(OSError, match="no file descriptors"):
        FILES.stat(3)


@pytest.mark.parametrize("mode", ["w", "a", "x", "r+", "wb"])
def test_writing_is_refused_with_what_to_do_instead(mode: str) -> None:
    with pytest.raises(OSError, match=r"session.send_file.*'out.txt'"):
        FILES.open("out.txt", mode)
