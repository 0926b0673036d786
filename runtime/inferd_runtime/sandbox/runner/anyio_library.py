"""``anyio`` over the program's event loop: task groups, time-outs, streams and locks work; a thread's work is done at once."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from inferd_runtime.sandbox.runner.absent import NO_SOCKETS, NO_THREADS, RefusingModule

BACKEND = "anyio._backends._asyncio"
LENT = {"ssl": NO_SOCKETS, "concurrent.interpreters": NO_THREADS}
"""What it imports for its sockets and interpreters. Others are to see that these are not there: they do without."""


@contextmanager
def adapted(module: ModuleType) -> Iterator[None]:
    """While a module of anyio loads it finds what it imports; where it would start a thread it does not."""
    if module.__name__.partition(".")[0] != "anyio":
        yield
        return
    lent = [name for name in LENT if name not in sys.modules]
    sys.modules.update({name: RefusingModule(name, LENT[name]) for name in lent})
    try:
        yield
    finally:
        for name in lent:
            del sys.modules[name]
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
