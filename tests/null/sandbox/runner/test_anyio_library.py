"""anyio as a program gets it: it loads without what the sandbox has not, and starts no thread."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import anyio
import anyio._backends._asyncio as backend
import pytest

from inferd_runtime.sandbox.runner.anyio_library import LENT, adapted

pytestmark = pytest.mark.anyio


def test_what_anyio_alone_imports_is_there_for_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LENT:
        monkeypatch.delitem(sys.modules, name, raising=False)
    with adapted(ModuleType("anyio._core._sockets")):
        with pytest.raises(OSError, match="no sockets"):
            sys.modules["ssl"].SSLContext()
        assert LENT.keys() <= sys.modules.keys()
    assert not LENT.keys() & sys.modules.keys()
    with adapted(ModuleType("anyiolike")):
        assert not LENT.keys() & sys.modules.keys()


def test_what_is_there_already_stays() -> None:
    import ssl

    with adapted(ModuleType("anyio")):
        assert sys.modules["ssl"] is ssl
    assert sys.modules["ssl"] is ssl


async def test_a_threads_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType(backend.__name__)
    module.AsyncIOBackend = type("AsyncIOBackend", (backend.AsyncIOBackend,), {})
    with adapted(module):
        pass
    monkeypatch.setattr("anyio.to_thread.get_async_backend", lambda: module.AsyncIOBackend)
    assert await anyio.to_thread.run_sync(lambda base: int("11", base), 2) == 3
    assert await anyio.to_thread.run_sync(threading.get_ident) == threading.get_ident()
