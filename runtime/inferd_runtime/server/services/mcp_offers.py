"""Servers of tools that clients bring along: a script offers one, and calls of its tenant's programs are relayed to it.

The gateway checks only the form of what comes back: the client belongs to the same tenant as the caller.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from inferd.protocol import (
    Done,
    InferdError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    Unavailable,
    cut,
    shown,
    to_plain,
)
from inferd.protocol.mcp import (
    AnswerMcpCall,
    CallMcpTool,
    NextMcpCall,
    OfferMcp,
    RelayedMcpCall,
    WithdrawMcp,
    check_server_name,
)
from inferd_runtime.change_signal import ChangeSignal
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.table import Handed, Handler
from inferd_runtime.server.services.wires import JsonText

MAX_OFFERS = 32
"""Of one tenant."""
MAX_CALLS = 16
"""Of one offer that are open."""
MAX_RUN_NAME = 128
MAX_PROBLEM = 500
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class OpenMcpCall:
    """A call that a caller waits for."""

    call: RelayedMcpCall
    answer: asyncio.Future[AnswerMcpCall]


@dataclass(eq=False)
class Offer:
    """A client's server: calls that it has not fetched, and those that it has not answered.

    ``run``: whom it is for, a run, or those that were launched with this key and their children; "": all.
    """

    caller: Caller
    server: str
    run: str
    unfetched: deque[RelayedMcpCall] = field(default_factory=deque)
    open: dict[int, OpenMcpCall] = field(default_factory=dict)
    changed: ChangeSignal = field(default_factory=ChangeSignal)
    gone: bool = False

    def again(self, number: int) -> None:
        """Have a call fetched once more, unless its caller has stopped waiting: then nothing of it is held here."""
        if number in self.open:
            self.unfetched.appendleft(self.open[number].call)
            self.changed.wake()

    def lost(self) -> Unavailable:
        """Return the error of a call whose client has left."""
        return Unavailable(f"the client that offered the server of tools {self.server} has gone")


@dataclass(frozen=True)
class OfferedServer:
    """A server that is offered to a caller; ``own``: to this one by name."""

    server: str
    own: bool


class Offers(Protocol):
    """What is offered to callers. ``operations`` are those of the clients that offer."""

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by their operations' wire names."""

    def closed(self, caller: Caller) -> None:
        """Drop the offers of a caller that is gone."""

    async def offered(self, caller: Caller) -> list[OfferedServer]:
        """Return the servers that are offered to a caller, ordered by name."""

    async def call(self, caller: Caller, request: Any, kind: type[T]) -> T:
        """Relay a call to the client that offers ``request.server``, and return its reply.

        Raises NotFound if it is not offered, Unavailable if the client leaves, or answers what is no reply.
        """


class McpOffers:
    """All offers. Belongs to one event loop."""

    def __init__(self) -> None:
        self._offers: dict[tuple[str, str, str], Offer] = {}
        """By tenant, server, and whom it is for."""
        self._numbers = itertools.count(1)

    def operations(self) -> Mapping[str, Handler]:
        """See :class:`Offers`."""
        return {
            "mcp.offer": self.offer,
            "mcp.withdraw": self.withdraw,
            "mcp.next_call": self.next_call,
            "mcp.answer": self.answer,
        }

    async def offered(self, caller: Caller) -> list[OfferedServer]:
        """See :class:`Offers`."""
        names = sorted({offer.server for offer in self._offers.values() if _is_for(offer, caller)})
        found = [offer for offer in (self._find(caller, name) for name in names) if offer is not None]
        return [OfferedServer(offer.server, offer.run != "") for offer in found]

    def _find(self, caller: Caller, server: str) -> Offer | None:
        """Return the offer of that name to a caller: one that is for it before one that is for all."""
        names = (run for run in (*_names(caller), "") if (caller.tenant, server, run) in self._offers)
        run = next(names, None)
        return None if run is None else self._offers[caller.tenant, server, run]

    async def offer(self, caller: Caller, asked: OfferMcp) -> Done:
        """Take an offer. Raises InvalidRequest for a name that is taken, LimitExceeded for too many."""
        check_server_name(asked.server)
        if len(asked.run) > MAX_RUN_NAME:
            raise InvalidRequest(f"{shown(asked.run)} is no run's id")
        own = (offer for offer in self._offers.values() if offer.caller is caller)
        if (caller.tenant, asked.server, asked.run) in self._offers or any(one.server == asked.server for one in own):
            raise InvalidRequest(f"a server of tools named {shown(asked.server)} is offered already")
        if sum(tenant == caller.tenant for tenant, *_ in self._offers) >= MAX_OFFERS:
            raise LimitExceeded(
                f"the tenant's clients offer {MAX_OFFERS} servers already", limit="mcp_offers", value=MAX_OFFERS
            )
        self._offers[caller.tenant, asked.server, asked.run] = Offer(caller, asked.server, asked.run)
        return Done()

    async def withdraw(self, caller: Caller, asked: WithdrawMcp) -> Done:
        """Drop an offer."""
        self._end(self._own(caller, asked.server))
        return Done()

    async def next_call(self, caller: Caller, asked: NextMcpCall) -> Handed:
        """Wait for the next call of an offer. One that does not reach the client is the next one again, while anybody waits."""
        offer = self._own(caller, asked.server)
        while not offer.unfetched and not offer.gone:
            await offer.changed.wait()
        if offer.gone:
            raise NotFound(f"{asked.server} is not offered any more")
        call = offer.unfetched.popleft()
        return Handed(call, partial(offer.again, call.number))

    async def answer(self, caller: Caller, asked: AnswerMcpCall) -> Done:
        """Take a client's answer. One to a call whose caller has stopped waiting is dropped."""
        one = self._own(caller, asked.server).open.get(asked.number)
        if one is not None and not one.answer.done():
            one.answer.set_result(asked)
        return Done()

    def closed(self, caller: Caller) -> None:
        """Drop the offers of a caller that is gone."""
        for offer in [one for one in self._offers.values() if one.caller is caller]:
            self._end(offer)

    async def call(self, caller: Caller, request: Any, kind: type[T]) -> T:
        """See :class:`Offers`."""
        offer = self._find(caller, request.server)
        if offer is None:
            raise NotFound(f"no client offers a server of tools named {shown(request.server)}")
        if len(offer.open) >= MAX_CALLS:
            text = f"{MAX_CALLS} calls of this server are open already"
            raise LimitExceeded(text, limit="mcp_open_calls", value=MAX_CALLS, raise_with="fewer at a time")
        plain = {key: value for key, value in to_plain(request).items() if key != "server"}
        if isinstance(request, CallMcpTool):
            plain["arguments"] = JsonText(msgspec.json.encode(request.arguments))
            request.arguments.clear()  # as JSON they are many times smaller, and they may wait
        call = RelayedMcpCall(next(self._numbers), request.op, plain)
        future = asyncio.get_running_loop().create_future()
        offer.open[call.number] = OpenMcpCall(call, future)
        offer.unfetched.append(call)
        offer.changed.wake()
        try:
            return _reply(offer, await future, kind)
        finally:
            del offer.open[call.number]
            if call in offer.unfetched:
                offer.unfetched.remove(call)

    def _own(self, caller: Caller, server: str) -> Offer:
        found = (offer for offer in self._offers.values() if offer.caller is caller and offer.server == server)
        offer = next(found, None)
        if offer is None:
            raise NotFound(f"this client offers no server of tools named {shown(server)}")
        return offer

    def _end(self, offer: Offer) -> None:
        del self._offers[offer.caller.tenant, offer.server, offer.run]
        offer.gone = True
        offer.changed.wake()
        for one in offer.open.values():
            if not one.answer.done():
                one.answer.set_exception(offer.lost())


def _is_for(offer: Offer, caller: Caller) -> bool:
    return offer.caller.tenant == caller.tenant and offer.run in ("", *_names(caller))


def _names(caller: Caller) -> list[str]:
    """Return what an offer may call a caller: by its id, and by the key of its launch."""
    return [caller.id, *([caller.offer_key] if caller.offer_key else [])]


def _reply(offer: Offer, answer: AnswerMcpCall, kind: type[T]) -> T:
    if answer.problem:
        error: InferdError = InvalidRequest(f"{offer.server} answered an error: {cut(answer.problem, MAX_PROBLEM)}")
        raise error
    try:
        return msgspec.convert(answer.reply, kind)
    except msgspec.ValidationError as wrong:
        raise Unavailable(f"{offer.server} answered what is no result of its kind: {wrong}") from None
