"""Who may talk to the gateway: bearer tokens, each of which means a tenant."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from inferd.protocol import InvalidRequest, Unauthorized
from inferd_runtime.config import Settings
from inferd_runtime.engine.tenants import Tenancy, TenantLimits
from inferd_runtime.server.replies import deny

DEFAULT_TENANT = "default"
PUBLIC_PATHS = frozenset({"/livez", "/version"})
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TENANT_KEY = "inferd.tenant"
TENANT_OPTIONS = {"kv_pages": re.compile(r"\d{1,9}"), "weight": re.compile(r"\d{1,6}(\.\d{1,6})?")}


@dataclass(frozen=True)
class Tokens:
    """The tokens that are accepted, and the tenant of each."""

    tenants: Mapping[str, str]

    def tenant_of(self, authorization: str | None) -> str:
        """The tenant of an ``Authorization`` header. Raises Unauthorized; takes as long for any wrong token."""
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

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
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
        await self._app(scope, receive, send)


def load_tokens(settings: Settings) -> Tokens:
    """The tokens of the settings; where they name none, the one that is kept in the state directory, made if need be."""
    tenants: dict[str, str] = {}
    if settings.tokens_file is not None:
        tenants |= read_tokens(settings.tokens_file)
    if settings.token is not None:
        tenants[settings.token] = DEFAULT_TENANT
    return Tokens(tenants or {kept_token(settings.state_dir): DEFAULT_TENANT})


@dataclass(frozen=True)
class TokenLine:
    """One line of the tokens file: ``token tenant [kv_pages=N] [weight=W]``."""

    token: str
    tenant: str
    options: Mapping[str, float]


def read_tokens(path: Path) -> dict[str, str]:
    """The tenant of each token. Raises InvalidRequest that names the line that is wrong."""
    return {line.token: line.tenant for line in _read_lines(path)}


def load_tenancy(settings: Settings) -> Tenancy:
    """What tenants may hold and what their shares are: for all ``tenant_pages``, for some what the tokens file says."""
    default = TenantLimits(kv_pages=settings.tenant_pages or 0)
    options: dict[str, dict[str, float]] = {}
    for line in _read_lines(settings.tokens_file) if settings.tokens_file is not None else ():
        options.setdefault(line.tenant, {}).update(line.options)
    named = {
        tenant: TenantLimits(int(given.get("kv_pages", default.kv_pages)), given.get("weight", default.weight))
        for tenant, given in options.items()
        if given
    }
    return Tenancy(default, named)


def _read_lines(path: Path) -> list[TokenLine]:
    """Empty lines and lines that start with ``#`` are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidRequest(f"the tokens file {path} cannot be read: {error}") from None
    found: dict[str, TokenLine] = {}
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if len(parts) < 2 or not TENANT.fullmatch(parts[1]) or parts[0] in found:
            raise InvalidRequest(f"{where}: expected a token of its own and a tenant's name")
        found[parts[0]] = TokenLine(parts[0], parts[1], dict(_option(part, where) for part in parts[2:]))
    return list(found.values())


def _option(text: str, where: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    pattern = TENANT_OPTIONS.get(name)
    if pattern is None or not pattern.fullmatch(value) or float(value) <= 0:
        raise InvalidRequest(f"{where}: expected kv_pages=N or weight=W above 0 behind the tenant, not {text!r}")
    return name, float(value)


def token_path(state_dir: Path) -> Path:
    """Where the generated token is kept."""
    return state_dir / "token"


def kept_token(state_dir: Path) -> str:
    """The token in the state directory (mode 0600), generated the first time."""
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
