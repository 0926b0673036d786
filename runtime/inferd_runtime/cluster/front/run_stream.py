"""A run's events for a client, from whichever replica has the run. If that one ends, the stream goes on where it was."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import quote

import anyio
import httpcore
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inferd.protocol import InferdError, NotFound
from inferd_runtime.cluster.front.hop_client import OK, HopClient, HopRequest, ReplicaGone, answer_of, hop_request
from inferd_runtime.cluster.front.members import Member, Members
from inferd_runtime.cluster.front.proxied import pass_back
from inferd_runtime.server.gateway.event_stream import NDJSON, SSE, STREAM_HEADERS, first_index, follow_of
from inferd_runtime.server.gateway.leaving import until_left

EVENT = re.compile(rb'(?:id: (?P<sse>\d+)\nevent: (?P<kind>\w+)\n|\{"index":(?P<index>\d+),"type":"(?P<type>\w+)")')
"""How an event's text begins."""
MOST_HELD = 1 << 20
"""Bytes of an event that is not complete: a longer one is passed on in parts, and cannot be taken up again."""
AGAIN_SECONDS = 0.1
ASK_SECONDS = 30.0


class EventSplitter:
    """Cuts a stream of events behind whole ones, and knows the index of the last. Pure.

    ``next``: index behind the last event that was passed on; ``finished``: that was the run's last one.
    """

    def __init__(self, start: int, as_sse: bool) -> None:
        self.next = start
        self.finished = False
        self._end = b"\n\n" if as_sse else b"\n"
        self._rest = b""

    def split(self, data: bytes) -> bytes:
        """Return what may be passed on now that ``data`` has come."""
        self._rest += data
        at = self._rest.rfind(self._end) + len(self._end) if self._end in self._rest else 0
        whole, self._rest = self._rest[:at], self._rest[at:]
        self._note(whole)
        if len(self._rest) > MOST_HELD:
            whole, self._rest = whole + self._rest, b""
        return whole

    def drop(self) -> None:
        """Forget the beginning of an event whose end does not come."""
        self._rest = b""

    def _note(self, whole: bytes) -> None:
        """Note the last event, which is looked for from the end: of a long text the rest is not looked at."""
        end = len(whole) - len(self._end)
        while end > 0:
            before = whole.rfind(self._end, 0, end)
            found = EVENT.match(whole, before + len(self._end) if before >= 0 else 0)
            if found is not None:
                self.next = int(found["sse"] or found["index"]) + 1
                self.finished = (found["kind"] or found["type"]) == b"finished"
                return
            end = before


class RunStream(Response):
    """Answers ``GET /v1/runs/{run}/events``, whose ``request`` gets the index to begin with each time it is passed on."""

    def __init__(self, hop: HopClient, members: Members, run: str, request: Request, key: str) -> None:
        self._hop = hop
        self._members = members
        self._run = run
        self._path = f"/v1/runs/{quote(run, safe='')}"
        self._as_sse = SSE in request.headers.get("accept", "")
        self._follow = follow_of(request)
        self._events = EventSplitter(first_index(request), self._as_sse)
        self._request = hop_request(request, key)
        self._begun = False
        self._over = False
        """Whether the run was over before the last question, which was answered to the end."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, until the run is over or the client has left. Raises what the first replica answers instead."""
        try:
            await until_left(receive, lambda: self._answer(scope, send))
        except InferdError:
            if not self._begun:
                raise

    async def _answer(self, scope: Scope, send: Send) -> None:
        while await self._pass_on(scope, send):
            if not await self._more():
                await send({"type": "http.response.body", "body": b""})
                return

    async def _pass_on(self, scope: Scope, send: Send) -> bool:
        """Pass events on until the replica sends no more. False if it answered something else, which was passed on."""
        member = await self._member()
        try:
            with self._members.watched(member):
                async with self._hop.stream(member.url, self._asking()) as answer:
                    if answer.status != OK and not self._begun:
                        await pass_back(answer, scope, send)
                        return False
                    await self._begin(answer, send)
                    async for data in answer.aiter_stream():
                        whole = self._events.split(data)
                        if whole:
                            await send({"type": "http.response.body", "body": whole, "more_body": True})
        except ReplicaGone:
            self._over = False
            self._events.drop()
        return True

    async def _begin(self, answer: httpcore.Response, send: Send) -> None:
        if not self._begun:
            self._begun = True
            kind = SSE if self._as_sse else NDJSON
            told = {"content-type": f"{kind}; charset=utf-8", **STREAM_HEADERS}
            headers = [(name.encode(), value.encode()) for name, value in told.items()]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})

    async def _more(self) -> bool:
        """Return whether to ask again: the run's last event has not come, and was not asked for since the run was over."""
        if self._events.finished or not self._follow or self._over:
            return False
        try:
            self._over = (await self._record()).finished_at is not None
        except NotFound:
            return False
        await anyio.sleep(AGAIN_SECONDS)
        return True

    async def _record(self) -> RunSummary:
        """Return the run's state, from the replica that has it. Raises NotFound."""
        while True:
            member = await self._member()
            request = replace(self._request, target=self._path.encode())
            try:
                with self._members.watched(member):
                    return answer_of(await self._hop.ask(member.url, request, ASK_SECONDS), RunSummary)
            except ReplicaGone:
                await anyio.sleep(AGAIN_SECONDS)

    async def _member(self) -> Member:
        return await self._members.of_run(self._run) or self._members.any()

    def _asking(self) -> HopRequest:
        query = f"from={self._events.next}&follow={'true' if self._follow else 'false'}"
        return replace(self._request, target=f"{self._path}/events?{query}".encode())


class RunSummary(msgspec.Struct, frozen=True):
    """What of a run's JSON the stream of its events needs."""

    finished_at: float | None
