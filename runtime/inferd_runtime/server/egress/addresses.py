"""Which addresses may be connected to for a program. Pure; asked about the very address that is connected to, after DNS.

Sources: the IANA registries of special-purpose addresses for IPv4 and IPv6, as of 2025. Of IPv6 only global unicast (2000::/3)
is left, without what carries an IPv4 address (6to4, Teredo): mapped addresses and NAT64 lie outside of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network
SPECIAL_V4 = {
    ipaddress.IPv4Network(network): what
    for network, what in (
        ("0.0.0.0/8", "of this network"), ("10.0.0.0/8", "private"), ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "of this machine"), ("169.254.0.0/16", "link-local"), ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"), ("192.0.2.0/24", "for documentation"), ("192.31.196.0/24", "reserved"),
        ("192.52.193.0/24", "reserved"), ("192.88.99.0/24", "a 6to4 relay's"), ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved"), ("198.18.0.0/15", "for benchmarks"), ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"), ("224.0.0.0/4", "multicast"), ("240.0.0.0/4", "reserved"),
    )
}  # fmt: skip
GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
SPECIAL_V6 = {
    ipaddress.IPv6Network(network): what
    for network, what in (
        ("2001::/23", "reserved, or Teredo's"), ("2001:db8::/32", "for documentation"), ("2002::/16", "a 6to4 address"),
        ("2620:4f:8000::/48", "reserved"), ("3fff::/20", "for documentation"),
    )
}  # fmt: skip
NEVER = tuple(
    ipaddress.ip_network(network)
    for network in ("0.0.0.0/8", "224.0.0.0/4", "255.255.255.255/32", "::/128", "ff00::/8", "::ffff:0:0/96")
)
"""What no operator can allow: an address that means "here", many at once, or an IPv4 address in disguise."""


def refusal(address: IPAddress, allowed: Iterable[IPNetwork] = ()) -> str | None:
    """Return why an address must not be connected to, in words; None if it may be.

    ``allowed``: ranges that the operator allows although they are not public.
    """
    if any(_within(address, network) for network in NEVER):
        return "not one host's address"
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None:
        return "of one network interface"
    if any(_within(address, network) for network in allowed):
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return next((what for network, what in SPECIAL_V4.items() if address in network), None)
    if address not in GLOBAL_V6:
        return "not a public IPv6 address"
    return next((what for network, what in SPECIAL_V6.items() if address in network), None)


def _within(address: IPAddress, network: IPNetwork) -> bool:
    return address.version == network.version and address in network
