"""What stands in for things that the sandbox's Python has not, made of what there is."""

from __future__ import annotations

import builtins
import concurrent.futures.thread
import dbm
import hashlib
import hmac
import io
import json
import os
import sqlite3
import struct
import time
import zoneinfo
from collections.abc import Callable
from functools import partial
from typing import Any

from inferd.protocol import EndOfMessages, ReceiveMessage

NO_DATABASES = "a program's databases are in its memory: sqlite3.connect(':memory:')"
UTC_ZONE = (
    2 * (b"TZif2" + bytes(15) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + struct.pack(">lBB", 0, 0, 0) + b"UTC\0")
    + b"\nUTC0\n"
)
"""A time zone's file (RFC 9636): a header and one kind of local time, in both versions of the format, and a rule."""
NO_MORE_MESSAGES = "a program's input is the messages of its launcher, and there are no more"
NOBODY = 65534
"""The user whom ``os`` tells of."""


def install(ask: Callable[[Any], Any]) -> None:
    """Put them into their places. ``ask`` sends a request, and blocks until its reply."""
    builtins.input = _input(ask)
    concurrent.futures.ThreadPoolExecutor = AtOnceExecutor  # type: ignore[assignment, misc]
    concurrent.futures.thread.ThreadPoolExecutor = AtOnceExecutor  # type: ignore[assignment, misc]
    dbm._names = ["dbm.dumb"]  # type: ignore[attr-defined]  # the others open files in C
    hashlib.pbkdf2_hmac = _pbkdf2_hmac
    sqlite3.connect = _connect(sqlite3.connect)
    zoneinfo._common.load_tzdata = _load_zone(zoneinfo._common.load_tzdata)  # type: ignore[assignment]
    for name in ("getuid", "geteuid", "getgid", "getegid"):  # packages ask for theirs when they are imported
        setattr(os, name, lambda: NOBODY)
    for name in ("thread_time", "thread_time_ns"):  # there is one thread
        setattr(time, name, getattr(time, name.replace("thread", "process")))


def _input(ask: Callable[[Any], Any]) -> Callable[..., str]:
    def guest_input(prompt: object = "", /) -> str:
        """Write the prompt, and return the launcher's next message once it comes; one that is no text as JSON.

        Raises EOFError where the launcher sends no more. The program's other tasks stand still meanwhile.
        """
        print(prompt, end="", flush=True)
        try:
            message = ask(ReceiveMessage()).message
        except EndOfMessages:
            raise EOFError(NO_MORE_MESSAGES) from None
        return message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)

    return guest_input


class AtOnceExecutor(concurrent.futures.Executor):
    """In the place of ``ThreadPoolExecutor``: runs each function when it is submitted, as there is no thread for it."""

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._initialize = None if initializer is None else partial(initializer, *initargs)
        self._open = True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Run a function. Returns a future that is done."""
        if not self._open:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._initialize is not None:
            self._initialize()
            self._initialize = None
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever the function raises is its caller's
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more."""
        self._open = False


def _connect(connect: Callable[..., Any]) -> Callable[..., Any]:
    def in_memory(database: Any, *positional: Any, **named: Any) -> Any:
        """Connect to a database in memory."""
        if database not in ("", ":memory:") and not (named.get("uri") and "mode=memory" in str(database)):
            raise sqlite3.OperationalError(f"{NO_DATABASES}: {database!r}")
        return connect(database, *positional, **named)

    return in_memory


def _load_zone(load: Callable[[str], Any]) -> Callable[[str], Any]:
    def load_zone(key: str) -> Any:
        """Return the file of a time zone: that of UTC is there in any case."""
        try:
            return load(key)
        except zoneinfo.ZoneInfoNotFoundError:
            if key != "UTC":
                raise
            return io.BytesIO(UTC_ZONE)

    return load_zone


def _pbkdf2_hmac(hash_name: str, password: Any, salt: Any, iterations: int, dklen: int | None = None) -> bytes:
    """Return the key of RFC 8018, 5.2, as OpenSSL's function of ``hashlib`` does."""
    first = hmac.digest(password, salt, hash_name)
    wanted = len(first) if dklen is None else dklen
    if iterations < 1 or wanted < 1:
        raise ValueError("iterations and dklen must be at least 1")
    key = b""
    while len(key) < wanted:
        block = hmac.digest(password, bytes(salt) + (len(key) // len(first) + 1).to_bytes(4, "big"), hash_name)
        mixed = int.from_bytes(block, "big")
        for _ in range(iterations - 1):
            block = hmac.digest(password, block, hash_name)
            mixed ^= int.from_bytes(block, "big")
        key += mixed.to_bytes(len(first), "big")
    return key[:wanted]
