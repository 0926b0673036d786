"""How a front and its replicas know each other: by a key that no one else has, in the place of a token.

A client shows its token to the front. The front shows the replica the cluster's key, with the tenant and the role that the
token means; a replica accepts no tokens. The key is shown to nobody that has not proven to have it (``proof``).
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote, unquote

from starlette.types import Scope

from inferd.protocol import Forbidden, Unauthorized
from inferd_runtime.cluster.proof import PROOF_PATH
from inferd_runtime.server.gateway.auth import TENANT_KEY, AccessTokens
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.tokens import TokenRights

FRONT_TENANT = "\0cluster"
"""Whose requests are the front's and the replicas' own. No token can mean it: a tenant's name has no such character."""
OWN_RIGHTS = TokenRights(FRONT_TENANT, Role.ADMIN, "cluster")
PARTS = 4


def hop_authorization(key: str, rights: TokenRights = OWN_RIGHTS) -> str:
    """Return the ``Authorization`` header with which a replica, or the front's private address, takes a request."""
    return f"Bearer {key}:{rights.role.value}:{quote(rights.token_id, safe='')}:{quote(rights.tenant, safe='')}"


class HopTokens(AccessTokens):
    """Takes requests that show the cluster's key, for whom they say they are. Remembers the role of each tenant."""

    def __init__(self, key: str) -> None:
        super().__init__({})
        self.public_paths |= {PROOF_PATH}
        self._key = key.encode()
        self._seen_roles: dict[str, Role] = {}

    @property
    def tenants(self) -> dict[str, Role]:
        """The tenants that have asked for something, with the role of the last request."""
        return self._seen_roles

    def rights_of(self, authorization: str | None) -> TokenRights:
        """Return what a header of :func:`hop_authorization` says. Raises Unauthorized."""
        given = (authorization or "").removeprefix("Bearer ").split(":")
        if len(given) != PARTS or not hmac.compare_digest(given[0].encode(errors="replace"), self._key):
            raise Unauthorized("this address is the cluster's own: ask its front")
        rights = TokenRights(unquote(given[3]), Role(given[1]), unquote(given[2]))
        if rights.tenant != FRONT_TENANT:
            self._seen_roles[rights.tenant] = rights.role
        return rights

    def is_valid(self, rights: TokenRights) -> bool:
        """Return True: the front looks whether a client's token is still valid."""
        return True

    def role_of(self, tenant: str) -> Role:
        """Return the role of a tenant's last request."""
        return self._seen_roles.get(tenant, Role.USER)


def require_cluster(scope: Scope) -> None:
    """Raise Forbidden if a request is not the front's, or a replica's, own."""
    if scope.get(TENANT_KEY) != FRONT_TENANT:
        raise Forbidden("this is the cluster's own")


def pinned(key: str, tenant: str, program: tuple[str, str, str]) -> str:
    """Return a reference to exactly this program (hash, name, version), which the tenant cannot make up."""
    hash_, name, version = program
    signature = hmac.new(key.encode(), "\0".join((tenant, *program)).encode(), hashlib.sha256).hexdigest()
    return "=".join((quote(name, safe=""), quote(version, safe=""), hash_, signature))


def unpinned(key: str, tenant: str, reference: str) -> tuple[str, str, str] | None:
    """Return the program of a reference that :func:`pinned` made for this tenant, None for any other reference."""
    parts = reference.split("=")
    if len(parts) != PARTS:
        return None
    program = parts[2], unquote(parts[0]), unquote(parts[1])
    expected = pinned(key, tenant, program)
    return program if hmac.compare_digest(expected.encode(), reference.encode(errors="replace")) else None
