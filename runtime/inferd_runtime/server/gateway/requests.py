"""Reading what clients send: bodies of bounded size, decoded into one type per route."""

from __future__ import annotations

import asyncio
import math
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import anyio
import msgspec
from starlette.requests import ClientDisconnect, Request

from inferd.protocol import InvalidRequest, LimitExceeded, shown
from inferd.protocol.files import ANY_TYPE
from inferd_runtime.carriable import read_json
from inferd_runtime.server.gateway.auth import TENANT_KEY
from inferd_runtime.server.gateway.leaving import cancel_when_left
from inferd_runtime.server.tenancy.shares import SharedPlaces

T = TypeVar("T")
JSON_TYPE = "application/json"
CURL_TYPE = "application/x-www-form-urlencoded"
"""The default of ``curl -d``: a body of this type is read as JSON, too."""
PLAIN = "identity"
LEFT = "the client left before its request was complete"
MAX_KEY = 255
"""Characters of an ``Idempotency-Key``."""


class LaunchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/runs``. ``program`` is a name, ``name@version`` or a hash; ``limits`` holds only what to change.

    ``retry_safe``: the run may be started again after a crash (None: as the program says). ``seed``: of its random numbers, and
    of samplers without one (None: any; a retry-safe run keeps what was drawn). ``mcp``: the run, and those that it launches, may
    use the servers of tools that are offered under this key.
    """

    program: str
    arguments: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    retry_safe: bool | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] | None = None
    mcp: Annotated[str, msgspec.Meta(max_length=64)] = ""


class MessageBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/runs/{id}/messages``: a ``message``, or ``end``, which says that there are no more."""

    message: Any = msgspec.UNSET
    end: bool = False


class FileBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/runs/{id}/files``: a file for the program, whose bytes follow."""

    name: str
    size: int
    media_type: str = ANY_TYPE


class FilePieceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/runs/{id}/files/{number}``: its next bytes, in Base64."""

    offset: int
    data: bytes


async def read_body(request: Request, kind: type[T], most: int, places: SharedPlaces) -> T:
    """Return a JSON body of at most ``most`` bytes. Raises what :func:`read_bytes` raises, and InvalidRequest."""
    body: T = read_json(await read_bytes(request, most, places), "the body", kind)
    return body


async def read_bytes(request: Request, most: int, places: SharedPlaces) -> bytes:
    """Return a body of at most ``most`` bytes, without a byte order mark. ``places`` counts its bytes while it is read.

    Raises LimitExceeded before more is read, and InvalidRequest for another content type than JSON, and if the client leaves.
    """
    _check_content_type(request)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal():
        check_size(int(declared), most)
    tenant, chunks, size = request.scope[TENANT_KEY], [], 0
    try:
        async for chunk in request.stream():
            check_size(size + len(chunk), most)
            places.take(tenant, len(chunk))
            size += len(chunk)
            chunks.append(chunk)
    except ClientDisconnect:
        raise InvalidRequest(LEFT) from None
    finally:
        places.give_back(tenant, size)
    return b"".join(chunks).removeprefix(BOM_UTF8)


async def unless_left(
    request: Request, most: int, places: SharedPlaces, work: Callable[[Callable[[], Awaitable[bytes]]], Awaitable[T]]
) -> T:
    """Return what ``work`` returns. It gets a function that reads the body; from then on it is cancelled if the client leaves.

    Raises what :func:`read_bytes` and ``work`` raise, and InvalidRequest if the client leaves.
    """
    watching: list[asyncio.Task[None]] = []

    async def read() -> bytes:
        body = await read_bytes(request, most, places)
        watching.append(asyncio.create_task(cancel_when_left(request.receive, scope)))
        return body

    with anyio.CancelScope() as scope:
        try:
            return await work(read)
        finally:
            for task in watching:
                task.cancel()
    raise InvalidRequest(LEFT)


def _check_content_type(request: Request) -> None:
    kind = request.headers.get("content-type", JSON_TYPE).partition(";")[0].strip().lower()
    if kind not in ("", JSON_TYPE, CURL_TYPE) and not kind.endswith("+json"):
        message = f"the body must be JSON, with Content-Type: {JSON_TYPE}, not {shown(kind)}"
        raise InvalidRequest(message, code="unsupported_content_type")
    coding = request.headers.get("content-encoding", PLAIN).strip().lower()
    if coding not in ("", PLAIN):
        raise InvalidRequest(f"Content-Encoding: {shown(coding)} is not supported: send the body as it is")


def check_size(size: int, most: int) -> None:
    """Raise LimitExceeded for a body of more than ``most`` bytes."""
    if size > most:
        raise LimitExceeded(
            f"the body has more than {most} bytes", limit="body_bytes", value=most, raise_with="max_body_bytes"
        )


def launch_key(request: Request) -> str:
    """Return the ``Idempotency-Key`` of a launch, "" without one. Raises InvalidRequest for one that cannot be kept."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return ""
    if not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise InvalidRequest(f"an Idempotency-Key has 1 to {MAX_KEY} printable ASCII characters")
    return key


def number_of(request: Request, name: str, default: float, most: float) -> float:
    """Return a number of the query, in 0 .. ``most``. Raises InvalidRequest that names it."""
    text = request.query_params.get(name, str(default))
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= most:
        raise InvalidRequest(f"{name} must be a number in 0 .. {most:g}, not {shown(text)}")
    return number
