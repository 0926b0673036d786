"""anyio as a program gets it: it starts no thread."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import anyio
import anyio._backends._asyncio as backend
import pytest

from inferd_runtime.sandbox.runner.anyio_library import adapt


async def test_a_threads_work_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType(backend.__name__)
    module.AsyncIOBackend = type("AsyncIOBackend", (backend.AsyncIOBackend,), {})
    adapt(module)
    monkeypatch.setattr("anyio.to_thread.get_async_backend", lambda: module.AsyncIOBackend)
    assert await anyio.to_thread.run_sync(lambda base: int("11", base), 2) == 3
    assert await anyio.to_thread.run_sync(threading.get_ident) == threading.get_ident()
