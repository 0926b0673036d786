"""Where the gateway listens, and how: addresses, TLS, and what is refused as unsafe."""

from __future__ import annotations

import logging
import socket
import ssl
import stat
from pathlib import Path

from inferd.protocol import InvalidRequest, Unavailable
from inferd_runtime.draft_models.options import is_loopback
from inferd_runtime.server.tokens_file import OTHERS
from inferd_runtime.settings.settings import Settings

log = logging.getLogger("inferd.gateway")
BACKLOG = 1024
SEND_BUFFER = 256 << 10
"""Bytes that the kernel keeps for a client that does not read; left to itself it grows to megabytes for each."""


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the context for the certificate of the settings, None without one.

    TLS 1.2 or later, with Python's own choice of ciphers. Raises InvalidRequest for files that do not serve, and for a key that
    others may read.
    """
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidRequest("--tls-cert and --tls-key belong together: one of them is missing")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        _refuse_open_key(key)
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise InvalidRequest(f"the certificate {cert} with the key {key} cannot be used: {error}") from None
    return context


class RenewedTls:
    """The context of the settings' certificate: a new one once the files have changed, so that a renewed certificate needs no
    restart. Files that do not serve, as while they are being written, are told in the log, and the old ones stay.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._context, self._seen = tls_context(settings), self._files()

    @property
    def is_spoken(self) -> bool:
        """Whether there is a certificate at all."""
        return self._context is not None

    def context(self) -> ssl.SSLContext | None:
        """Return the context for a connection that has just come; None where no TLS is spoken. Opens two files at most."""
        files = self._files()
        if files != self._seen:
            self._seen = files
            try:
                if None in files:
                    raise InvalidRequest("the certificate or its key is no file any more")
                self._context = tls_context(self._settings)
                log.info("the certificate %s was renewed", self._settings.tls_cert)
            except InvalidRequest as error:
                log.error("%s: the one before stays", error.message)
        return self._context

    def _files(self) -> list[tuple[int, int] | None]:
        return [_version(path) for path in (self._settings.tls_cert, self._settings.tls_key) if path is not None]


def _version(path: Path) -> tuple[int, int] | None:
    """Return what changes with a file; None for one that is not there, or is none: reading a pipe might never end."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _refuse_open_key(key: Path) -> None:
    mode = stat.S_IMODE(key.stat().st_mode)
    if mode & OTHERS:
        raise InvalidRequest(f"the key {key} is open to other users (mode {mode:o}): chmod 600 {key}")


def _no_password() -> str:
    """Refuse a key with a password: OpenSSL would ask for it on the terminal."""
    raise ValueError("the key has a password")


def check_exposure(settings: Settings) -> None:
    """Raise InvalidRequest if tokens and texts would cross a network in the clear without anybody having asked for it."""
    if settings.insecure or settings.tls_cert is not None or is_loopback(settings.host):
        return
    raise InvalidRequest(
        f"{settings.host} can be reached from other machines, and without TLS tokens and texts cross the network in the "
        "clear: give --tls-cert and --tls-key, or --insecure where a proxy in front speaks TLS"
    )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises Unavailable when the address is in use.

    The protocol is named, because asyncio sets TCP_NODELAY only for sockets that say they are TCP: without it, an answer
    on a kept connection waits for the client's delayed acknowledgement, some 40 ms.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    listener.listen(BACKLOG)
    return listener


def url_of(host: str, port: int, tls: bool) -> str:
    """Return the address for clients on this machine, without a slash at its end."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{reachable}]' if ':' in reachable else reachable}:{port}"
