"""Which origins each tenant's programs may reach, as the operator says in the settings ``http_allow``. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inferd.protocol import Forbidden, InvalidRequest, shown
from inferd_runtime.server.egress.addresses import IPNetwork
from inferd_runtime.server.egress.origins import Origin, OriginPattern, read_pattern
from inferd_runtime.server.tenancy.quotas import TENANT_PREFIX, Role

EVERYBODY = "all"
PRIVATE_PREFIX = "private="


@dataclass(frozen=True)
class EgressRules:
    """What one tenant's programs may reach: origins, and ranges of addresses that are allowed though they are not public."""

    patterns: tuple[OriginPattern, ...] = ()
    private: tuple[IPNetwork, ...] = ()

    def __add__(self, other: EgressRules) -> EgressRules:
        return EgressRules(self.patterns + other.patterns, self.private + other.private)

    def check(self, origin: Origin, declared: Sequence[OriginPattern] | None = None) -> None:
        """Raise Forbidden if the operator, or the program's own manifest (None: there is none), does not name an origin."""
        if not self.patterns:
            raise Forbidden(
                "no program of this tenant may fetch from anywhere: the server's --http-allow names nothing"
            )
        if not any(pattern.matches(origin) for pattern in self.patterns):
            raise Forbidden(f"the server's --http-allow does not let this tenant's programs reach {origin}")
        if declared is not None and not any(pattern.matches(origin) for pattern in declared):
            raise Forbidden(f"the program's manifest does not name {origin}: add it to `http` in [tool.inferd]")


@dataclass(frozen=True)
class EgressTable:
    """The operator's lines: for everybody, for roles, for single tenants. What a tenant gets is all of them together."""

    everybody: EgressRules = EgressRules()
    roles: Mapping[Role, EgressRules] = field(default_factory=dict)
    tenants: Mapping[str, EgressRules] = field(default_factory=dict)

    def of(self, tenant: str, role: Role) -> EgressRules:
        """Return the rules for a tenant with this role."""
        return self.everybody + self.roles.get(role, EgressRules()) + self.tenants.get(tenant, EgressRules())


def read_rules(lines: Iterable[str]) -> EgressTable:
    """Read ``WHO,ORIGIN,...,private=RANGE,...``; WHO is all, admin, user or tenant:NAME. Raises InvalidRequest."""
    everybody = EgressRules()
    roles: dict[Role, EgressRules] = {}
    tenants: dict[str, EgressRules] = {}
    for line in lines:
        who, *entries = [part.strip() for part in line.split(",")]
        rules = _read_entries(entries)
        if who == EVERYBODY:
            everybody += rules
        elif who in tuple(Role):
            roles[Role(who)] = roles.get(Role(who), EgressRules()) + rules
        elif who.startswith(TENANT_PREFIX) and who != TENANT_PREFIX:
            name = who.removeprefix(TENANT_PREFIX)
            tenants[name] = tenants.get(name, EgressRules()) + rules
        else:
            raise InvalidRequest(f"http_allow: expected all, admin, user or tenant:NAME first, got {shown(who)}")
    return EgressTable(everybody, roles, tenants)


def read_range(text: str) -> IPNetwork:
    """Return a range of addresses, as 10.0.0.0/8. Raises InvalidRequest."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise InvalidRequest(f"{shown(text)} is no range of addresses: {error}") from None


def _read_entries(entries: Sequence[str]) -> EgressRules:
    if not entries:
        raise InvalidRequest("http_allow: expected an origin behind the first comma, as api.example.com")
    ranges = [entry.removeprefix(PRIVATE_PREFIX) for entry in entries if entry.startswith(PRIVATE_PREFIX)]
    patterns = [entry for entry in entries if not entry.startswith(PRIVATE_PREFIX)]
    return EgressRules(tuple(map(read_pattern, patterns)), tuple(map(read_range, ranges)))
