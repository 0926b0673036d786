"""The gateway: the HTTP and WebSocket server in front of a runtime, in one process with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp

from inferd.protocol import MAX_SCRIPT_MESSAGE, InferdError, InternalError, InvalidRequest, NotFound
from inferd_runtime.file_limit import raise_file_limit
from inferd_runtime.interpreter import collect_rarely
from inferd_runtime.server.chat.aliases import read_aliases
from inferd_runtime.server.chat.answer_pace import AnswerPace
from inferd_runtime.server.chat.builtin import builtin_main
from inferd_runtime.server.chat.direct import DirectChat
from inferd_runtime.server.chat.targets import ChatServing
from inferd_runtime.server.chat.tenant_sessions import TenantSessions
from inferd_runtime.server.chat.warm_sessions import warm_sessions
from inferd_runtime.server.connections.acceptor import Acceptor, Listener
from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.dialects.routes import NOT_SERVED, vendor_shape
from inferd_runtime.server.gateway.audit import Audited, AuditLog
from inferd_runtime.server.gateway.auth import AccessTokens, BearerAuth, TenantQuotas, load_quotas, load_tokens
from inferd_runtime.server.gateway.chat_routes import ChatApi
from inferd_runtime.server.gateway.file_routes import FileApi
from inferd_runtime.server.gateway.gateway_role import GatewayRole, alone, as_settings_say
from inferd_runtime.server.gateway.http_protocol import TypedHttp
from inferd_runtime.server.gateway.listening import RenewedTls, check_exposure, listen, url_of
from inferd_runtime.server.gateway.model_routes import ModelApi
from inferd_runtime.server.gateway.openapi_route import document_route
from inferd_runtime.server.gateway.replies import error_reply
from inferd_runtime.server.gateway.request_watch import RequestWatch
from inferd_runtime.server.gateway.responses_routes import ResponsesApi
from inferd_runtime.server.gateway.room import shared_sizes, table_limits
from inferd_runtime.server.gateway.routes import Api
from inferd_runtime.server.gateway.socket_protocol import BinarySocket
from inferd_runtime.server.gateway.stored_formats import refuse_newer_formats
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.processes.folder_lock import locked_folders
from inferd_runtime.server.response_store.response_store import RESPONSES_FILE, ResponseStore, open_response_store
from inferd_runtime.server.run_store.archive import RUNS_FILE, open_archive
from inferd_runtime.server.services.launches.launches import Launches
from inferd_runtime.server.supervisor.commands import Commands
from inferd_runtime.server.supervisor.runtime import Runtime, open_runtime
from inferd_runtime.server.telemetry.request_ids import RequestIds
from inferd_runtime.server.telemetry.traces import otlp_provider, traced
from inferd_runtime.server.tenancy.quotas import QuotasOf
from inferd_runtime.server.tenancy.tenant_use import TenantUse
from inferd_runtime.server.tenancy.token_store import TOKENS_FILE, TokenStore
from inferd_runtime.settings.settings import Settings

SERVER_FILE = "server.json"
CLOSE_SECONDS = 5
KEEP_ALIVE_OF_UVICORN = 3600
"""Seconds: longer than our own idle limit, so that uvicorn's never applies."""
METHOD_NOT_ALLOWED = 405
BROWSER_METHODS = ("GET", "HEAD", "POST", "DELETE")
EXPOSED_HEADERS = ("x-request-id", "request-id", "x-inferd-run", "retry-after", "x-should-retry")
"""Headers of answers that pages of other origins may read."""
log = logging.getLogger("inferd.gateway")


@dataclass(frozen=True)
class AppMiddleware:
    """What the middleware needs: the open connections, the audit log if there is one, and the origins of pages that may call."""

    connections: ConnectionTable
    audit: AuditLog | None = None
    origins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entrance:
    """Where clients connect: the tokens that are valid, the limits, and the socket that listens. ``url`` ends without a slash."""

    url: str
    tokens: AccessTokens
    use: TenantUse
    middleware: AppMiddleware
    listener: Listener


@dataclass(frozen=True)
class Gateway:
    """A gateway that listens. ``url`` has no slash at its end; setting ``stopping`` makes :func:`serve` drain and return."""

    url: str
    runtime: Runtime
    tokens: AccessTokens
    connections: ConnectionTable
    stopping: anyio.Event = field(default_factory=anyio.Event)


class _Server(uvicorn.Server):
    """uvicorn without its signal handling, which is the caller's, and without its own way to accept connections."""

    def __init__(self, config: uvicorn.Config, listener: Listener, table: ConnectionTable) -> None:
        super().__init__(config)
        self._listener = listener
        self._table = table

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections; see :class:`Acceptor`."""
        await self.lifespan.startup()
        self.servers = [Acceptor(self._listener, self._table, self._protocol)]  # type: ignore[list-item]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        return TypedHttp(self.config, self.server_state, self.lifespan.state)


def all_routes(own: Api, models: ModelApi, chat: ChatApi, responses: ResponseStore) -> list[BaseRoute]:
    """Return the routing table."""
    return [
        *own.routes(),
        *FileApi(own.runtime).routes(),
        *models.routes(),
        *chat.routes(),
        *ResponsesApi(models, responses).routes(),
        document_route(),
    ]


def make_app(routes: Sequence[BaseRoute], tokens: AccessTokens, middleware: AppMiddleware | None = None) -> ASGIApp:
    """Return the ASGI application. ``middleware`` None: without connections, audit log and CORS, as in tests without sockets.

    With CORS, unexpected exceptions are answered inside of its middleware, so that pages can read the error.
    """
    handlers = {InferdError: _inferd_error, HTTPException: _http_error, Exception: _bug}
    table = None if middleware is None else middleware.connections
    outer = [] if table is None else [Middleware(RequestWatch, table=table)]
    if middleware is not None and middleware.audit is not None:
        outer.append(Middleware(Audited, audit=middleware.audit))
    if middleware is not None and middleware.origins:
        outer += [cross_origin(middleware.origins), Middleware(ServerErrorMiddleware, handler=_bug)]
    app = Starlette(
        routes=list(routes),
        middleware=[*outer, Middleware(BearerAuth, tokens=tokens, table=table)],
        exception_handlers=handlers,  # type: ignore[arg-type]
    )
    app.router.redirect_slashes = False  # it would redirect to the host of the Host header, by http behind a TLS proxy
    return RequestIds(app)


def cross_origin(origins: Sequence[str]) -> Middleware:
    """Return the CORS middleware that lets pages of these origins call (https://fetch.spec.whatwg.org/#http-cors-protocol).

    It stands before the check of tokens, as a browser's preflight request has none. Cookies are not used. Preflights for
    private networks are granted: the operator has named the origin.
    """
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=BROWSER_METHODS,
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=EXPOSED_HEADERS,
    )


async def _inferd_error(request: Request, error: InferdError) -> Response:
    return error_reply(error, request.scope)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Answer what the router refuses: an unknown path, or a method that it does not have."""
    where = f"{request.method} {request.url.path}"
    if (note := NOT_SERVED.get(request.url.path)) is not None:
        return error_reply(NotFound(f"{where} is not supported: {note}"), request.scope)
    if error.status_code == 404:
        told = NotFound(f"there is no route {where}{_suggestion(request)}")
        return error_reply(told, request.scope, vendor_shape(request.headers))
    response = error_reply(InvalidRequest(f"{where}: {error.detail}"), request.scope)
    response.status_code = error.status_code
    if error.status_code == METHOD_NOT_ALLOWED:
        response.headers["Allow"] = ", ".join(sorted(_methods_of(request)))
    return response


def _suggestion(request: Request) -> str:
    """Return a hint where the path exists with ``/v1`` before it, or without its first part or a doubled slash; else ""."""
    parts = [*filter(None, request.url.path.split("/"))]
    for path in ("/" + "/".join(each) for each in (parts, ["v1", *parts], parts[1:])):
        if any(route.matches({**request.scope, "path": path})[0] is Match.FULL for route in request.app.routes):
            return f"; there is {path}: does the client's base URL lack /v1, or have a part or a slash too many?"
    return ""


def _methods_of(request: Request) -> set[str]:
    """Return the methods that a path has, over all of its routes."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return found


async def _bug(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception: its traceback goes to the log (Starlette raises it again), only its type to the client."""
    return error_reply(InternalError(f"a bug in the runtime: {type(error).__name__}"), request.scope)


@contextmanager
def open_entrance(
    settings: Settings,
    tokens: AccessTokens | None = None,
    quotas: Callable[[QuotasOf], QuotasOf] = as_settings_say,
    listener: socket.socket | None = None,
) -> Iterator[Entrance]:
    """Lock the folders, load tokens and quotas, and listen. Nothing is accepted before :func:`serve_app`.

    ``tokens``, ``quotas``: see :class:`GatewayRole`; ``listener``: a socket that listens at the settings' address already.
    """
    check_exposure(settings)
    tls = RenewedTls(settings)
    files = raise_file_limit()
    with ExitStack() as stack:
        stack.enter_context(locked_folders(settings.state_dir, settings.data_dir))
        refuse_newer_formats(settings)
        if tokens is None:
            store = stack.enter_context(contextlib.closing(TokenStore(settings.data_dir / TOKENS_FILE)))
            tokens = load_tokens(settings, store)
        use = TenantUse(quotas(TenantQuotas(tokens, load_quotas(settings))), shared_sizes(settings, files))
        audit = stack.enter_context(_audit_log(settings))
        middleware = AppMiddleware(ConnectionTable(use, table_limits(settings, files)), audit, settings.cors_origin)
        socket_ = stack.enter_context(contextlib.closing(listener or listen(settings.host, settings.port)))
        url = url_of(settings.host, socket_.getsockname()[1], tls.is_spoken)
        yield Entrance(url, tokens, use, middleware, Listener(socket_, tls.context, settings.header_s))


@asynccontextmanager
async def serve_app(app: ASGIApp, settings: Settings, entrance: Entrance) -> AsyncIterator[None]:
    """Serve an application at an entrance while the body runs."""
    server = _Server(_uvicorn_config(app, settings), entrance.listener, entrance.middleware.connections)
    async with _serving(server):
        yield


@asynccontextmanager
async def open_gateway(
    settings: Settings, commands: Commands | None = None, role: GatewayRole | None = None
) -> AsyncIterator[Gateway]:
    """Listen at once, start the runtime, and stop everything in order at the end. ``role``: None: it serves alone.

    Until engine and worker are up, ``/readyz`` and launches answer 503; wait for it with ``runtime.wait_ready()``. Raises
    Unavailable when the address is in use or another server has the folders, InvalidRequest for bad tokens, certificates,
    quotas and aliases, and for an address that others reach without TLS.
    """
    role, aliases = role or alone(settings), read_aliases(settings.alias, settings.engine)
    async with AsyncExitStack() as stack:
        entrance = stack.enter_context(open_entrance(settings, role.tokens, role.quotas))
        tokens, use = entrance.tokens, entrance.use
        programs = await stack.enter_async_context(role.programs(use.quotas))
        archive = await stack.enter_async_context(open_archive(settings.data_dir / RUNS_FILE))
        messages = await stack.enter_async_context(role.messages(use.quotas))
        opening = open_runtime(
            settings, commands, wait=False, use=use, archive=archive, messages=messages, offers=role.offers
        )
        runtime = await stack.enter_async_context(opening)
        runtime.new_run_id, runtime.keeper.settles_all = role.run_id, role.settles_all
        runtime.desks.role_of = tokens.role_of
        if entrance.middleware.audit is not None:
            runtime.call_log.audit = entrance.middleware.audit.write
        runtime.services.join(Launches(runtime, programs.find, runtime.call_log.audit, role.admit_child))
        provider = None if settings.otel_endpoint is None else otlp_provider(settings.otel_endpoint)
        await stack.enter_async_context(traced(runtime, provider))
        pace = AnswerPace()
        kept = open_response_store(settings.data_dir / RESPONSES_FILE, use.quotas, settings.max_body_bytes, pace)
        responses = await stack.enter_async_context(kept)
        sessions, warm = TenantSessions(runtime), await stack.enter_async_context(warm_sessions())
        direct = DirectChat(runtime, sessions, builtin_main(), warm, pace)
        serving = ChatServing(runtime, programs, sessions, direct, aliases, pace)
        own, chat = Api(runtime, programs, tokens, responses.background), ChatApi(runtime, serving, pace)
        routes = [*role.routes(runtime, responses), *all_routes(own, ModelApi(chat, sessions), chat, responses)]
        async with serve_app(make_app(routes, tokens, entrance.middleware), settings, entrance):
            try:
                yield Gateway(entrance.url, runtime, tokens, entrance.middleware.connections)
            finally:
                # Runs end first: only then do the streams that follow them, which the server waits for.
                with anyio.CancelScope(shield=True):
                    await runtime.shutdown()


@contextmanager
def _audit_log(settings: Settings) -> Iterator[AuditLog | None]:
    if settings.audit_log is None:
        yield None
        return
    with contextlib.closing(AuditLog(settings.audit_log)) as audit:
        yield audit


def _uvicorn_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, ws=BinarySocket,
        ws_max_size=max(settings.max_body_bytes, MAX_SCRIPT_MESSAGE), ws_per_message_deflate=False,
        timeout_graceful_shutdown=CLOSE_SECONDS, http="h11",
        proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_OF_UVICORN,
    )  # fmt: skip


@asynccontextmanager
async def _serving(server: _Server) -> AsyncIterator[None]:
    """Run the server beside the body, and let it finish its answers at the end."""
    ended = anyio.Event()

    async def serve() -> None:
        try:
            await server.serve()
        finally:
            ended.set()

    async with background_tasks() as tasks:
        tasks.start_soon(serve)
        try:
            yield
        finally:
            server.should_exit = True
            with anyio.CancelScope(shield=True):
                await ended.wait()


@contextmanager
def announced(state_dir: Path, url: str) -> Iterator[None]:
    """Keep a file in the state directory that tells this user's command line where the server is."""
    path = state_dir / SERVER_FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = json.dumps({"url": url, "pid": os.getpid()})
    path.touch(0o600)  # whoever could write to it would get this user's token
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, UnicodeDecodeError):  # somebody has removed it, or put something else there
            if path.read_text(encoding="utf-8") == text:
                path.unlink()


async def serve(settings: Settings, ready: Callable[[Gateway], None], commands: Commands | None = None) -> None:
    """Serve until cancelled, or until the gateway is to stop and its runs are over, or have had ``drain_seconds`` to be.

    ``ready`` is called once launches work. Raises Unavailable if the first start fails.
    """
    async with open_gateway(settings, commands) as gateway:
        with announced(settings.state_dir, gateway.url):
            await gateway.runtime.wait_ready()
            collect_rarely()
            ready(gateway)
            async with background_tasks() as tasks:
                if settings.idle_minutes:
                    tasks.start_soon(_stop_when_idle, gateway, 60 * settings.idle_minutes)
                await gateway.stopping.wait()
            await gateway.runtime.drain(settings.drain_seconds)


async def _stop_when_idle(gateway: Gateway, seconds: float) -> None:
    """Stop a gateway that has had no connection and no run for so many seconds."""
    idle_since = anyio.current_time()
    while anyio.current_time() < idle_since + seconds:
        await anyio.sleep(min(1.0, seconds / 4))
        if gateway.connections.count or gateway.runtime.runs.active:
            idle_since = anyio.current_time()
    log.info("idle for %g s: the server ends", seconds)
    gateway.stopping.set()
