"""Opens the front: the address for clients, and the private one for replicas."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio

from inferd_runtime.cluster.front.admission import Admission
from inferd_runtime.cluster.front.exchange import TenantExchange
from inferd_runtime.cluster.front.hop_client import HopClient
from inferd_runtime.cluster.front.launch_homes import FORMAT, HOMES_FILE, open_launch_homes
from inferd_runtime.cluster.front.launches import ClusterLaunches
from inferd_runtime.cluster.front.members import Members
from inferd_runtime.cluster.front.messages_relay import MessagesRelay
from inferd_runtime.cluster.front.own_routes import OwnRoutes
from inferd_runtime.cluster.front.private_routes import PrivateRoutes
from inferd_runtime.cluster.front.routes import ClusterApi
from inferd_runtime.cluster.front.watching import Watcher
from inferd_runtime.cluster.hop import HopTokens
from inferd_runtime.cluster.messages import JoinCluster
from inferd_runtime.interpreter import collect_rarely
from inferd_runtime.server.connections.acceptor import Listener
from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.gateway.app import AppMiddleware, Entrance, announced, make_app, open_entrance, serve_app
from inferd_runtime.server.gateway.gateway_role import open_own_library
from inferd_runtime.server.gateway.listening import listen, url_of
from inferd_runtime.server.gateway.stored_formats import refuse_newer
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.services.topics.kept_values import QUEUES_FILE, open_kept_values
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.settings.settings import Settings

NO_LIMIT = Quotas(connections=0, sockets=0)
LOOKED_AT = (
    "host", "port", "token", "tokens_file", "tls_cert", "tls_key", "insecure", "metrics_for", "audit_log", "cors_origin",
    "quota", "tenant_pages", "chat_program",
    "data_dir", "state_dir", "max_connections", "max_sockets", "max_body_total", "max_body_bytes", "header_s",
    "body_s", "keep_alive_s", "unread_s", "log_format", "log_level",
)  # fmt: skip
"""The settings that a front looks at. All others are replicas' alone: the front goes on while these change."""


@dataclass(frozen=True, kw_only=True)
class FrontStart:
    """What a front is told when it starts. ``private_host``: where it listens for replicas, at any port.

    ``listener``: the descriptor of a socket that listens at the settings' address, which whoever starts the front holds: clients
    that connect while no front is there wait for the next; -1: the front listens itself.
    """

    key: str
    settings: Settings
    private_host: str = "127.0.0.1"
    listener: int = -1


def front_settings(settings: Settings) -> Settings:
    """Return a front's settings, which are the same for clusters that differ in what it does not look at."""
    return Settings(**{name: getattr(settings, name) for name in LOOKED_AT})


@dataclass(frozen=True)
class ClusterFront:
    """A front that listens. ``url`` is for clients, ``private_url`` for replicas."""

    url: str
    private_url: str
    members: Members
    watcher: Watcher
    stopping: anyio.Event = field(default_factory=anyio.Event)

    async def join(self, name: str, url: str) -> None:
        """Take a replica in. Raises what :meth:`Watcher.join` raises."""
        await self.watcher.join(JoinCluster(name, url))


@contextmanager
def _private_entrance(host: str, key: str) -> Iterator[Entrance]:
    use = TenantUse(same_for_all(NO_LIMIT))
    with contextlib.closing(listen(host, 0)) as listener:
        url = url_of(host, listener.getsockname()[1], tls=False)
        yield Entrance(url, HopTokens(key), use, AppMiddleware(ConnectionTable(use)), Listener(listener))


def _inherited(descriptor: int) -> socket.socket | None:
    """Return the socket of a descriptor, which no child of this process gets; None for none."""
    if descriptor < 0:
        return None
    listener = socket.socket(fileno=descriptor)
    listener.set_inheritable(False)
    return listener


@asynccontextmanager
async def open_front(order: FrontStart) -> AsyncIterator[ClusterFront]:
    """Open both addresses. Raises what :func:`~inferd_runtime.server.gateway.app.open_entrance` raises."""
    settings = order.settings
    async with AsyncExitStack() as stack:
        entrance = stack.enter_context(open_entrance(settings, listener=_inherited(order.listener)))
        refuse_newer([(settings.data_dir / HOMES_FILE, FORMAT.number)])
        private = stack.enter_context(_private_entrance(order.private_host, order.key))
        use, hop = entrance.use, HopClient(order.key)
        exchange = TenantExchange(use, settings.tenant_pages or 0)
        members = Members(exchange.leave)
        stack.push_async_callback(hop.close)
        programs = await stack.enter_async_context(open_own_library(settings, use.quotas))
        watcher = Watcher(hop, members, order.key, settings.data_dir, private.url, exchange)
        watcher.look()
        members.missing |= members.without_heir
        own = OwnRoutes(settings, programs, members, hop, order.key, use, entrance.tokens)
        admission = Admission(use, exchange.active, members, programs, settings.chat_program)
        homes = await stack.enter_async_context(open_launch_homes(settings.data_dir))
        launches = ClusterLaunches(hop, members, programs, order.key, admission, homes)
        api = ClusterApi(hop, members, launches, admission, order.key, use, settings.max_body_bytes)
        tasks = await stack.enter_async_context(background_tasks())
        tasks.start_soon(watcher.watch)
        kept = await stack.enter_async_context(open_kept_values(settings.data_dir / QUEUES_FILE, use.quotas))
        calls = await stack.enter_async_context(background_tasks())
        tasks.start_soon(MessagesRelay(members, hop.peers, order.key, admission, kept, calls).run)
        inner = make_app(PrivateRoutes(programs, watcher).routes(), private.tokens, private.middleware)
        await stack.enter_async_context(serve_app(inner, settings, private))
        outer = make_app([*own.routes(), *api.routes()], entrance.tokens, entrance.middleware)
        await stack.enter_async_context(serve_app(outer, settings, entrance))
        yield ClusterFront(entrance.url, private.url, members, watcher)


async def serve_front(order: FrontStart, ready: Callable[[ClusterFront], None], stopping: anyio.Event) -> None:
    """Serve until ``stopping`` is set. ``ready`` hears once clients are answered."""
    async with open_front(order) as front:
        with announced(order.settings.state_dir, front.url):
            collect_rarely()
            ready(front)
            await stopping.wait()
