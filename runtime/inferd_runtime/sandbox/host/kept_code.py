"""What modules of programs were compiled to, kept for their later runs in this worker: compiling packages takes ten times as long
as running them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.sandbox.runner.program import PACKAGES

MOST_OF_ONE = 16 << 20
"""Bytes of one program's code."""
MOST_BYTES = 32 << 20
"""Of all programs'. What has not been asked for the longest goes first."""
QUOTES = 4
"""Of each entry: a million of entries are refused before they are made into a dictionary."""


class KeptCode:
    """Code by the program's key, then by path, in the form in which guests say it. May be used from any thread.

    Nothing here looks into code: a guest can say anything, and only guests with the same program get it, in a worker that has one
    tenant's. What is kept is not replaced: a run keeps its modules before ``main`` begins, and what it does then, perhaps by code
    that a model wrote, changes none of these for later runs.
    """

    def __init__(self) -> None:
        self._code: OrderedDict[str, dict[str, bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, program: str, path: str) -> bytes:
        """Return the code of a program's module; empty where none is kept."""
        with self._lock:
            if program not in self._code:
                return b""
            self._code.move_to_end(program)
            return self._code[program].get(path, b"")

    def add(self, program: str, bundle: Bundle, code: bytes) -> None:
        """Keep code of a program's modules; what is too much, or of no module of its, is not kept."""
        most = len(bundle.files) + len(bundle.packages)
        if not program or len(code) > MOST_OF_ONE or code.count(b'"') > QUOTES * most:
            return
        try:
            said = msgspec.json.decode(code, type=dict[str, str])
        except ValueError:  # msgspec's errors are, and those about UTF-8
            return
        with self._lock:
            kept = self._code.setdefault(program, {})
            new = {path: text.encode() for path, text in said.items() if path not in kept and _is_module(path, bundle)}
            if _size(kept) + _size(new) <= MOST_OF_ONE:
                kept |= new
            self._code.move_to_end(program)
            while sum(map(_size, self._code.values())) > MOST_BYTES:
                self._code.popitem(last=False)


def _is_module(path: str, bundle: Bundle) -> bool:
    folder, _, inside = path.partition("/")
    return path in bundle.files or (folder == PACKAGES and inside in bundle.packages)


def _size(kept: Mapping[str, bytes]) -> int:
    return sum(map(len, kept.values()))
