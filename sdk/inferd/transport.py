"""The seam between the SDK and whatever carries its operations: the sandbox host, a WebSocket, or a test."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from inferd.protocol import Unavailable


class Transport(Protocol):
    """Carries one request to the runtime and brings its reply back."""

    async def call(self, request: Any) -> Any:
        """Send a request dataclass of ``inferd.protocol`` and return its reply dataclass.

        Raises the :class:`~inferd.protocol.InferdError` that the runtime answered. Cancelling the awaiting task cancels
        the operation.
        """
        ...


_current: ContextVar[Transport] = ContextVar("inferd_transport")


def use_transport(transport: Transport) -> Any:
    """Make ``transport`` the one that new contexts use in this task; returns the token that undoes it."""
    return _current.set(transport)


def restore_transport(token: Any) -> None:
    """Undo :func:`use_transport`."""
    _current.reset(token)


def current_transport() -> Transport:
    """The transport in force. Raises Unavailable outside a program and outside ``inferd.connect``."""
    try:
        return _current.get()
    except LookupError:
        raise Unavailable(
            "not connected: use `async with inferd.connect(...)`, or run this file with `inferd run`"
        ) from None
