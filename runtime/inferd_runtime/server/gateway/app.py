"""The gateway: the HTTP and WebSocket server in front of a runtime, in one process with it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from inferd.protocol import MAX_EXPORT_BYTES, InferdError, InternalError, InvalidRequest, NotFound, Unavailable
from inferd_runtime.server.gateway.auth import AccessTokens, BearerAuth, load_tokens
from inferd_runtime.server.gateway.replies import error_reply
from inferd_runtime.server.gateway.routes import Api
from inferd_runtime.server.processes.background import background_tasks
from inferd_runtime.server.programs.library import open_library
from inferd_runtime.server.run_store.archive import open_archive
from inferd_runtime.server.supervisor.runtime import Commands, Runtime, open_runtime
from inferd_runtime.server.telemetry.request_ids import RequestIds
from inferd_runtime.server.tenancy.quotas import Quotas, same_for_all
from inferd_runtime.settings.settings import Settings

REGISTRY_FILE = "programs.sqlite3"
RUNS_FILE = "runs.sqlite3"
SERVER_FILE = "server.json"
CLOSE_SECONDS = 5
MAX_SCRIPT_MESSAGE = MAX_EXPORT_BYTES + (64 << 10)
log = logging.getLogger("inferd.gateway")


@dataclass(frozen=True)
class Gateway:
    """A gateway that listens. ``url`` has no slash at its end."""

    url: str
    runtime: Runtime
    tokens: AccessTokens


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling: what ends, and in which order, is decided by who opened the gateway."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_app(api: Api, tokens: AccessTokens) -> ASGIApp:
    """Return the ASGI application."""
    handlers = {InferdError: _inferd_error, HTTPException: _http_error, Exception: _bug}
    return RequestIds(
        Starlette(
            routes=api.routes(),
            middleware=[Middleware(BearerAuth, tokens=tokens)],
            exception_handlers=handlers,  # type: ignore[arg-type]
        )
    )


async def _inferd_error(request: Request, error: InferdError) -> Response:
    return error_reply(error)


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Answer what the router refuses: an unknown path, or a method that it does not have."""
    where = f"{request.method} {request.url.path}"
    if error.status_code == 404:
        return error_reply(NotFound(f"there is no route {where}"))
    response = error_reply(InvalidRequest(f"{where}: {error.detail}"))
    response.status_code = error.status_code
    return response


async def _bug(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception: its traceback goes to the log (Starlette raises it again), only its type to the client."""
    return error_reply(InternalError(f"a bug in the runtime: {type(error).__name__}"))


@asynccontextmanager
async def open_gateway(settings: Settings, commands: Commands | None = None) -> AsyncIterator[Gateway]:
    """Listen at once, start the runtime, and stop everything in order at the end.

    Until engine and worker are up, ``/readyz`` and launches answer 503; wait for it with ``runtime.wait_ready()``. Raises
    Unavailable when the address is in use, InvalidRequest for bad tokens.
    """
    tokens = load_tokens(settings)
    listener = _listen(settings.host, settings.port)
    url = f"http://{_host_in_url(settings.host)}:{listener.getsockname()[1]}"
    registry = settings.data_dir / REGISTRY_FILE
    with contextlib.closing(listener):
        async with (
            open_library(registry, same_for_all(Quotas())) as programs,
            open_archive(settings.data_dir / RUNS_FILE) as archive,
            open_runtime(settings, commands, wait=False, archive=archive) as runtime,
        ):
            server = _Server(_uvicorn_config(make_app(Api(runtime, programs), tokens), settings))
            async with _serving(server, listener):
                try:
                    yield Gateway(url, runtime, tokens)
                finally:
                    # Runs end first: only then do the streams that follow them, which the server waits for.
                    with anyio.CancelScope(shield=True):
                        await runtime.shutdown()


def _uvicorn_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, ws="websockets-sansio",
        ws_max_size=max(settings.max_body_bytes, MAX_SCRIPT_MESSAGE), ws_per_message_deflate=False,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )  # fmt: skip


@asynccontextmanager
async def _serving(server: _Server, listener: socket.socket) -> AsyncIterator[None]:
    """Run the server beside the body, and let it finish its answers at the end."""
    ended = anyio.Event()

    async def serve() -> None:
        try:
            await server.serve([listener])
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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}") from None
    listener.listen()
    return listener


def _host_in_url(host: str) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


@contextmanager
def announced(state_dir: Path, url: str) -> Iterator[None]:
    """Keep a file in the state directory that tells this user's command line where the server is."""
    path = state_dir / SERVER_FILE
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = json.dumps({"url": url, "pid": os.getpid()})
    path.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            if path.read_text(encoding="utf-8") == text:
                path.unlink()


async def serve(settings: Settings, ready: Callable[[Gateway], None], commands: Commands | None = None) -> None:
    """Serve until cancelled; ``ready`` hears once launches work. Raises Unavailable if the first start fails."""
    async with open_gateway(settings, commands) as gateway:
        with announced(settings.state_dir, gateway.url):
            await gateway.runtime.wait_ready()
            ready(gateway)
            await anyio.sleep_forever()
