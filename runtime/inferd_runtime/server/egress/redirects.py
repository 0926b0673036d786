"""Where a redirect leads, and what is sent there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urljoin

from inferd.protocol import InvalidRequest, shown
from inferd_runtime.server.egress.messages import HeaderLine
from inferd_runtime.server.egress.origins import REFUSED_IN_URL, WebAddress, read_address

STATUSES = frozenset({301, 302, 303, 307, 308})
PERSONAL = frozenset({"authorization", "cookie", "x-api-key", "api-key", "x-auth-token"})
"""Headers that say who somebody is: they stay at the origin that they were given for."""
OF_BODY = frozenset({"content-type", "content-encoding", "content-language", "content-location"})


@dataclass(frozen=True)
class Hop:
    """One request of a fetch: to where, how, with which headers; ``with_body``: whether the body goes along."""

    address: WebAddress
    method: str
    headers: tuple[HeaderLine, ...]
    with_body: bool


def location_of(status: int, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """Return where a response redirects to; None if it does not."""
    if status not in STATUSES:
        return None
    return next((value.decode("latin-1") for name, value in headers if name.lower() == b"location"), None)


def next_hop(hop: Hop, status: int, location: str) -> Hop:
    """Return the request that a redirect asks for. Raises InvalidRequest for a location that is no URL.

    To another origin go no secrets and no headers that say who somebody is, and they do not come back with a later redirect.
    """
    address = _joined(hop.address, location)
    headers = hop.headers
    if address.origin != hop.address.origin:
        headers = tuple(one for one in headers if not one.secret and one.name.lower() not in PERSONAL)
    rewritten = status == 303 and hop.method not in ("GET", "HEAD")
    rewritten = rewritten or (status in (301, 302) and hop.method == "POST")
    if rewritten:
        headers = tuple(one for one in headers if one.name.lower() not in OF_BODY)
        return Hop(address, "GET", headers, with_body=False)
    return replace(hop, address=address, headers=headers)


def _joined(base: WebAddress, location: str) -> WebAddress:
    if not REFUSED_IN_URL.search(location):
        try:
            return read_address(urljoin(str(base), location))
        except ValueError:
            pass
    raise InvalidRequest(f"the server redirects to {shown(location)}, which is no URL")
