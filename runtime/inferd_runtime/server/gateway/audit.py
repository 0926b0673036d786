"""The audit log: who asked for what, when, from where, and what came of it, one JSON object a line. No bodies, no texts."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inferd_runtime.server.gateway.auth import ROLE_KEY, TENANT_KEY, TOKEN_KEY
from inferd_runtime.server.tenancy.rates import MinuteBucket

SUBJECT_KEY = "inferd.subject"
"""In the scope: the run or program that a request turned out to be about."""
NOT_AUDITED = frozenset({"/livez", "/readyz", "/health", "/version", "/metrics"})
MAX_TEXT = 200
"""Characters of what a client chooses: its method, its path, and the run that this names."""
REFUSED_PER_MINUTE = 600
"""Lines about requests without a valid token: a flood of them must not fill the disk. What is left out is counted."""
log = logging.getLogger("inferd.gateway")


class AuditLog:
    """The file; a new one once it was renamed or removed, as it is rotated. A line that cannot be written is told in the server's
    log, and nothing else happens.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._handle = self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def write(self, entry: dict[str, Any]) -> None:
        """Append a line."""
        try:
            self._follow()
            self._append(msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            log.error("the audit log %s cannot be written: %s", self._path, error)

    def _append(self, line: bytes) -> None:
        """Write a whole line, or nothing of it. Raises OSError."""
        written = os.write(self._handle, line)
        if written < len(line):
            os.ftruncate(self._handle, os.fstat(self._handle).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _follow(self) -> None:
        """Open the path anew where it has another file, or none. Where that fails, lines go on to the file of before."""
        try:
            if not self._is_there():
                fresh = self._open()
                os.close(self._handle)
                self._handle = fresh
        except OSError as error:
            log.error("the audit log %s cannot be opened anew, and goes on where it was: %s", self._path, error)

    def _open(self) -> int:
        # Where it is a pipe, nobody who reads it slowly, or not at all, may stop the server.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, 0o600)

    def _is_there(self) -> bool:
        """Return True if the open file is still the one of this path."""
        try:
            return os.path.samestat(os.fstat(self._handle), os.stat(self._path))
        except FileNotFoundError:
            return False


class Audited:
    """ASGI middleware, outside of what checks tokens, so that it sees what that refuses."""

    def __init__(self, app: ASGIApp, audit: AuditLog) -> None:
        self._app = app
        self._audit = audit
        self._refused = MinuteBucket()
        self._left_out = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and write what came of it once its answer begins, or a WebSocket's end."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in NOT_AUDITED:
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._write(scope, status, time.monotonic() - started)

    def _write(self, scope: Scope, status: int, seconds: float) -> None:
        known = TENANT_KEY in scope
        if not known and self._refused.wait(REFUSED_PER_MINUTE, time.monotonic()) > 0:
            self._left_out += 1
            return
        if not known:
            self._refused.charge(REFUSED_PER_MINUTE, time.monotonic())
        client, subject = scope.get("client"), scope.get(SUBJECT_KEY)
        entry = {
            "time": time.time(), "address": client[0] if client else None, "tenant": scope.get(TENANT_KEY),
            "role": scope.get(ROLE_KEY), "token": scope.get(TOKEN_KEY),
            "method": str(scope.get("method", "WEBSOCKET"))[:MAX_TEXT], "path": str(scope["path"])[:MAX_TEXT],
            "subject": None if subject is None else str(subject)[:MAX_TEXT], "status": status, "ms": round(seconds * 1e3, 3),
        }  # fmt: skip
        if self._left_out:
            entry["left_out"], self._left_out = self._left_out, 0
        self._audit.write(entry)
