"""Servers of tools that scripts on any replica offer to programs on any: the front has the offers, and relays calls of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferd.protocol.mcp import ListMcpServers
from inferd_runtime.server.services.caller import Caller
from inferd_runtime.server.services.mcp import REPLIES
from inferd_runtime.server.services.mcp_offers import McpOffers, OfferedServer
from inferd_runtime.server.services.table import Handler


class ClusterOffers:
    """The family ``mcp`` of the front. What manifests and operators allow, the callers' replicas have looked at."""

    def __init__(self) -> None:
        self._offers = McpOffers()

    def operations(self) -> Mapping[str, Handler]:
        """Return the handlers by their operations' wire names."""
        return {**self._offers.operations(), "mcp.servers": self.servers, **{kind.op: self.call for kind in REPLIES}}

    def closed(self, caller: Caller) -> None:
        """Drop the offers of a caller that is gone."""
        self._offers.closed(caller)

    async def servers(self, caller: Caller, request: ListMcpServers) -> list[OfferedServer]:
        """Return what is offered to a caller."""
        return await self._offers.offered(caller)

    async def call(self, caller: Caller, request: Any) -> Any:
        """Relay a call to the client that offers the server, and return its reply."""
        return await self._offers.call(caller, request, REPLIES[type(request)])
