"""Python's own ways to read files, on those of the program: its folder is the root, and there is nothing else.

``open``, ``pathlib``, ``os.walk``, ``glob`` and what stands on them read; what would write is refused with what to do instead.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import posixpath
import stat
import tempfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from types import TracebackType
from typing import Any, NoReturn

from inferd.files import ALL_FILES
from inferd_runtime.sandbox.runner.program import LoadedProgram

NO_SUCH_FILE = f"the program has no such file (inferd.{ALL_FILES})"
READ_ONLY = (
    "a program writes no files: keep it in memory (io.StringIO, io.BytesIO), send it with inferd.session.send_file, or keep it "
    "for later runs in a durable queue (inferd.queue)"
)
NO_DESCRIPTORS = "a program has no file descriptors: open() reads the files of its folder"
WRITERS = (
    "chmod", "chown", "ftruncate", "link", "mkdir", "mkfifo", "mknod", "remove", "rename", "replace", "rmdir", "symlink",
    "truncate", "unlink", "utime",
)  # fmt: skip


class OwnFile(io.BytesIO):
    """A file of the program, to read."""

    mode = "rb"

    def __init__(self, path: str, data: bytes) -> None:
        super().__init__(data)
        self.name = path

    def writable(self) -> bool:
        """Return False."""
        return False

    def write(self, data: Any, /) -> NoReturn:
        """Refuse."""
        raise io.UnsupportedOperation("not writable")


class OwnEntry:
    """What ``os.scandir`` tells of a file or folder."""

    def __init__(self, files: OwnFiles, folder: str, name: str) -> None:
        self.name = name
        self.path = posixpath.join(folder, name)
        self._files = files

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return what ``os.stat`` does."""
        return self._files.stat(self.path)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return True for a file."""
        return stat.S_ISREG(self.stat().st_mode)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return True for a folder."""
        return stat.S_ISDIR(self.stat().st_mode)

    def is_symlink(self) -> bool:
        """Return False: there are no links."""
        return False

    is_junction = is_symlink

    def inode(self) -> int:
        """Return its number."""
        return self.stat().st_ino


class OwnEntries:
    """What ``os.scandir`` returns: an iterator that can be closed."""

    def __init__(self, entries: list[OwnEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[OwnEntry]:
        return self._entries

    def __next__(self) -> OwnEntry:
        return next(self._entries)

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> OwnEntries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class OwnFiles:
    """The files of one program, by any way of writing their paths: absolute ones begin at its folder as well."""

    def __init__(self, program: LoadedProgram) -> None:
        self._program = program

    @cached_property
    def _folders(self) -> dict[str, list[str]]:
        """The names in each folder, by its path; that of the program's own is ""."""
        folders: dict[str, dict[str, None]] = {"": {}}
        for path in (*self._program.own, *self._program.installed):
            while path:
                path, name = posixpath.split(path)
                folders.setdefault(path, {})[name] = None
        return {folder: sorted(names) for folder, names in folders.items()}

    def open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        """Open a file as the built-in does; text is UTF-8 where ``encoding`` says nothing."""
        if set(mode) - set("rbtU"):
            raise OSError(errno.EROFS, READ_ONLY, _shown(file))
        data = OwnFile(_shown(file), self.read(file))
        if "b" in mode:
            return data
        return io.TextIOWrapper(data, encoding or "utf-8", errors, newline)

    def read(self, file: Any) -> bytes:
        """Return a file's bytes."""
        path = _inside(file)
        if path in self._folders:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), _shown(file))
        try:
            return self._program.read(path)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, NO_SUCH_FILE, _shown(file)) from None

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        """Return what ``os.stat`` and ``os.lstat`` tell of a file or folder."""
        inside = _inside(path)
        folder = inside in self._folders
        mode = stat.S_IFDIR | 0o555 if folder else stat.S_IFREG | 0o444
        size = 0 if folder else len(self.read(path))
        return os.stat_result((mode, zlib.crc32(inside.encode()), 0, 1, 0, 0, size, 0, 0, 0))

    def listdir(self, path: Any = ".") -> list[str]:
        """Return the names in a folder."""
        names = self._folders.get(_inside(path))
        if names is None:
            self.read(path)  # raises where it is not there
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), _shown(path))
        return list(names)

    def scandir(self, path: Any = ".") -> OwnEntries:
        """Return the entries of a folder."""
        return OwnEntries([OwnEntry(self, os.fspath(path), name) for name in self.listdir(path)])

    def access(self, path: Any, mode: int, **options: Any) -> bool:
        """Return True for a file or folder that is there, unless it is to be written."""
        inside = _inside(path)
        return not mode & os.W_OK and (inside in self._folders or inside in self._program)

    def install(self) -> None:
        """Put these in the place of the built-ins."""
        builtins.open = io.open = self.open
        os.stat = os.lstat = self.stat
        os.listdir, os.scandir, os.access = self.listdir, self.scandir, self.access  # type: ignore[assignment]
        os.open = _no_descriptors
        for name in WRITERS:
            setattr(os, name, _read_only)
        tempfile.tempdir = "/"  # it is not looked for by writing to folders


def _inside(path: Any) -> str:
    """Return a path from the program's folder on, "" for that itself. Raises OSError for what is no path."""
    if isinstance(path, int):
        raise OSError(errno.EBADF, NO_DESCRIPTORS)
    return posixpath.normpath("/" + os.fsdecode(path)).lstrip("/")


def _shown(path: Any) -> str:
    return str(path) if isinstance(path, int) else os.fsdecode(path)


def _read_only(path: Any, *more: Any, **options: Any) -> NoReturn:
    raise OSError(errno.EROFS, READ_ONLY, _shown(path))


def _no_descriptors(path: Any, *more: Any, **options: Any) -> NoReturn:
    raise OSError(errno.ENOTSUP, NO_DESCRIPTORS, _shown(path))
