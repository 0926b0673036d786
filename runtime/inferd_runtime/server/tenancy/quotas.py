"""What one tenant may have at a time, keep, and start per minute: the only list of these numbers.

A tenant's quotas are its role's, changed by what the operator says for the role (``--quota user,runs=32``), changed by what
the operator says for the tenant (``--quota tenant:ann,runs=8``, or its line of the tokens file).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from inferd.protocol import InvalidRequest, LimitExceeded

TENANT_PREFIX = "tenant:"
MOST = 1e15
"""The highest value of a quota: far above anything real, and exact as a float."""
NOTHING = -1
"""A quota that allows nothing, as 0 means no limit: a replica's share may be that small."""


class Role(StrEnum):
    """What a token allows. An admin also sees figures of all tenants."""

    ADMIN = "admin"
    USER = "user"


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """The limits of one tenant, over all of its tokens; 0 means no limit. The defaults are a user's.

    ``cpu_s`` and ``memory_mb`` are the most that one run may ask for. ``weight`` is the tenant's share of the engine's time,
    relative to the others'; it and ``kv_pages`` reach the engine when that starts.
    """

    runs: int = 128
    """Runs that a worker has."""
    waiting: int = 64
    """Runs that wait for a worker."""
    kept_runs: int = 500
    """Finished runs that are remembered."""
    kept_bytes: int = 32 << 20
    """Bytes that are kept of all runs: arguments, events, results, errors."""
    sockets: int = 64
    """Open sessions: of scripts, and of requests of LLM clients. A request beyond them waits for one."""
    connections: int = 256
    """Open connections that have shown one of the tenant's tokens, sockets included."""
    programs: int = 500
    """Uploaded programs."""
    stored_bytes: int = 1 << 30
    """Bytes of uploaded programs and of runs on disk."""
    launches_per_minute: int = 1200
    tokens_per_minute: int = 0
    fetches: int = 64
    """Requests to servers elsewhere that are open."""
    fetches_per_minute: int = 600
    kv_pages: int = 0
    weight: float = 1.0
    cpu_s: float = 0.0
    memory_mb: int = 0

    def check(self, name: str, value: float, what: str) -> None:
        """Raise LimitExceeded if ``value`` is above the quota ``name``. ``what``: words for that many, behind the number."""
        most = getattr(self, name)
        if most and value > most:
            raise quota_exceeded(name, most, f"the tenant may have {most:g} {what}")


ADMIN_QUOTAS = Quotas(
    runs=4096, waiting=1024, kept_runs=1000, kept_bytes=64 << 20, sockets=512, connections=1024, programs=10_000,
    stored_bytes=10 << 30, launches_per_minute=0,
)  # fmt: skip
"""A server without tokens of its own making has one tenant, its operator: an admin."""
ROLE_QUOTAS: Mapping[Role, Quotas] = {Role.ADMIN: ADMIN_QUOTAS, Role.USER: Quotas()}
QUOTA_FIELDS: Mapping[str, type] = {one.name: type(one.default) for one in fields(Quotas)}
QuotasOf = Callable[[str], Quotas]
"""The quotas of a tenant, by its name."""


def same_for_all(quotas: Quotas) -> QuotasOf:
    """Return a function that gives every tenant the same quotas."""
    return lambda tenant: quotas


def quota_exceeded(name: str, most: float, message: str, retry_after_s: float | None = None) -> LimitExceeded:
    """Return the error of a tenant that reached a quota. ``retry_after_s``: when the same request may succeed."""
    error = LimitExceeded(message, limit=name, value=most, raise_with=f"the server's --quota (or tokens file): {name}")
    if retry_after_s is not None:
        error.detail["retry_after_s"] = round(retry_after_s, 3)
    return error


@dataclass(frozen=True)
class QuotaTable:
    """What the operator changed: for roles, and for single tenants."""

    roles: Mapping[Role, Mapping[str, float]] = field(default_factory=dict)
    tenants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, tenant: str, role: Role) -> Quotas:
        """Return the quotas of a tenant with this role."""
        changed: Mapping[str, float] = {**self.roles.get(role, {}), **self.tenants.get(tenant, {})}
        typed = {name: QUOTA_FIELDS[name](value) for name, value in changed.items()}
        return replace(ROLE_QUOTAS[role], **typed)

    def over(self, tenants: Mapping[str, Mapping[str, float]]) -> QuotaTable:
        """Return this table with further changes for single tenants; the table's own win."""
        names = tenants.keys() | self.tenants.keys()
        return QuotaTable(self.roles, {n: {**tenants.get(n, {}), **self.tenants.get(n, {})} for n in names})


def read_quotas(lines: Iterable[str]) -> QuotaTable:
    """Read the settings ``quota``: each ``ROLE,name=value,...`` or ``tenant:NAME,name=value,...``. Raises InvalidRequest."""
    roles: dict[Role, dict[str, float]] = {}
    tenants: dict[str, dict[str, float]] = {}
    for line in lines:
        who, *options = [part.strip() for part in line.split(",")]
        changes = dict(read_quota(option) for option in options)
        if who.startswith(TENANT_PREFIX):
            tenants.setdefault(who.removeprefix(TENANT_PREFIX), {}).update(changes)
        elif who in tuple(Role):
            roles.setdefault(Role(who), {}).update(changes)
        else:
            raise InvalidRequest(f"quota: expected admin, user or tenant:NAME before the first comma, got {who!r}")
    return QuotaTable(roles, tenants)


def read_quota(text: str) -> tuple[str, float]:
    """Return the name and value of ``name=value``. Raises InvalidRequest that names what is wrong."""
    name, _, value = text.partition("=")
    if name not in QUOTA_FIELDS:
        raise InvalidRequest(f"quota: there is no {name!r}; there are {', '.join(QUOTA_FIELDS)}")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    whole = QUOTA_FIELDS[name] is int
    low_enough = 0 <= number <= MOST and (number > 0 or name != "weight")
    if not low_enough or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise InvalidRequest(f"quota: {name} must be {kind}, not negative (weight: above 0), got {value!r}")
    return name, number
