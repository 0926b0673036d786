"""A request of ``/v1/responses`` and its answer, whole or as named events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from inferd.chat import ChatEvent, ChatRequest, ChoiceFinished, UsageReport
from inferd.protocol import InferdError, NotFound
from inferd_runtime.server.dialects.custom_calls import CustomCalls
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.reading import invalid
from inferd_runtime.server.dialects.responses.conversation import messages_of
from inferd_runtime.server.dialects.responses.fields import ResponsesBody
from inferd_runtime.server.dialects.responses.items import Item, ItemReference, read_input
from inferd_runtime.server.dialects.responses.namespaces import names_of
from inferd_runtime.server.dialects.responses.output_stream import NumberedEvents, OutputStream, WriteEvent
from inferd_runtime.server.dialects.responses.request import (
    output_field,
    read_input_tokens_body,
    read_responses_body,
    responses_request,
)
from inferd_runtime.server.dialects.responses.response_object import ResponseObject
from inferd_runtime.server.dialects.responses.stored import KeptEvents, StoredResponse, cannot_follow, unknown_previous
from inferd_runtime.server.dialects.server_sent import named_event

Status = Literal["completed", "incomplete"]
MAX_REFERENCES = 64
"""Items of one input that may be named instead of sent."""
MAX_ITEMS = 4096
"""Items of a conversation: the gateway reads, packs and keeps so many in some tens of milliseconds."""


class ResponsesExchange:
    """A request and its answer. ``previous`` names the response that it follows ("" for none), ``references`` the items of
    kept responses that its input names: where there are any, :meth:`follow` has to be called before ``request`` is used.
    ``background``: it is answered while nobody waits; then how it ends is kept, whatever that is, with its events if it streams.
    ``ended``: how it ended, once that is known.
    """

    def __init__(
        self,
        read: ResponsesBody,
        size: int,
        headers: ClientHeaders,
        write: WriteEvent = named_event,
        *,
        generates: bool = True,
    ) -> None:
        """``size``: of the request, in bytes. ``write``: how events of a stream are written. Not ``generates``: nothing is
        answered, and the prompt is computed, so that the next request finds it.
        """
        self.size = size
        self.generates = generates
        self.ended: StoredResponse | None = None
        self.model = read.model
        self.previous = read.previous_response_id or ""
        self.background = bool(read.background)
        self._input = read_input(read.input or [])
        self.references = [item.id for item in self._input if isinstance(item, ItemReference)]
        self.when_complete: Callable[[StoredResponse], None] = _keep_nothing
        """Called with what is to be kept, before the end of the answer is returned: the client may follow it at once."""
        if len(self.references) > MAX_REFERENCES:
            raise invalid("input", f"input: {MAX_REFERENCES} item references are allowed")
        if len(set(self.references)) < len(self.references):
            raise invalid("input", "input: two references name one item")
        self._items: list[Item] = []
        self._asked: list[Item] = []
        """What this request brings of them."""
        bare = responses_request(read, headers)
        self._bare = bare if generates else replace(bare, max_tokens=0)
        self.request: ChatRequest = self._bare
        self.streams = self._bare.stream
        self.holds = True
        self.output_field = output_field(read)
        self._response = ResponseObject(read)
        self.kept = KeptEvents() if self.background and self.streams else None
        """The events so far of an answer in the background that streams."""
        self._events = NumberedEvents(write if self.streams else None, self.kept)
        self._output = OutputStream(self._events, names_of(read.tools or []), CustomCalls(self._bare.tools))
        self._end: ChoiceFinished | None = None
        self._usage = UsageReport(0, 0)
        if not self.previous and not self.references:
            self.follow(None, {})

    def follow(self, previous: StoredResponse | None, referenced: Mapping[str, Item]) -> None:
        """Complete the request with what is kept: the response that it follows, and items by their ids.

        Raises InvalidRequest and NotFound that name the field.
        """
        if self.previous and previous is None:
            raise unknown_previous(self.previous)
        if previous is not None and (previous.is_failed or previous.is_in_progress):
            raise cannot_follow(self.previous)
        earlier = [] if previous is None else previous.conversation
        check_items(len(earlier), len(self._input))
        self._asked = [_resolved(item, referenced, number) for number, item in enumerate(self._input)]
        messages = messages_of(earlier, self._asked)
        self._items = [*earlier, *self._asked]
        self.request = replace(self._bare, messages=[*self._bare.messages, *messages])

    @property
    def id(self) -> str:
        """Return the response's id."""
        return self._response.id

    @property
    def computes(self) -> bool:
        """Return True if there is anything that the model has to read: a request that is not to be answered may say nothing."""
        return self.generates or any(message.role != "system" for message in self.request.messages)

    @property
    def is_stored(self) -> bool:
        """Return True if the client wants the response to be stored."""
        return self._response.stores

    @property
    def begun(self) -> StoredResponse:
        """Return the response as long as it is in progress."""
        return StoredResponse(self._response.state("in_progress"), self._items)

    def opening(self) -> bytes:
        """Return the first events, which bring the response as it is now."""
        now = self._response.state("in_progress")
        created = self._events.event("response.created", response=now)
        return created + self._events.event("response.in_progress", response=now)

    def chunks(self, event: ChatEvent) -> bytes:
        """Return the events that an event of the answer becomes."""
        match event:
            case UsageReport():
                self._usage = event
                return b""
            case ChoiceFinished():
                self._end = event
                return self._finish()
            case _:
                return self._output.add(event)

    def closing(self) -> bytes:
        """Return the end, with the whole response."""
        last = self._finish()
        response = self._whole()
        last += self._events.event(f"response.{self._status}", response=response)
        self._keep(response, self._items)
        return last

    def failure(self, error: InferdError) -> bytes:
        """Return the end of a stream that broke off. A response that failed is kept if it was answered in the background, but
        not what it followed: nothing follows it.
        """
        last = self._output.close("incomplete")
        failed = self._response.state("failed", self._output.items, self._usage, error)
        last += self._events.event("response.failed", response=failed)
        if self.background:
            self._keep(failed, self._asked)
        return last

    def cancel(self) -> None:
        """End an answer in the background that is not wanted any more, unless it is over. What it has so far is kept."""
        self._output.close("incomplete")
        self._keep_cancelled()

    def cancelled(self) -> bytes:
        """Return the end of a stream whose client has cancelled it. What the answer has so far is kept."""
        last = self._output.close("incomplete")
        return last + self._events.event("response.incomplete", response=self._keep_cancelled())

    def _keep_cancelled(self) -> dict[str, Any]:
        cancelled = self._response.state("cancelled", self._output.items, self._usage)
        self._keep(cancelled, self._items)
        return cancelled

    def whole(self) -> WholeResponse:
        """Return the whole response, of which nothing is known yet."""
        return WholeResponse(self)

    def complete(self) -> dict[str, Any]:
        """Return the response as it is once all events were taken."""
        self._finish()
        response = self._whole()
        self._keep(response, self._items)
        return response

    def _finish(self) -> bytes:
        """Return the output's last events. An answer without any text is an empty message, unless there is to be none."""
        return self._output.finish(self._status) if self.generates else b""

    def _whole(self) -> dict[str, Any]:
        return self._response.state(self._status, self._output.items, self._usage)

    def _keep(self, response: dict[str, Any], items: list[Item]) -> None:
        """Keep how the answer ended, if it is to be kept: what comes later does not change that."""
        if self.ended is not None:
            return
        self.ended = StoredResponse(response, items, None if self.kept is None else self.kept.finish())
        if self._response.stores:
            self.when_complete(self.ended)

    @property
    def _status(self) -> Status:
        is_cut = self.generates and self._end is not None and self._end.reason == "length"
        return "incomplete" if is_cut else "completed"


@dataclass(frozen=True)
class WholeResponse:
    """A response that is not streamed: it is made as a streamed one is."""

    exchange: ResponsesExchange

    def add(self, event: ChatEvent) -> None:
        """Take the next event."""
        self.exchange.chunks(event)

    def body(self) -> bytes:
        """Return the JSON of the response."""
        return msgspec.json.encode(self.exchange.complete())


def read_responses(body: bytes, headers: ClientHeaders) -> ResponsesExchange:
    """The :data:`Dialect` of ``POST /v1/responses``."""
    return ResponsesExchange(read_responses_body(body), len(body), headers)


def read_input_tokens(default_model: str, body: bytes, headers: ClientHeaders) -> ResponsesExchange:
    """The :data:`Dialect` of ``POST /v1/responses/input_tokens``, of which only the prompt matters. ``default_model``: of
    requests that name none.
    """
    return ResponsesExchange(read_input_tokens_body(body, default_model), len(body), headers)


def counted_json(tokens: int) -> dict[str, Any]:
    """Return what is answered when a prompt's tokens were counted."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _keep_nothing(stored: StoredResponse) -> None:
    """What is done with a response that nobody wants to keep."""


def check_items(earlier: int, items: int) -> None:
    """Raises InvalidRequest for a conversation of too many items."""
    if earlier + items > MAX_ITEMS:
        at = "input" if items > MAX_ITEMS else "previous_response_id"
        raise invalid(at, f"{at}: the conversation has {earlier + items} items; {MAX_ITEMS} are allowed")


def _resolved(item: Item | ItemReference, referenced: Mapping[str, Item], number: int) -> Item:
    if not isinstance(item, ItemReference):
        return item
    if item.id not in referenced:
        raise NotFound(f"Item with id {item.id!r} not found.", param=f"input[{number}].id")
    return referenced[item.id]
