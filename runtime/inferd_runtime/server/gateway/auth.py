"""Access to the gateway: bearer tokens, each of which means a tenant."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from inferd.protocol import InvalidRequest, Unauthorized
from inferd_runtime.log_lines import log_fields
from inferd_runtime.server.gateway.replies import deny
from inferd_runtime.server.tokens_file import read_tokens
from inferd_runtime.settings.settings import Settings

DEFAULT_TENANT = "default"
PUBLIC_PATHS = frozenset({"/livez", "/version"})
TENANT_KEY = "inferd.tenant"


@dataclass(frozen=True)
class AccessTokens:
    """The tokens that are accepted, and the tenant of each."""

    tenants: Mapping[str, str]

    def tenant_of(self, authorization: str | None) -> str:
        """Return the tenant of an ``Authorization`` header. Raises Unauthorized; takes as long for any wrong token."""
        kind, _, given = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not given:
            raise Unauthorized("send the header `Authorization: Bearer TOKEN`")
        found: str | None = None
        for token, tenant in self.tenants.items():
            if hmac.compare_digest(token.encode(), given.strip().encode()):
                found = tenant
        if found is None:
            raise Unauthorized("the token is wrong")
        return found


class BearerAuth:
    """ASGI middleware: refuses what has no valid token, and notes the tenant of the rest in the scope."""

    def __init__(self, app: ASGIApp, tokens: AccessTokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] in ("http", "websocket") and scope["path"] not in PUBLIC_PATHS:
            try:
                scope[TENANT_KEY] = self._tokens.tenant_of(Headers(scope=scope).get("authorization"))
            except Unauthorized as error:
                await deny(error, scope, receive, send)
                return
        with log_fields(**({"tenant": scope[TENANT_KEY]} if TENANT_KEY in scope else {})):
            await self._app(scope, receive, send)


def load_tokens(settings: Settings) -> AccessTokens:
    """Return the tokens of the settings; where they name none, the one in the state directory, generated if need be."""
    tenants: dict[str, str] = {}
    if settings.tokens_file is not None:
        tenants |= read_tokens(settings.tokens_file)
    if settings.token is not None:
        tenants[settings.token] = DEFAULT_TENANT
    return AccessTokens(tenants or {kept_token(settings.state_dir): DEFAULT_TENANT})


def token_path(state_dir: Path) -> Path:
    """Return the path of the generated token."""
    return state_dir / "token"


def kept_token(state_dir: Path) -> str:
    """Return the token in the state directory (mode 0600), generated the first time."""
    path = token_path(state_dir)
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = path.read_text(encoding="utf-8").strip()
        if not kept:
            raise InvalidRequest(f"the token file {path} is empty: delete it, and a new one is made") from None
        return kept
    with open(handle, "w", encoding="utf-8") as file:
        token = secrets.token_urlsafe(32)
        file.write(token + "\n")
    return token
