"""One answer over HTTP: streamed while it is written, or whole. A client that leaves ends it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from inferd.chat import UsageReport
from inferd.protocol import ConstraintError, InferdError
from inferd_runtime.server.chat.answer_pace import AnswerPace, in_turns
from inferd_runtime.server.chat.answer_source import AnswerSource
from inferd_runtime.server.dialects.exchange import Exchange
from inferd_runtime.server.gateway.event_stream import SSE, STREAM_HEADERS
from inferd_runtime.server.gateway.leaving import until_left
from inferd_runtime.server.gateway.replies import JSON_TYPE

RUN_HEADER = b"x-inferd-run"


class ChatResponse(Response):
    """Sends what ``exchange`` makes of a tenant's answer, each part when its turn has come. Raises the error of one that fails
    before anything was sent.
    """

    def __init__(
        self, exchange: Exchange, answer: AbstractAsyncContextManager[AnswerSource], pace: AnswerPace, tenant: str
    ) -> None:
        self._exchange = exchange
        self._turn = partial(pace.turn, tenant)
        self._beside = partial(pace.beside, tenant)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until it is complete or the client has left."""
        await until_left(receive, partial(self.send_to, send))

    async def send_to(self, send: Send) -> None:
        """Answer. The end is sent when the answer is closed: what it held is free for the client's next request."""
        try:
            async with self._answer as source:
                ending = await (self._stream(source, send) if self._exchange.streams else self._whole(source))
            for message in ending:
                await send(message)
        except ConstraintError as error:  # it names the client's field
            field = self._exchange.output_field if self._exchange.request.output is not None else "tools"
            error.detail.setdefault("param", field)
            raise

    async def _whole(self, source: AnswerSource) -> list[Message]:
        """Return the messages of a whole answer."""
        answer = self._exchange.whole()
        while events := await source.next():
            async for part in in_turns(events, self._turn):
                for event in part:
                    answer.add(event)
        body = answer.body()
        start = _start({"content-type": JSON_TYPE, "content-length": str(len(body))}, source)
        return [start, {"type": "http.response.body", "body": body}]

    async def _stream(self, source: AnswerSource, send: Send) -> list[Message]:
        """Send all but the last message, which is returned. The head comes with the first events: what fails before them gets an
        error's status.
        """
        events = await source.next()
        await send(_start({"content-type": f"{SSE}; charset=utf-8", **STREAM_HEADERS}, source))
        if events and isinstance(events[0], UsageReport):  # what the prompt has is told by a message's beginning
            self._exchange.chunks(events[0])
        data = self._exchange.opening()
        try:
            while events:
                async for part in in_turns(events, self._turn):
                    data += b"".join(map(self._exchange.chunks, part))
                    if data:
                        await send({"type": "http.response.body", "body": data, "more_body": True})
                    data = b""
                events = await source.next()
            data += await self._closing()
        except InferdError as error:
            data += self._exchange.failure(error)
        return [{"type": "http.response.body", "body": data}]

    async def _closing(self) -> bytes:
        """Return the end of a stream, which repeats the answer where the exchange holds that."""
        if not (self._exchange.holds and self._exchange.request.logprobs is not None):
            return self._exchange.closing()
        return await self._beside(self._exchange.closing)


def _start(headers: Mapping[str, str], source: AnswerSource) -> Message:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    if source.run:
        raw.append((RUN_HEADER, source.run.encode()))
    return {"type": "http.response.start", "status": 200, "headers": raw}
