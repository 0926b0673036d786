"""Clients that cost little: an HTTP connection that reads server-sent events, and a script over the WebSocket."""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import inferd
from inferd import Context, Sampler

CONTENT, NO_CONTENT = b'"content":"', b'"content":""'
DATA = b"data: "
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Question:
    """What a client asks. ``salt`` keeps what one arm computed from the others."""

    text: str
    tokens: int
    salt: str


@dataclass(frozen=True)
class Answer:
    """What came back: the seconds to the first text, and the whole text."""

    first_s: float
    text: str


class ChatClient(Protocol):
    """Asks one question after the other."""

    async def ask(self, question: Question) -> Answer:
        """Return the answer once it is complete."""


@dataclass(frozen=True)
class Target:
    """A server of OpenAI's chat route. ``plain``: it takes OpenAI's own fields only, and its model never ends by itself."""

    url: str
    model: str
    token: str = ""
    plain: bool = False

    def body(self, question: Question) -> dict[str, Any]:
        """Return a streaming request: greedy, and as long as it may be."""
        body: dict[str, Any] = {
            "model": self.model, "messages": [{"role": "user", "content": question.text}], "stream": True,
            "max_tokens": question.tokens, "temperature": 0,
        }  # fmt: skip
        own = {"ignore_eos": True, "speculation": False, "cache_salt": question.salt}
        return body if self.plain else body | own


class HttpClient:
    """One connection, kept open. Chunks are kept as they came, and parsed behind the answer's end."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, question: Question) -> Answer:
        """See :class:`ChatClient`. Raises RuntimeError for an answer that is no stream."""
        start, first = time.perf_counter(), 0.0
        pieces: list[bytes] = []
        async for piece in self.chunks(question):
            if not first and piece.count(CONTENT) > piece.count(NO_CONTENT):
                first = time.perf_counter() - start
            pieces.append(piece)
        return Answer(first, text_of(b"".join(pieces)))

    async def chunks(self, question: Question) -> AsyncIterator[bytes]:
        """Ask, and yield the body's chunks as they come."""
        reader, writer = await self._connected()
        writer.write(self._request(question))
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError((head + await reader.read(READ_BYTES)).decode())
        while size := int(await reader.readuntil(b"\r\n"), 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)

    def leave(self) -> None:
        """Drop the connection, whatever is on its way."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the connection; a new one if there is none yet, or the server has closed it, idle for too long."""
        if self._streams is None or self._streams[0].at_eof() or self._streams[0].exception() is not None:
            parts = urlsplit(self._target.url)
            self._streams = await asyncio.open_connection(parts.hostname, parts.port, limit=READ_BYTES)
        return self._streams

    def _request(self, question: Question) -> bytes:
        body = json.dumps(self._target.body(question)).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self._target.token}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class ScriptClient:
    """A script with a connection of its own: a context for each question."""

    def __init__(self, connected: contextvars.Context) -> None:
        self._connected = connected

    async def ask(self, question: Question) -> Answer:
        """See :class:`ChatClient`."""
        return await asyncio.create_task(self._ask(question), context=self._connected)

    @staticmethod
    async def _ask(question: Question) -> Answer:
        start, first = time.perf_counter(), 0.0
        pieces: list[str] = []
        async with Context(cache_salt=question.salt) as context:
            context.user(question.text)
            async for step in context.generate(Sampler.argmax(), max_tokens=question.tokens, ignore_eos=True):
                first = first or (time.perf_counter() - start if step.text else 0.0)
                pieces.append(step.text)
        return Answer(first, "".join(pieces))


@asynccontextmanager
async def script_clients(target: Target, count: int) -> AsyncIterator[Sequence[ScriptClient]]:
    """Connect so many scripts for the block."""
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            await stack.enter_async_context(inferd.connect(target.url.replace("http", "ws", 1), target.token))
            clients.append(ScriptClient(contextvars.copy_context()))
        yield clients


def text_of(stream: bytes) -> str:
    """Return the text of a chat's events. Raises RuntimeError for one that broke off."""
    lines = [line.removeprefix(DATA) for line in stream.splitlines() if line.startswith(DATA)]
    chunks = [json.loads(line) for line in lines if line != b"[DONE]"]
    failed = [chunk for chunk in chunks if "error" in chunk]
    if failed or not any(
        choice["finish_reason"] == "length" for choice in _choices(chunks) if "finish_reason" in choice
    ):
        raise RuntimeError(f"an answer did not come to its length: {(failed or chunks)[-1:]}")
    return "".join(choice["delta"].get("content") or "" for choice in _choices(chunks))


def _choices(chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [choice for chunk in chunks for choice in chunk["choices"]]
