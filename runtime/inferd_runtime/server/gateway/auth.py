"""Access to the gateway: bearer tokens, each of which means a tenant and a role."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from inferd.protocol import Forbidden, InferdError, InvalidRequest, Unauthorized, Unavailable
from inferd_runtime.log_lines import log_fields
from inferd_runtime.server.connections.connection_table import ConnectionTable
from inferd_runtime.server.gateway.replies import deny
from inferd_runtime.server.gateway.request_watch import CONNECTION_KEY
from inferd_runtime.server.tenancy.quotas import Quotas, QuotaTable, Role, read_quotas
from inferd_runtime.server.tenancy.token_store import TokenStore
from inferd_runtime.server.tenancy.tokens import TokenRights, check_strength, new_token, token_digest
from inferd_runtime.server.tokens_file import read_private, read_token_lines, tenant_options
from inferd_runtime.settings.settings import Settings

DEFAULT_TENANT = "default"
PUBLIC_PATHS = frozenset({"/livez", "/version"})
TENANT_KEY = "inferd.tenant"
ROLE_KEY = "inferd.role"
TOKEN_KEY = "inferd.token"
OWN = TokenRights(DEFAULT_TENANT, Role.ADMIN, "own")
"""What the server's own token allows: the generated one, or the one that ``--token`` names."""


class AccessTokens:
    """The tokens that are accepted: those of the settings, and those of the store, which may change at any time.

    ``public_paths``: what may be asked without one.
    """

    def __init__(
        self, known: Mapping[str, TokenRights], store: TokenStore | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self._known = {token_digest(token): rights for token, rights in known.items() if token}
        self._store = store
        self._now = now
        self._seen: Mapping[bytes, TokenRights] | None = None
        self._learn({})
        self.public_paths = PUBLIC_PATHS

    @property
    def tenants(self) -> Mapping[str, Role]:
        """The tenants that have a token that is valid, with the highest role of any of theirs."""
        self._refresh()
        return self._roles

    def rights_of(self, authorization: str | None) -> TokenRights:
        """Return what an ``Authorization`` header allows. Raises Unauthorized, and Unavailable if the store cannot be read."""
        kind, _, given = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not given:
            raise Unauthorized("send the header `Authorization: Bearer TOKEN`, or `x-api-key: TOKEN`")
        digest = token_digest(given.strip())
        # How long the look takes may tell how a digest resembles a kept one; nobody can choose the digest of what they send.
        rights = self._known.get(digest) or self._refresh().get(digest)
        if rights is None:
            raise Unauthorized("the token is wrong")
        if self._now() >= rights.expires_at:
            raise Unauthorized("the token has expired")
        return rights

    def is_valid(self, rights: TokenRights) -> bool:
        """Return True while rights that were given have neither expired nor been revoked; a rotation may have shortened them."""
        with contextlib.suppress(Unavailable):  # a file that cannot be read has revoked nothing
            self._refresh()
        # Not a search: every open connection is asked about, again and again.
        current = self._by_id.get(rights.token_id)
        return current is not None and self._now() < current.expires_at

    def role_of(self, tenant: str) -> Role:
        """Return the highest role of a tenant's tokens: of those revoked since, as of the last request."""
        if self._now() >= self._roles_until:
            self._find_roles()
        return self._roles.get(tenant, Role.USER)

    def _refresh(self) -> Mapping[bytes, TokenRights]:
        stored: Mapping[bytes, TokenRights] = {} if self._store is None else self._store.rights()
        if stored is not self._seen:
            self._seen = stored
            self._learn(stored)
        elif self._now() >= self._roles_until:
            self._find_roles()
        return stored

    def _learn(self, stored: Mapping[bytes, TokenRights]) -> None:
        self._every = [*stored.values(), *self._known.values()]
        self._by_id = {rights.token_id: rights for rights in self._every}
        self._find_roles()

    def _find_roles(self) -> None:
        """Find the roles that tenants have until the next token expires."""
        now = self._now()
        valid = [rights for rights in self._every if now < rights.expires_at]
        self._roles = _highest_roles(valid)
        self._roles_until = min((rights.expires_at for rights in valid), default=math.inf)


def _highest_roles(every: Collection[TokenRights]) -> dict[str, Role]:
    admins = {rights.tenant for rights in every if rights.role is Role.ADMIN}
    return {rights.tenant: Role.ADMIN if rights.tenant in admins else Role.USER for rights in every}


class BearerAuth:
    """ASGI middleware: refuses what has no valid token, and notes tenant and role of the rest in the scope."""

    def __init__(self, app: ASGIApp, tokens: AccessTokens, table: ConnectionTable | None = None) -> None:
        self._app = app
        self._tokens = tokens
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] in ("http", "websocket") and scope["path"] not in self._tokens.public_paths:
            try:
                self._admit(scope)
            except InferdError as error:
                await deny(error, scope, receive, send)
                return
        with log_fields(**({"tenant": scope[TENANT_KEY]} if TENANT_KEY in scope else {})):
            await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        rights = self._tokens.rights_of(authorization_of(Headers(scope=scope)))
        scope[TENANT_KEY], scope[ROLE_KEY], scope[TOKEN_KEY] = rights.tenant, rights.role, rights.token_id
        if self._table is not None and CONNECTION_KEY in scope:
            self._table.belongs_to(scope[CONNECTION_KEY], rights.tenant)
            scope[CONNECTION_KEY].allowed = partial(self._tokens.is_valid, rights)


def authorization_of(headers: Headers) -> str | None:
    """Return the ``Authorization`` header; without one, what ``x-api-key`` stands for, as Anthropic's clients send it."""
    key = headers.get("x-api-key")
    return headers.get("authorization") or (None if key is None else f"Bearer {key}")


def require_admin(scope: Scope) -> None:
    """Raise Forbidden if the request's token is not an admin's."""
    if scope.get(ROLE_KEY) is not Role.ADMIN:
        raise Forbidden("this needs the token of an admin")


def load_tokens(settings: Settings, store: TokenStore | None = None) -> AccessTokens:
    """Return the tokens of the settings; where they name none, the one in the state directory, generated if need be.

    Raises InvalidRequest for a tokens file that is wrong or readable by others, and for a token that is easy to guess.
    """
    known: dict[str, TokenRights] = {}
    for number, line in enumerate(read_token_lines(settings.tokens_file) if settings.tokens_file else (), 1):
        check_strength(line.token, f"{settings.tokens_file}, token {number} (of {line.tenant})")
        known[line.token] = TokenRights(line.tenant, line.role, f"file-{number}")
    if settings.token is not None:
        check_strength(settings.token, "the token of --token or INFERD_TOKEN")
        known[settings.token] = OWN
    return AccessTokens(known or {kept_token(settings.state_dir): OWN}, store)


def load_quotas(settings: Settings) -> QuotaTable:
    """Return what the settings say about quotas. Raises InvalidRequest."""
    return read_quotas(settings.quota).over(tenant_options(settings))


class TenantQuotas:
    """The quotas of each tenant, by its role and the operator's table: a :data:`QuotasOf`."""

    def __init__(self, tokens: AccessTokens, table: QuotaTable) -> None:
        self._tokens = tokens
        self._table = table
        self._made: dict[tuple[str, Role], Quotas] = {}

    def __call__(self, tenant: str) -> Quotas:
        """Return a tenant's quotas as of the last request."""
        key = tenant, self._tokens.role_of(tenant)
        if key not in self._made:
            self._made[key] = self._table.of(*key)
        return self._made[key]


def token_path(state_dir: Path) -> Path:
    """Return the path of the generated token."""
    return state_dir / "token"


def kept_token(state_dir: Path) -> str:
    """Return the token in the state directory (mode 0600), generated the first time.

    Raises InvalidRequest if it is empty, easy to guess, or readable by others.
    """
    path = token_path(state_dir)
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = read_private(path, "the token file").strip()
        if not kept:
            raise InvalidRequest(f"the token file {path} is empty: delete it, and a new one is made") from None
        check_strength(kept, f"the token in {path}")
        return kept
    with open(handle, "w", encoding="utf-8") as file:
        token = new_token()
        file.write(token + "\n")
    return token
