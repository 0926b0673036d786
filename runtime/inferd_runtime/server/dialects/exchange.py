"""One request of a client and the shape of its answer: what every dialect has to bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from inferd.chat import ChatEvent, ChatRequest
from inferd.protocol import InferdError, NotFound, cut, shown
from inferd.protocol.carrying import MAX_NAME


class WholeAnswer(Protocol):
    """An answer that is not streamed: it takes all events, and is written when it has them."""

    def add(self, event: ChatEvent) -> None:
        """Take the next event."""

    def body(self) -> bytes:
        """Return the JSON of the whole answer."""


class Exchange(Protocol):
    """A request that was read, and what its answer looks like. Synchronous; used for one answer.

    ``model`` is what the client calls the model, which need not be a model. ``streams``: the client wants events as they
    come; then :meth:`opening`, :meth:`chunks` for each event and :meth:`closing` bring the bytes of the stream, and
    :meth:`failure` ends it in place of :meth:`closing`. Otherwise :meth:`whole` is the answer. ``holds``: the end of a stream
    brings the whole answer, which is held until then. ``output_field``: the field that says what an answer has to be.
    """

    model: str
    request: ChatRequest
    streams: bool
    holds: bool
    output_field: str

    def opening(self) -> bytes:
        """Return what the stream begins with, b"" for nothing."""

    def chunks(self, event: ChatEvent) -> bytes:
        """Return the server-sent events that an event of the answer becomes, b"" for none."""

    def closing(self) -> bytes:
        """Return the end of a stream that is whole."""

    def failure(self, error: InferdError) -> bytes:
        """Return the end of a stream that broke off."""

    def whole(self) -> WholeAnswer:
        """Return the whole answer, of which nothing is known yet."""


@dataclass(frozen=True)
class ClientHeaders:
    """What headers say about a request: ``request_id`` as it is answered, and the conversation's id ("" for none)."""

    request_id: str = ""
    session: str = ""


Dialect: TypeAlias = Callable[[bytes, ClientHeaders], Exchange]
"""Reads the body of a request of one route. Raises InvalidRequest, with the field in ``detail["param"]``, and nothing else."""


@dataclass(frozen=True)
class ErrorReply:
    """An error in a dialect's shape."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def unknown_model(model: str) -> NotFound:
    """Return the error of a name that stands for nothing that can answer this route."""
    text = f"the model {shown(model)} does not exist: no model, adapter or program of this name answers here"
    return NotFound(text, param="model", model=cut(model, MAX_NAME))
