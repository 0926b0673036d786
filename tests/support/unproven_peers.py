"""Replicas of tests that have no key."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

from inferd_runtime.cluster.front.peers import ProvenPeers


class UnprovenPeers(ProvenPeers):
    """Takes whatever listens for a replica."""

    def __init__(self) -> None:
        super().__init__("")

    async def socket_to(self, url: str, seconds: float) -> socket.socket:
        parts, connected = urlsplit(url), socket.socket()
        connected.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connected, (parts.hostname, parts.port))
        return connected
