"""Files of a program's own folder, to read: ``inferd.files.read_text("prompts/first.txt")``.

What is uploaded with a program, or lies in the folder of a script. Paths are relative to the program's folder, with slashes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

ALL_FILES = "files.names() lists what it has: all of its folder, where the folder with its main.py is run or uploaded"
"""What is told of a file that is not there."""


class ProgramFolder(Protocol):
    """Where a program's files are."""

    @property
    def own(self) -> Iterable[str]:
        """The paths of its files."""

    def read(self, path: str) -> bytes:
        """Return a file. Raises FileNotFoundError."""


class ScriptFolder:
    """Return the folder of the running script. Raises FileNotFoundError where there is none, as in an interactive session."""

    def __init__(self) -> None:
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        if script is None:
            raise FileNotFoundError("this is no script: it has no folder to read files from")
        self._folder = Path(script).resolve().parent

    @property
    def own(self) -> Iterable[str]:
        """The paths of all files below the folder."""
        return [path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file()]

    def read(self, path: str) -> bytes:
        """Return a file. Raises FileNotFoundError."""
        return (self._folder / path).read_bytes()


_folder: ContextVar[ProgramFolder] = ContextVar("inferd_folder")


def use_folder(folder: ProgramFolder) -> Any:
    """Make ``folder`` the one that is read from; returns the token for ContextVar.reset."""
    return _folder.set(folder)


def names() -> list[str]:
    """Return the paths of all files, sorted."""
    return sorted(_current().own)


def read_bytes(path: str) -> bytes:
    """Return a file's bytes. Raises FileNotFoundError, for a path out of the folder too."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        raise FileNotFoundError(
            f"{path!r} is not below the program's folder: open() reads what the run has written to /tmp"
        )
    try:
        return _current().read(str(pure))
    except (FileNotFoundError, IsADirectoryError):
        raise FileNotFoundError(f"the program has no file {path!r}; {ALL_FILES}") from None


def read_text(path: str, encoding: str = "utf-8") -> str:
    """Return a file's text. Raises FileNotFoundError, and UnicodeDecodeError for what is no text."""
    return read_bytes(path).decode(encoding)


def read_json(path: str) -> Any:
    """Return the value of a JSON file. Raises FileNotFoundError, and ValueError for what is no JSON."""
    return json.loads(read_bytes(path))


def _current() -> ProgramFolder:
    return _folder.get(None) or ScriptFolder()
