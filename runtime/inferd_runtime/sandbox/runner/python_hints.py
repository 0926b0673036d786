"""What helps a program that forgot an ``await``, or looks for an environment."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Coroutine

_UNAWAITED = re.compile(r"(?<!a )\b(?:coroutine|_asyncio\.(?:Task|Future))\b")
"""What Python calls the value that was there instead; "a coroutine was expected" is said of others."""
NO_ENVIRONMENT = (
    "a program has no environment: what it needs are parameters of its main, and what only the operator may read is "
    "inferd.http.secret(NAME)"
)


def python_hint(error: BaseException) -> str:
    """Return what to do instead; "" for an error about anything else."""
    if isinstance(error, AttributeError) and isinstance(error.obj, (Coroutine, asyncio.Future)):
        name = getattr(error.obj, "__qualname__", "")
        return f"{name + '(...)' if name else 'it'} was not awaited: write `await` before it"
    if isinstance(error, TypeError) and _UNAWAITED.search(str(error)):
        return "what made it was not awaited: write `await` before it"
    if isinstance(error, KeyError) and _is_of_environment(error):
        return NO_ENVIRONMENT
    return ""


def _is_of_environment(error: KeyError) -> bool:
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    return any(frame.f_globals.get("__name__") == "os" and frame.f_code.co_name == "__getitem__" for frame in last)
