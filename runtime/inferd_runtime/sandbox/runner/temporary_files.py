"""Files that a program writes below ``/tmp``: they are in its own memory, and gone when it ends."""

from __future__ import annotations

import errno
import io
import itertools
import os
import posixpath
import time
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

FOLDER = "tmp"
FIRST_DESCRIPTOR = 1000
"""Far above those that Python has open itself."""


@dataclass(eq=False)
class Content:
    """What a file holds, also once its name is gone, and when it was written (Unix seconds)."""

    data: bytes = b""
    modified: float = field(default_factory=time.time)


class WrittenFile(io.BytesIO):
    """A file that is open to be written. Others see what was written once it is flushed or closed."""

    def __init__(self, name: str, mode: str, content: Content, number: int) -> None:
        super().__init__(b"" if "w" in mode else content.data)
        self.name, self.content = name, content
        self._mode, self._number = mode, number
        self._appends = "a" in mode
        if self._appends:
            self.seek(0, io.SEEK_END)

    @property
    def mode(self) -> str:
        """The mode that it was opened in."""
        return self._mode

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._number

    def readable(self) -> bool:
        """Return True where the mode has a plus."""
        return "+" in self._mode

    def write(self, data: Any, /) -> int:
        """Write bytes where it stands, or at the end of a file that is appended to."""
        if self._appends:
            self.seek(0, io.SEEK_END)
        return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        """Cut the file, or fill it up with zeros."""
        at = self.tell()
        size = at if size is None else size
        missing = size - len(self.getbuffer())
        if missing <= 0:
            return super().truncate(size)
        self.seek(0, io.SEEK_END)
        super().write(bytes(missing))
        self.seek(at)
        return size

    def flush(self) -> None:
        """Let others see what was written."""
        super().flush()
        self.content.data, self.content.modified = self.getvalue(), time.time()

    def close(self) -> None:
        """Flush, and close."""
        if not self.closed:
            self.flush()
        super().close()


class TemporaryFiles:
    """Files and folders by their paths, which begin with ``FOLDER``, and descriptors of files that are open."""

    def __init__(self) -> None:
        self._files: dict[str, Content] = {}
        self._folders = {FOLDER}
        self._numbers = itertools.count(FIRST_DESCRIPTOR)
        self._open: WeakValueDictionary[int, WrittenFile] = WeakValueDictionary()
        self._held: dict[int, WrittenFile] = {}
        """Those of ``os.open``, which nobody else holds."""

    def holds(self, path: str) -> bool:
        """Return True for the paths that can be written."""
        return path == FOLDER or path.startswith(f"{FOLDER}/")

    def is_folder(self, path: str) -> bool:
        """Return True for a folder."""
        return path in self._folders

    def has(self, path: str) -> bool:
        """Return True for a file that is there."""
        return path in self._files

    def content(self, path: str) -> Content:
        """Return a file. Raises OSError where there is none."""
        if path in self._folders:
            raise _failed(errno.EISDIR, path)
        if path not in self._files:
            raise _failed(errno.ENOENT, path)
        return self._files[path]

    def names(self, path: str) -> list[str]:
        """Return the names in a folder. Raises OSError where there is none."""
        if path not in self._folders:
            raise _failed(errno.ENOTDIR if path in self._files else errno.ENOENT, path)
        within = (posixpath.split(each) for each in (*self._files, *self._folders))
        return sorted(name for folder, name in within if folder == path)

    def for_writing(self, path: str, mode: str) -> Content:
        """Return a file to open in a mode that writes, which makes it unless the mode is ``r+``."""
        if path in self._files and "x" in mode:
            raise _failed(errno.EEXIST, path)
        if path in self._folders or path in self._files or "r" in mode:
            return self.content(path)
        if posixpath.dirname(path) not in self._folders:
            raise _failed(errno.ENOENT, path)
        return self._files.setdefault(path, Content())

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.content(path)
        del self._files[path]

    def mkdir(self, path: str) -> None:
        """Make a folder."""
        if path in self._folders or path in self._files:
            raise _failed(errno.EEXIST, path)
        if posixpath.dirname(path) not in self._folders:
            raise _failed(errno.ENOENT, path)
        self._folders.add(path)

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        if self.names(path) or path == FOLDER:
            raise _failed(errno.ENOTEMPTY, path)
        self._folders.remove(path)

    def rename(self, path: str, new: str) -> None:
        """Give a file or folder another name, in the place of a file, or of an empty folder, that has that."""
        is_folder = path in self._folders
        if not is_folder:
            self.content(path)
        if posixpath.dirname(new) not in self._folders or new.startswith(f"{path}/"):
            raise _failed(errno.ENOENT, new)
        if new == path:
            return
        if new in self._folders and not is_folder:
            raise _failed(errno.EISDIR, new)
        if new in self._files and is_folder:
            raise _failed(errno.ENOTDIR, new)
        if is_folder and new in self._folders:
            self.rmdir(new)
        self._files.pop(new, None)
        self._files = {_moved(each, path, new): content for each, content in self._files.items()}
        self._folders = {_moved(each, path, new) for each in self._folders}

    def file(self, name: str, mode: str, content: Content) -> WrittenFile:
        """Open a file to be written."""
        number = next(self._numbers)
        self._open[number] = file = WrittenFile(name, mode, content, number)
        return file

    def open(self, path: str, flags: int) -> int:
        """Return a descriptor, as ``os.open`` does."""
        mode = "r" if not flags & os.O_CREAT else "x" if flags & os.O_EXCL else "a"
        content = self.for_writing(path, mode)
        if flags & os.O_TRUNC:
            content.data = b""
        file = self.file(f"/{path}", "a+" if flags & os.O_APPEND else "r+", content)
        self._held[file.fileno()] = file
        return file.fileno()

    def opened(self, descriptor: int) -> WrittenFile:
        """Return the file of a descriptor. Raises OSError for others."""
        file = self._open.get(descriptor)
        if file is None or file.closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return file

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        self.opened(descriptor)
        self._held.pop(descriptor, None)

    def write(self, descriptor: int, data: Any) -> int:
        """Write bytes where a descriptor stands; returns how many."""
        file = self.opened(descriptor)
        count = file.write(data)
        file.flush()
        return count

    def read(self, descriptor: int, count: int) -> bytes:
        """Return bytes from where a descriptor stands."""
        return self.opened(descriptor).read(count)


def _moved(each: str, path: str, new: str) -> str:
    """Return where a file or folder is, once what was at ``path`` is at ``new``."""
    return new + each.removeprefix(path) if each == path or each.startswith(f"{path}/") else each


def _failed(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), f"/{path}")
