"""Servers of tools that clients offer, as a replica knows them: the front has them, for programs and scripts of all replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from inferd.protocol.mcp import ListMcpServers
from inferd_runtime.cluster.replica.relayed_messages import RelayedMessages
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.mcp_offers import OfferedServer
from inferd_runtime.server.services.table import Handler

T = TypeVar("T")
OFFERING = ("mcp.offer", "mcp.withdraw", "mcp.next_call", "mcp.answer")


@dataclass(frozen=True)
class RelayedOffers:
    """See :class:`~inferd_runtime.server.services.mcp_offers.Offers`."""

    front: RelayedMessages

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by their operations' wire names."""
        return {op: partial(self._offering, op) for op in OFFERING}

    def closed(self, caller: Caller) -> None:
        """Do nothing: the front hears that a caller is gone."""

    async def offered(self, caller: Caller) -> list[OfferedServer]:
        """Return the servers that are offered to a caller."""
        found = await self.front.ask("mcp.servers", caller, ListMcpServers())
        return msgspec.json.decode(found.text, type=list[OfferedServer])

    async def call(self, caller: Caller, request: Any, kind: type[T]) -> T:
        """Have the front relay a call, and return the reply."""
        found = await self.front.ask(request.op, caller, request)
        return msgspec.json.decode(found.text, type=kind)

    async def _offering(self, op: str, caller: Caller, request: Any) -> Any:
        return await self.front.ask(op, caller, request, loses=True)
