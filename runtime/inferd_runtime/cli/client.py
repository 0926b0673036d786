"""Where the command line's server is. What only asks one thing does so with blocking HTTP from the standard library, which starts
faster than any client; what has to do with a run goes on with :class:`inferd.Client`.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from inferd.protocol import InternalError, InvalidRequest, Unavailable
from inferd.transport.answers import UPLOAD_TIMEOUT_S, error_in, fields_of, json_of, untrusted
from inferd_runtime.settings.settings import Settings

if TYPE_CHECKING:
    from inferd.client import Client

SERVER_FILE = "server.json"
TOKEN_FILE = "token"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
TIMEOUT_SECONDS = 30.0
MAX_ANSWER = 256 << 20
"""Bytes, as of :mod:`inferd.client.http_link`."""


@dataclass(frozen=True)
class Server:
    """Where a server is, and the token for it."""

    url: str
    token: str | None
    ca: Path | None = None
    """Certificates to trust instead of the system's."""

    @classmethod
    def of(cls, settings: Settings) -> Server:
        """Return the server that the settings name: ``url``, else this user's own one, else ``host`` and ``port``.

        The token in the state directory is this machine's server's: it is not sent to another one.
        """
        announced = _announced_url(settings)
        url = (settings.url or announced or f"http://{settings.host}:{settings.port}").rstrip("/")
        own = url == announced or _hostname(url) in LOOPBACK
        return cls(url, settings.token or (_read(settings, TOKEN_FILE) if own else None), settings.ca)

    def get(self, path: str) -> Any:
        """Return the JSON that the server answers. Raises the error that it sends, and Unavailable."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: Any = None) -> Any:
        """Send JSON; see :meth:`get`."""
        return self._exchange("POST", path, body)

    def upload(self, body: Any) -> Any:
        """Send a program, whose packages the server may have to find first; see :meth:`get`."""
        return self._exchange("POST", "/v1/programs", body, UPLOAD_TIMEOUT_S)

    def delete(self, path: str) -> Any:
        """Have something removed; see :meth:`get`."""
        return self._exchange("DELETE", path, None)

    def client(self) -> Client:
        """Return a client of runs."""
        # Not at the top: what only asks one thing starts without it.
        from inferd.client import Client

        return Client(self.url, self.token, ca=None if self.ca is None else str(self.ca))

    def _exchange(self, method: str, path: str, body: Any, seconds: float = TIMEOUT_SECONDS) -> Any:
        connection = self._connect(seconds)
        try:
            response = self._request(connection, method, path, body)
            return _parsed(self.url, _read_all(self.url, response))
        finally:
            connection.close()

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        try:
            parts = urlsplit(self.url)
            scheme, host, port = (
                {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme),
                parts.hostname,
                parts.port,
            )
        except ValueError:
            scheme, host, port = "", None, None
        if scheme not in ("http", "https") or not host:
            raise InvalidRequest(f"{self.url!r} is no server's address: expected http://HOST:PORT")
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=seconds)
        return http.client.HTTPSConnection(host, port, timeout=seconds, context=self._trusted())

    def _trusted(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise InvalidRequest(f"{self.ca} is no file of certificates: {error}") from None

    def _request(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        target = urlsplit(self.url).path + path  # a proxy may have the server under a path of its own
        _guard(self.url, lambda: connection.request(method, target, data, headers))
        response: http.client.HTTPResponse = _guard(self.url, connection.getresponse)
        if response.status >= 400:
            raise _error_of(self.url, response)
        return response


def _guard(url: str, action: Any) -> Any:
    """Call ``action`` on a connection. Raises Unavailable for every network error."""
    try:
        return action()
    except ConnectionRefusedError:
        raise Unavailable(f"no runtime answers at {url}; start one with `inferd serve`") from None
    except (OSError, http.client.HTTPException) as error:
        kind = "timed out" if isinstance(error, socket.timeout) else str(error) or type(error).__name__
        raise Unavailable(f"the connection to {url} failed: {kind}{untrusted(error)}") from None
    except ValueError:  # its message repeats the header
        raise InvalidRequest("the token, or the server's address, has characters that no request has") from None


def _read_all(url: str, response: http.client.HTTPResponse) -> bytes:
    text: bytes = _guard(url, lambda: response.read(MAX_ANSWER + 1))
    if len(text) > MAX_ANSWER:
        raise InternalError(f"{url} sent an answer of more than {MAX_ANSWER >> 20} MiB")
    return text


def _parsed(url: str, text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)  # which takes no NaN and no halves of surrogate pairs, either
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unavailable(f"{url} answered something that is no JSON: is it an inferd server?") from None


def _error_of(url: str, response: http.client.HTTPResponse) -> Exception:
    text = _read_all(url, response)
    try:
        return error_in(fields_of(json_of(text), error=dict)["error"])
    except InternalError:
        return InternalError(f"{url} answered {response.status} with something that is no inferd error")


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _announced_url(settings: Settings) -> str | None:
    text = _read(settings, SERVER_FILE)
    try:
        return None if text is None else str(json.loads(text)["url"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _read(settings: Settings, name: str) -> str | None:
    try:
        return (settings.state_dir / name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
