"""``anyio`` over the program's event loop: task groups, time-outs, streams and locks work; a thread's work is done at once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from types import ModuleType
from typing import Any

BACKEND = "anyio._backends._asyncio"


def adapt(module: ModuleType) -> None:
    """Have a module of anyio that has just been loaded do at once what it would start a thread for."""
    if module.__name__ == BACKEND:
        _work_at_once(module)


def _work_at_once(module: Any) -> None:
    backend = module.AsyncIOBackend

    async def run_sync_in_worker_thread(
        func: Callable[..., Any], args: tuple[Any, ...], abandon_on_cancel: bool = False, limiter: Any = None
    ) -> Any:
        await backend.checkpoint()
        return contextvars.copy_context().run(func, *args)

    backend.run_sync_in_worker_thread = staticmethod(run_sync_in_worker_thread)
