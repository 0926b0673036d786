"""One server for all attacks of a test process, and another only if that one has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from inferd_runtime.sandbox.runner_build.component import ensure_runner

from .arena import Arena, open_arena


class Arenas:
    """The server that attacks go to."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._open = ExitStack()
        self._arena: Arena | None = None

    def current(self) -> Arena:
        """Return a server that is up."""
        if self._arena is None or self._arena.server.poll() is not None:
            self._arena = None
            self._open.close()
            self._arena = self._open.enter_context(open_arena(self._folders.mktemp("arena")))
        return self._arena

    def close(self) -> None:
        """End it."""
        self._open.close()


@pytest.fixture(scope="session")
def arenas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arenas]:
    """The servers of this test process."""
    ensure_runner()
    arenas = Arenas(tmp_path_factory)
    yield arenas
    arenas.close()


@pytest.fixture
def arena(arenas: Arenas) -> Iterator[Arena]:
    """The server, its watched neighbour, who rests between attacks, and its hostile tenants."""
    arena = arenas.current()
    arena.watcher.tell("resume")
    arena.watcher.after(1)
    yield arena
    if arena.server.poll() is None:
        arena.watcher.tell("pause")
