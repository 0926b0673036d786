"""Sends the requests of a batch, a given number at a time; waits as long as a `Retry-After` of the server says."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
import httpx
import msgspec

from inferd.client.http_link import AS_IT_IS, whole_body
from inferd.protocol import InferdError, Unauthorized, Unavailable
from inferd_runtime.cli.batch_files import BatchRequest, BatchResponse
from inferd_runtime.cli.client import Server

BUSY = frozenset({429, 503})
UNAUTHORIZED = 401
WAIT_SECONDS = 1.0
"""Where a busy server does not say how long to wait."""
LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS = 0.05, 60.0
PATIENCE_SECONDS = 3600.0
"""A server that is busy for longer has its last answer written down."""
ANSWER_SECONDS = 3600.0
CONNECT_SECONDS = 30.0
ATTEMPTS = 3
"""Of a request whose connection is lost: a server may close one that was idle just then."""
JSON = {"Content-Type": "application/json"}
Answered = Callable[[BatchRequest, BatchResponse], None]


class BatchClient:
    """Asks a server, over connections that it keeps open."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self._url = url

    async def answer(self, request: BatchRequest) -> BatchResponse:
        """Return the answer, whatever its status; a busy server is asked again.

        Raises Unavailable if there is none, and Unauthorized where the server does not take the token: that is not the request's
        fault, and an answer that is written down is not asked again.
        """
        waited = 0.0
        while True:
            status, headers, body = await self._post(request)
            if status == UNAUTHORIZED:
                raise Unauthorized(
                    f"{self._url} does not take the token; what is answered is kept: start again to go on"
                )
            if status not in BUSY or waited >= PATIENCE_SECONDS:
                return BatchResponse(status, headers.get("x-request-id", ""), _body(body))
            seconds = wait_seconds(headers.get("retry-after", ""))
            waited += seconds
            await anyio.sleep(seconds)

    async def _post(self, request: BatchRequest) -> tuple[int, httpx.Headers, bytes]:
        """Return an answer: its status, headers and body."""
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._client.stream(
                    "POST", request.url, content=bytes(request.body), headers=JSON
                ) as response:
                    return response.status_code, response.headers, await whole_body(response)
            except httpx.HTTPError as error:
                if attempt == ATTEMPTS or isinstance(error, httpx.ConnectError):
                    what = str(error) or type(error).__name__
                    message = (
                        f"the connection to {self._url} failed: {what}; what is answered is kept: start again to go on"
                    )
                    raise Unavailable(message) from None


def wait_seconds(retry_after: str) -> float:
    """Return how long to wait by a ``Retry-After`` in seconds."""
    try:
        seconds = float(retry_after)
    except ValueError:
        return WAIT_SECONDS
    return min(max(seconds, LEAST_WAIT_SECONDS), MOST_WAIT_SECONDS) if seconds >= 0 else WAIT_SECONDS


def _body(body: bytes) -> object:
    """Return the body's JSON on one line, or its text where a proxy has answered with something else."""
    try:
        msgspec.json.decode(body)
        return msgspec.Raw(msgspec.json.format(body, indent=-1))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode(errors="replace")


@asynccontextmanager
async def batch_client(server: Server, at_once: int) -> AsyncIterator[BatchClient]:
    """Open a client with at most this many connections."""
    headers = AS_IT_IS | ({} if server.token is None else {"Authorization": f"Bearer {server.token}"})
    verify = True if server.ca is None else ssl.create_default_context(cafile=server.ca)
    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    url = server.url.replace("ws", "http", 1) if server.url.startswith("ws") else server.url
    async with httpx.AsyncClient(
        base_url=url, headers=headers, verify=verify, limits=limits, timeout=timeout, trust_env=False
    ) as client:
        yield BatchClient(client, url)


async def send_all(client: BatchClient, requests: Iterator[BatchRequest], at_once: int, answered: Answered) -> None:
    """Send all requests, ``at_once`` at a time, and call ``answered`` with each answer. Raises the client's first error."""
    errors: list[InferdError] = []

    async def work() -> None:
        for request in requests:  # shared by all workers: each takes the next
            try:
                answered(request, await client.answer(request))
            except InferdError as error:  # what leaves a task group comes out wrapped
                errors.append(error)
                tasks.cancel_scope.cancel()
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)
    if errors:
        raise errors[0]
