"""The origin that a URL names, and patterns of origins from operators and programs. Pure, and strict: what could be read in
two ways is refused, because the code that connects must read it as the code that checked it did.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

import idna

from inferd.protocol import InvalidRequest, shown

PORTS = {"http": 80, "https": 443}
LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
LIKE_A_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<rest>[^#]*)(#.*)?")
AUTHORITY = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@]+)(:(?P<port>[0-9]{1,5}))?")
REFUSED_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
LOCAL_NAMES = ("localhost", "local", "localdomain")
SAFE_IN_TARGET = "/?:@!$&'()*+,;=-._~%[]|{}^`\"<>"
MAX_NAME = 253


@dataclass(frozen=True)
class Origin:
    """The server that a URL names: ``host`` is a name in small ASCII letters, or an address (IPv6 without brackets)."""

    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> str:
        """The host as a ``Host`` header says it, with the port where that is not the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"


@dataclass(frozen=True)
class WebAddress:
    """A URL that was read: ``target`` is its path and query in ASCII, as a request line has it. A fragment is dropped."""

    origin: Origin
    target: str

    @property
    def path(self) -> str:
        """The path alone: what may stand in a log."""
        return self.target.partition("?")[0]

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"


@dataclass(frozen=True)
class OriginPattern:
    """Origins that are allowed: of one scheme and port, and one host, all below a name (``*.example.com``), or any (``*``)."""

    scheme: str
    host: str
    port: int

    def matches(self, origin: Origin) -> bool:
        """Return True if the pattern allows an origin."""
        if (self.scheme, self.port) != (origin.scheme, origin.port):
            return False
        if self.host == "*":
            return True
        if self.host.startswith("*."):
            return origin.host.endswith(self.host[1:])
        return origin.host == self.host

    def __str__(self) -> str:
        return str(Origin(self.scheme, self.host, self.port))


def read_address(text: str) -> WebAddress:
    """Return what a URL means. Raises InvalidRequest, which names what is wrong with it."""
    if REFUSED_IN_URL.search(text):
        raise InvalidRequest(f"the URL {shown(text)} has white space, a control character or a backslash")
    match = URL.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"the URL {shown(text)} must begin with http:// or https:// and a host")
    origin = _read_origin(match["scheme"].lower(), match["authority"], text)
    target = quote(match["rest"], safe=SAFE_IN_TARGET)
    return WebAddress(origin, target if target.startswith("/") else f"/{target}")


@lru_cache(maxsize=1024)
def read_pattern(text: str) -> OriginPattern:
    """Return the pattern of ``[http://|https://]HOST[:PORT]``; the scheme is https and the port the scheme's own where nothing
    is said. Raises InvalidRequest.
    """
    scheme, separator, authority = text.rpartition("://")
    wild = authority.startswith("*")
    if authority == "*" or authority.startswith("*:"):
        stand_in, given = f"any.example{authority[1:]}", "*"
    elif authority.startswith("*."):
        stand_in, given = authority[2:], "*."
    else:
        stand_in, given = authority, ""
    if (separator and not scheme) or "/" in authority or "?" in authority or "#" in authority:
        raise InvalidRequest(f"{shown(text)} names no origin: write HOST, HOST:PORT or http://HOST:PORT")
    origin = _read_origin(scheme.lower() or "https", stand_in, text)
    if given == "*.":
        if is_address(origin.host):
            raise InvalidRequest(f"{shown(text)}: a wildcard stands before a name, not before an address")
        return OriginPattern(origin.scheme, f"*.{origin.host}", origin.port)
    return OriginPattern(origin.scheme, "*" if wild else origin.host, origin.port)


def is_address(host: str) -> bool:
    """Return True if a host is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _read_origin(scheme: str, authority: str, text: str) -> Origin:
    if scheme not in PORTS:
        raise InvalidRequest(f"the scheme of {shown(text)} is not http or https")
    match = AUTHORITY.fullmatch(authority)
    if match is None:
        raise InvalidRequest(f"{shown(text)}: expected a host, or a host and a port, without user names")
    port = int(match["port"]) if match["port"] else PORTS[scheme]
    if not 0 < port < 65536:
        raise InvalidRequest(f"{shown(text)}: there is no port {port}")
    host = match["host"]
    return Origin(scheme, _ipv6(host, text) if host.startswith("[") else _name(host, text), port)


def _ipv6(host: str, text: str) -> str:
    try:
        return str(ipaddress.IPv6Address(host[1:-1]))
    except ValueError:
        raise InvalidRequest(f"{shown(text)}: {shown(host)} is no IPv6 address") from None


def _name(host: str, text: str) -> str:
    """Return a name in ASCII, or a dotted IPv4 address. Other spellings of addresses are refused."""
    name = _ascii(host, text)
    labels = name.split(".")
    if LIKE_A_NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise InvalidRequest(f"{shown(text)}: an IPv4 address is four decimal numbers with dots between") from None
    if len(name) > MAX_NAME or not all(LABEL.fullmatch(label) for label in labels):
        raise InvalidRequest(f"{shown(text)}: {shown(host)} is no host's name")
    if labels[-1] in LOCAL_NAMES:
        raise InvalidRequest(f"{shown(text)}: names of this machine are refused; an operator may allow an address")
    return name


def _ascii(host: str, text: str) -> str:
    if host.isascii():
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode().lower()
    except idna.IDNAError:
        raise InvalidRequest(f"{shown(text)}: {shown(host)} is no host's name") from None
