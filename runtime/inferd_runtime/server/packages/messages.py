"""What the gateway and the process that finds packages say to each other, as JSON."""

from __future__ import annotations

import msgspec

from inferd.protocol import ErrorInfo
from inferd_runtime.sandbox.messages import LockedPackage

ANSWER_FILE = "answer.json"


class Question(msgspec.Struct, frozen=True):
    """Requirements, which are checked, to be met for a Python version. ``folder``: for files meanwhile."""

    requirements: tuple[str, ...]
    python: str
    folder: str


class Packages(msgspec.Struct, frozen=True):
    """The files of packages by the path where they are installed, and which packages those are."""

    files: dict[str, bytes]
    lock: tuple[LockedPackage, ...]


class Answer(msgspec.Struct, frozen=True):
    """Exactly one of the two."""

    packages: Packages | None = None
    error: ErrorInfo | None = None
