"""What Ray Serve keeps alive: one front, and replicas. Each is an actor that looks after a process, and no request passes it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import msgspec
from ray import serve
from ray.exceptions import RayError

from inferd.protocol import InferdError
from inferd_runtime.cluster.front.hop_client import HopClient, own_request
from inferd_runtime.cluster.front.serving import FrontStart
from inferd_runtime.cluster.messages import JOIN_PATH, JoinCluster, ReplicaReport
from inferd_runtime.cluster.process import Ready
from inferd_runtime.cluster.ray_serve.child import ClusterProcess
from inferd_runtime.cluster.ray_serve.loopback import bind_actor_to_loopback, own_address
from inferd_runtime.cluster.ray_serve.scaling import JOBS, KV_USE
from inferd_runtime.cluster.replica.serving import FRONT_SECONDS, ReplicaOrder, new_replica_name
from inferd_runtime.isolation.settings_json import decode_settings
from inferd_runtime.server.gateway.listening import listen
from inferd_runtime.settings.settings import Settings

FRONT, REPLICAS = "inferd-front", "inferd-replicas"
"""The two applications, each of one deployment of the same name: they are upgraded apart."""
ANNOUNCE_SECONDS = 1.0
ANSWER_SECONDS = 10.0
END_SECONDS = 15.0
"""What a replica may take to end beside its drain."""
SOON_SECONDS = 10.0
"""A front that ends so soon after it was ready is not started again here."""
log = logging.getLogger("ray.serve")


class ServeFront:
    """The front's actor. Replicas tell it that they are there; it tells the front.

    It holds the socket that clients connect to. When the front ends, it starts the next one there, which is sooner than Ray would
    start another actor; a front that ends soon after its start is left to Ray.
    """

    async def __init__(self, settings: bytes, key: str, private_host: str) -> None:  # type: ignore[misc]  # Serve awaits it
        bind_actor_to_loopback()
        own = decode_settings(settings, Settings)
        self._socket = listen(own.host, own.port)
        self._start = FrontStart(
            key=key, settings=own, private_host=private_host or own_address(), listener=self._socket.fileno()
        )
        self._key = key
        self._hop = HopClient(key)
        await self._start_front()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def address(self) -> str:
        """Return the address for clients."""
        return self._ready.url

    async def announce(self, name: str, url: str) -> dict[str, float]:
        """Tell the front of a replica. Returns what that has to do, as the front knows it."""
        joining = own_request(self._key, JOIN_PATH, JoinCluster(name, url))
        answer = await self._hop.ask(self._ready.private_url, joining, ANSWER_SECONDS)
        report = msgspec.json.decode(answer, type=ReplicaReport)
        return {JOBS: float(max(len(report.runs), report.jobs)), KV_USE: report.kv_use}

    def check_health(self) -> None:
        """Raise Unavailable if the front has ended, and none is started in its place."""
        if self._keeping.done():
            self._child.check()

    async def _start_front(self) -> None:
        self._child = ClusterProcess(self._start)
        self._ready = await self._child.ready()

    async def _keep(self) -> None:
        while await self._child.watch(self._ready.private_url) > SOON_SECONDS:
            await self._start_front()

    async def __del__(self) -> None:
        """End the front."""
        self._keeping.cancel()
        await self._child.end(END_SECONDS)


class ServeReplica:
    """A replica's actor."""

    async def __init__(self, settings: bytes, key: str, host: str) -> None:  # type: ignore[misc]  # Serve awaits it
        bind_actor_to_loopback()
        self._settings = decode_settings(settings, Settings)
        order = ReplicaOrder(name=new_replica_name(), key=key, settings=self._settings, host=host or own_address())
        self._child = ClusterProcess(order)
        self._ready = await self._child.ready()
        self._demand: dict[str, float] = {JOBS: 0.0, KV_USE: 0.0}
        await self._announce_once(order.name)
        loop = asyncio.get_running_loop()
        self._announcing = loop.create_task(self._announce(order.name))
        self._watching = loop.create_task(self._child.watch(self._ready.url))

    async def process(self) -> Ready:
        """Return what the process said when it was ready."""
        return self._ready

    def check_health(self) -> None:
        """Raise Unavailable if the replica has ended."""
        self._child.check()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the policy looks at."""
        return self._demand

    async def _announce(self, name: str) -> None:
        """Tell the front again and again that this replica is there: another front may have taken the place of the first."""
        while True:
            with contextlib.suppress(RayError, InferdError, TimeoutError):
                await self._announce_once(name)
            await asyncio.sleep(ANNOUNCE_SECONDS)

    async def _announce_once(self, name: str) -> None:
        front: Any = serve.get_deployment_handle(FRONT, FRONT)
        self._demand = await asyncio.wait_for(front.announce.remote(name, self._ready.url), ANSWER_SECONDS)

    async def __del__(self) -> None:
        """End the replica in order. It is announced until it has ended: a new front is to know of it, too."""
        await self._child.end(self._settings.drain_seconds + FRONT_SECONDS + END_SECONDS)
        self._announcing.cancel()
