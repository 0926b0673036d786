"""Python's own ways to read files, on those of the program: its folder is the root, and there is nothing else.

``open``, ``pathlib``, ``os.walk``, ``glob`` and what stands on them read. Below ``/tmp`` they write as well
(:mod:`.temporary_files`); elsewhere what would write is refused with what to do instead.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
import tokenize
import zlib
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn

from inferd.files import ALL_FILES
from inferd_runtime.sandbox.runner.program import LoadedProgram
from inferd_runtime.sandbox.runner.temporary_files import FOLDER, Content, TemporaryFiles, WrittenFile

NO_SUCH_FILE = f"the program has no such file (inferd.{ALL_FILES})"
READ_ONLY = (
    "a program writes files below /tmp alone, which are gone when it ends: send what it made with inferd.session.send_file, or "
    "keep it for later runs in a durable queue (inferd.queue)"
)
NO_DESCRIPTORS = "a program has file descriptors below /tmp alone: open() reads the files of its folder"
EPOCH = 315532800
"""When a program's own files were made: 1980, before which archives know no time."""
NOTHING = Content(b"", EPOCH)
WRITERS = ("link", "mkfifo", "mknod", "symlink")


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
        self._written = TemporaryFiles()

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
        if opener is not None:
            file = opener(file, os.O_RDWR | os.O_CREAT)
        data = self._binary(file, mode)
        if "b" in mode:
            return data
        return io.TextIOWrapper(data, encoding or "utf-8", errors, newline)

    def _binary(self, file: Any, mode: str) -> OwnFile | WrittenFile:
        if len(set(mode) & set("rwax")) != 1 or set(mode) - set("rwaxbt+"):
            raise ValueError(f"invalid mode: {mode!r}")
        writes = bool(set(mode) - set("rbt"))
        if isinstance(file, int):
            opened = self._written.opened(file)
            name, content = opened.name, opened.content
            return self._written.file(name, mode, content) if writes else OwnFile(name, content.data)
        if not writes:
            return OwnFile(_shown(file), self.read(file))
        return self._written.file(_shown(file), mode, self._written.for_writing(self._writable(file), mode))

    def read(self, file: Any) -> bytes:
        """Return a file's bytes."""
        path = _inside(file)
        if path in self._program.folders:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), _shown(file))
        if path not in self._program and self._written.holds(path):
            return self._written.content(path).data
        try:
            return self._program.read(path)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, NO_SUCH_FILE, _shown(file)) from None

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        """Return what ``os.stat`` and ``os.lstat`` tell of a file or folder."""
        if isinstance(path, int):
            return _stat(stat.S_IFREG | 0o666, str(path), self._written.opened(path).content)
        inside = _inside(path)
        written = 0o222 if self._written.holds(inside) else 0
        if self._is_folder(inside):
            return _stat(stat.S_IFDIR | 0o555 | written, inside, NOTHING)
        own = not self._written.has(inside)
        content = Content(self.read(path), EPOCH) if own else self._written.content(inside)
        return _stat(stat.S_IFREG | 0o444 | written, inside, content)

    def listdir(self, path: Any = ".") -> list[str]:
        """Return the names in a folder."""
        inside = _inside(path)
        if not self._is_folder(inside):
            self.read(path)  # raises where it is not there
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), _shown(path))
        written = self._written.names(inside) if self._written.is_folder(inside) else ()
        return sorted({*self._program.folders.get(inside, ()), *written})

    def scandir(self, path: Any = ".") -> OwnEntries:
        """Return the entries of a folder."""
        return OwnEntries([OwnEntry(self, os.fspath(path), name) for name in self.listdir(path)])

    def access(self, path: Any, mode: int, **options: Any) -> bool:
        """Return True for a file or folder that is there, and for one below ``/tmp`` that is to be written."""
        inside = _inside(path)
        if self._written.holds(inside):
            return self._is_folder(inside) or inside in self._program or self._written.has(inside)
        return not mode & os.W_OK and (inside in self._program.folders or inside in self._program)

    def open_descriptor(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        """Open a file below ``/tmp`` as ``os.open`` does."""
        inside = _inside(path)
        if not self._written.holds(inside):
            raise OSError(errno.ENOTSUP, NO_DESCRIPTORS, _shown(path))
        return self._written.open(inside, flags)

    def install(self) -> None:
        """Put these in the place of the built-ins."""
        builtins.open = io.open = self.open
        tokenize._builtin_open = tarfile.bltn_open = self.open  # type: ignore[attr-defined]  # they have names of their own for it
        os.stat = os.lstat = os.fstat = self.stat  # type: ignore[assignment]
        os.listdir, os.scandir, os.access = self.listdir, self.scandir, self.access  # type: ignore[assignment]
        os.open, os.close = self.open_descriptor, self._written.close  # type: ignore[assignment]
        os.read, os.write = self._written.read, self._written.write
        before = os.unlink
        os.remove = os.unlink = self._changing(self._written.remove)
        os.mkdir, os.rmdir = self._changing(self._written.mkdir), self._changing(self._written.rmdir)
        os.rename = os.replace = self._rename
        os.chmod = os.chown = os.utime = self._changing(self.stat)  # which raises where there is none
        os.fsync, os.ftruncate, os.truncate = self._sync, self._truncate, self._truncate  # type: ignore[assignment]
        os.path.expanduser = _expanduser
        for name in WRITERS:
            setattr(os, name, _read_only)
        shutil._use_fd_functions = False  # type: ignore[attr-defined]  # folders have no descriptors
        _use_for_temporary_files(before)

    def _is_folder(self, inside: str) -> bool:
        return inside in self._program.folders or self._written.is_folder(inside)

    def _writable(self, path: Any) -> str:
        """Return a path below ``/tmp`` from the root on. Raises OSError for others."""
        inside = _inside(path)
        if inside in self._program or not self._written.holds(inside):
            _read_only(path)
        return inside

    def _changing(self, change: Callable[[str], object]) -> Callable[..., None]:
        def changed(path: Any, *more: Any, **options: Any) -> None:
            change(self._writable(path))

        return changed

    def _sync(self, descriptor: int) -> None:
        self._written.opened(descriptor).flush()

    def _truncate(self, path: Any, length: int) -> None:
        file = self._written.opened(path) if isinstance(path, int) else self._binary(path, "r+b")
        file.truncate(length)
        file.flush()

    def _rename(self, src: Any, dst: Any, **options: Any) -> None:
        self._written.rename(self._writable(src), self._writable(dst))


def _inside(path: Any) -> str:
    """Return a path from the program's folder on, "" for that itself. Raises OSError for what is no path."""
    if isinstance(path, int):
        raise OSError(errno.EBADF, NO_DESCRIPTORS)
    return posixpath.normpath("/" + os.fsdecode(path)).lstrip("/")


def _use_for_temporary_files(unlink: Callable[..., None]) -> None:
    """Have ``tempfile`` make its files below ``/tmp``, and remove them by the new ``os.unlink``: it holds the one of before."""
    tempfile.tempdir = f"/{FOLDER}"
    for function in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
        if unlink in (getattr(function, "__defaults__", None) or ()):
            function.__defaults__ = tuple(os.unlink if each is unlink else each for each in function.__defaults__)


def _stat(mode: int, inside: str, content: Content) -> os.stat_result:
    at = int(content.modified)
    return os.stat_result((mode, zlib.crc32(inside.encode()), 0, 1, 0, 0, len(content.data), at, at, at))


def _shown(path: Any) -> str:
    return str(path) if isinstance(path, int) else os.fsdecode(path)


def _expanduser(path: Any) -> Any:
    """Return a path with ``~`` as the root: packages ask for the user's folder when they are imported."""
    text = os.fspath(path)
    parts = os.fsdecode(text).partition("/")
    home = f"/{parts[2].lstrip('/')}" if parts[0] == "~" else os.fsdecode(text)
    return home if isinstance(text, str) else os.fsencode(home)


def _read_only(path: Any, *more: Any, **options: Any) -> NoReturn:
    raise OSError(errno.EROFS, READ_ONLY, _shown(path))
