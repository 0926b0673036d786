"""Python's own ways to read files, on those of a program."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import tokenize
import zipfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inferd_runtime.sandbox.runner.own_files import OwnFiles
from inferd_runtime.sandbox.runner.program import LoadedProgram

DATA = {"table.json": b'{"a": 1}', "notes/ä b.txt": "grüß\r\n".encode(), "notes/deep/x.bin": b"\x00\xff"}
CHANGED = (
    "access", "chmod", "chown", "close", "fstat", "fsync", "ftruncate", "link", "listdir", "lstat", "mkdir", "mkfifo", "mknod",
    "open", "read", "remove", "rename", "replace", "rmdir", "scandir", "stat", "symlink", "truncate", "unlink", "utime", "write",
)  # fmt: skip
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
    with pytest.raises(OSError, match="descriptors below /tmp alone"):
        FILES.open_descriptor("main.py", os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        FILES.stat(3)


@pytest.mark.parametrize("mode", ["w", "a", "x", "r+", "wb"])
def test_writing_is_refused_with_what_to_do_instead(mode: str) -> None:
    with pytest.raises(OSError, match=r"session.send_file.*'out.txt'"):
        FILES.open("out.txt", mode)


REMOVING = ("_use_fd_functions", "_rmtree_impl") if sys.version_info >= (3, 14) else ("_use_fd_functions",)


@contextmanager
def in_a_program() -> Iterator[None]:
    """Have Python's own functions use the files of a program while a test's body runs, but not while pytest works."""
    owners: dict[Any, tuple[str, ...]] = {
        os: CHANGED, builtins: ("open",), io: ("open",), tokenize: ("_builtin_open",), tempfile: ("tempdir",),
        shutil: REMOVING, tarfile: ("bltn_open",), os.path: ("expanduser",),
    }  # fmt: skip
    before = [(owner, name, getattr(owner, name)) for owner, names in owners.items() for name in names]
    for removing in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
        if getattr(removing, "__defaults__", None):
            before.append((removing, "__defaults__", removing.__defaults__))
    OwnFiles(LoadedProgram("test", {"main.py": "x = 1\n"}, "main.py")).install()
    if sys.version_info >= (3, 14):  # chosen when shutil is imported: in the sandbox, by what WASI has
        shutil._rmtree_impl = shutil._rmtree_unsafe  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@in_a_program()
def test_text_and_bytes_are_written_changed_and_removed() -> None:
    path = Path("/tmp/a.txt")
    assert path.write_text("grüß\n") == 5
    with open("/tmp/a.txt", "a") as file:
        file.write("b")
    with open("tmp/a.txt", "r+b") as binary:
        assert binary.read(2) == b"gr"
        binary.seek(0)
        binary.write(b"G")
    assert (path.read_text(), path.stat().st_size, os.listdir("/tmp")) == ("Grüß\nb", 8, ["a.txt"])
    assert os.access(path, os.R_OK | os.W_OK)
    os.replace(path, "/tmp/b.txt")
    with pytest.raises(FileNotFoundError):
        path.read_text()
    with pytest.raises(FileExistsError), open("/tmp/b.txt", "x"):
        pass
    os.remove("/tmp/b.txt")
    assert os.listdir("/tmp") == []


@in_a_program()
def test_what_may_be_written_says_so_and_an_unknown_mode_writes_nothing() -> None:
    Path("/tmp/a").touch()
    assert [Path(path).stat().st_mode & 0o777 for path in ("/tmp/a", "/tmp", "main.py", "/")] == [
        0o666,
        0o777,
        0o444,
        0o555,
    ]
    for mode in ("q", "rw", "b", "rU", ""):
        with pytest.raises(ValueError, match="invalid mode"):
            Path("/tmp/new").open(mode)  # noqa: SIM115
    assert os.listdir("/tmp") == ["a"]


@in_a_program()
def test_what_was_written_is_seen_when_it_is_flushed() -> None:
    with open("/tmp/a", "w") as file:
        file.write("one")
        file.flush()
        assert Path("/tmp/a").read_text() == "one"
        file.write("two")
    assert Path("/tmp/a").read_text() == "onetwo"


@in_a_program()
def test_folders_are_made_walked_and_removed() -> None:
    os.makedirs("/tmp/a/b")
    Path("/tmp/a/b/c").write_bytes(b"x")
    assert list(os.walk("/tmp")) == [("/tmp", ["a"], []), ("/tmp/a", ["b"], []), ("/tmp/a/b", [], ["c"])]
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("/tmp/a")
    with pytest.raises(FileNotFoundError):
        Path("/tmp/none/x").write_text("")
    shutil.copy("/tmp/a/b/c", "/tmp/d")
    shutil.rmtree("/tmp/a")
    assert [path.as_posix() for path in Path("/tmp").rglob("*")] == ["/tmp/d"]


@in_a_program()
def test_a_folder_is_renamed_with_all_in_it_and_never_over_another() -> None:
    os.makedirs("/tmp/a/b")
    Path("/tmp/a/b/x").write_text("x")
    Path("/tmp/ab").touch()
    os.mkdir("/tmp/empty")
    os.rename("/tmp/a", "/tmp/empty")
    assert Path("/tmp/empty/b/x").read_text() == "x"
    assert sorted(os.listdir("/tmp")) == ["ab", "empty"]
    os.mkdir("/tmp/c")
    for target in ("/tmp/empty", "/tmp/c/none/d", "/tmp/c/inside"):
        with pytest.raises(OSError, match="/tmp"):
            os.rename("/tmp/c", target)
    with pytest.raises(IsADirectoryError):
        os.replace("/tmp/ab", "/tmp/c")
    with pytest.raises(NotADirectoryError):
        os.replace("/tmp/c", "/tmp/ab")
    os.rename("/tmp/empty", "/tmp/empty")
    assert Path("/tmp/empty/b/x").read_text() == "x"
    Path("/tmp/other").write_text("other")
    os.replace("/tmp/other", "/tmp/ab")
    assert Path("/tmp/ab").read_text() == "other"


@in_a_program()
def test_files_have_descriptors_lengths_and_times() -> None:
    with open("/tmp/a", "w") as file:
        file.write("abc")
        file.flush()
        os.fsync(file.fileno())
        assert os.fstat(file.fileno()).st_size == 3
        number = file.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(number)
    os.truncate("/tmp/a", 1)
    with open("/tmp/a", "r+") as file:
        file.truncate(3)
    assert Path("/tmp/a").read_bytes() == b"a\0\0"
    os.utime("/tmp/a")
    with pytest.raises(FileNotFoundError):
        os.utime("/tmp/none")
    with pytest.raises(FileNotFoundError):
        os.chmod("/tmp/none", 0o600)
    Path("/tmp/touched").touch()
    assert Path("/tmp/touched").exists()
    open("/tmp/unclosed", "w").write("seen when nobody has the file any more")  # noqa: SIM115
    assert Path("/tmp/unclosed").stat().st_size == 38


@in_a_program()
def test_the_users_folder_is_the_root() -> None:
    assert [os.path.expanduser(path) for path in ("~", "~/.cache", "~other/x", "a/~")] == [
        "/",
        "/.cache",
        "~other/x",
        "a/~",
    ]
    assert os.path.expanduser(b"~/x") == b"/x"
    assert Path.home() == Path("/")


@in_a_program()
def test_pythons_temporary_files_and_archives_work() -> None:
    """openpyxl could not save a table: it writes each sheet into a temporary file."""
    with tempfile.NamedTemporaryFile("w+", suffix=".csv") as named:
        named.write("a,b\n")
        named.flush()
        assert Path(named.name).read_text() == "a,b\n"
        with zipfile.ZipFile("/tmp/x.zip", "w") as archive:
            archive.write(named.name, "a.csv")
    with zipfile.ZipFile("/tmp/x.zip") as archive:
        assert archive.read("a.csv") == b"a,b\n"
    with tempfile.TemporaryFile() as unnamed:
        unnamed.write(b"x")
        unnamed.flush()
        assert os.fstat(unnamed.fileno()).st_size == 1
        unnamed.seek(0)
        assert unnamed.read() == b"x"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "y").touch()
    descriptor, path = tempfile.mkstemp()
    assert os.write(descriptor, b"one") == 3
    with os.fdopen(descriptor, "a") as file:
        file.write("two")
    assert (Path(path).read_text(), os.fstat(descriptor).st_size) == ("onetwo", 6)
    os.close(descriptor)
    os.unlink(path)
    assert os.listdir("/tmp") == ["x.zip"]


@pytest.mark.parametrize("path", ["main.py", "/out.txt", "/tmp/../out.txt", "/tmpx"])
@in_a_program()
def test_everything_else_is_read_only(path: str) -> None:
    for change in (
        lambda: Path(path).write_text(""),
        lambda: os.mkdir(path),
        lambda: os.rename("/tmp/a", path),
        lambda: os.remove(path),
    ):
        Path("/tmp/a").write_text("")
        with pytest.raises(OSError, match="below /tmp alone"):
            change()
