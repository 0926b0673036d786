"""The interface between the SDK and what carries its requests: the sandbox host, a WebSocket, or a test."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Protocol

from inferd.protocol import InferdError, Unavailable
from inferd.vocabulary import TokenVocabulary


class Transport(Protocol):
    """Carries one request to the runtime and brings its reply back."""

    async def call(self, request: Any) -> Any:
        """Send a request dataclass of ``inferd.protocol`` and return its reply dataclass.

        Raises the :class:`~inferd.protocol.InferdError` that the runtime answered. Cancelling the awaiting task cancels
        the operation.
        """


class Port:
    """A transport in use, and requests that release the handles that were garbage-collected before they were released.

    ``vocabularies``: those that were fetched, by the model's name.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.vocabularies: dict[str, TokenVocabulary] = {}
        self.shared: dict[Any, Any] = {}
        """What modules of the SDK keep for this transport, by keys of their own."""
        self._abandoned: deque[list[Any]] = deque()

    def abandon(self, requests: list[Any]) -> None:
        """Store the requests that release a garbage-collected handle. Called by finalizers, so it sends nothing itself."""
        self._abandoned.append(requests)

    async def release_abandoned(self) -> None:
        """Send what :meth:`abandon` stored. Called before a new handle is made."""
        while self._abandoned:
            # The handle's owner is gone, and the call that follows reports a lost connection by itself.
            with contextlib.suppress(InferdError):
                for request in self._abandoned.popleft():
                    await self.transport.call(request)

    def take_abandoned(self) -> list[Any]:
        """Return what :meth:`abandon` stored, to be sent by the caller."""
        taken = [request for requests in self._abandoned for request in requests]
        self._abandoned.clear()
        return taken


_current: ContextVar[Port] = ContextVar("inferd_port")


def use_transport(transport: Transport) -> Any:
    """Make ``transport`` the one that new contexts use in this task; returns the token that undoes it."""
    return use_port(Port(transport))


def use_port(port: Port) -> Any:
    """As :func:`use_transport`, with a port that was used before."""
    return _current.set(port)


def restore_transport(token: Any) -> None:
    """Undo :func:`use_transport`."""
    _current.reset(token)


@contextlib.contextmanager
def transport_in_force(transport: Transport) -> Iterator[None]:
    """As :func:`use_transport`, while the body runs."""
    token = use_transport(transport)
    try:
        yield
    finally:
        restore_transport(token)


def current_port() -> Port:
    """Return the port in force. Raises Unavailable outside a program and outside ``inferd.connect``."""
    try:
        return _current.get()
    except LookupError:
        raise Unavailable(
            "not connected: use `async with inferd.connect(...)`, or run this file with `inferd run`"
        ) from None


def current_transport() -> Transport:
    """Return the transport in force. Raises Unavailable outside a program and outside ``inferd.connect``."""
    return current_port().transport
