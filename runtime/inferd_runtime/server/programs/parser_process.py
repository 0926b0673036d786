"""One process that parses uploads, from the gateway's side: sends uploads, keeps a deadline, and checks every answer again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time

import msgspec

from inferd.protocol import ErrorInfo, InferdError, LimitExceeded, ProgramError, ProgramSyntaxError, Unavailable
from inferd_runtime.isolation.kinds import ChildKind
from inferd_runtime.isolation.order import Launch, ResourceLimits
from inferd_runtime.server.programs.bundles import check_bundle
from inferd_runtime.server.programs.parser_messages import (
    KILLED,
    MAX_ANSWER,
    PARSED,
    REFUSED,
    TOO_LATE,
    TOO_SLOW,
    ParsedUpload,
    ParseLimits,
    read_frame,
    write_frame,
)

MODULE = "inferd_runtime.server.programs.parser_child"
THREADS, FILES = 64, 64
START_SECONDS = 30.0
"""How long the process may take to start, which on a busy machine is not the upload's fault."""
REFUSALS = ("program", "client.invalid", "limit")
ENDED = "the process that parses programs ended: upload again"
MAX_MESSAGE = 2000
MAX_DETAIL = 16


class ParserProcess:
    """A child that parses one upload at a time. Belongs to one thread at a time; ``kill`` may come from any."""

    def __init__(self, limits: ParseLimits, target: str = MODULE) -> None:
        """Start the child, without waiting for it. It ends when this end of the socket is closed, however that comes."""
        self._limits = limits
        bounds = ResourceLimits(threads=THREADS, open_files=FILES)
        launch = Launch(target, ChildKind.PARSER, settings=limits, limits=bounds, tethered=False)
        self._link, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                launch.command, env=launch.environment, start_new_session=True,
                stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        self._deadline = time.monotonic() + START_SECONDS
        self._link.sendall(launch.document())

    @property
    def alive(self) -> bool:
        """True while the child has not ended."""
        return self._child.poll() is None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def parse(self, upload: bytes) -> ParsedUpload:
        """Return the parts of an upload's JSON, checked again here.

        Raises what parsing raises, LimitExceeded for what takes too much, ProgramSyntaxError for what ends its fork by
        itself, and Unavailable when it came too late, somebody killed it, or there is no answer at all: then the child has ended.
        """
        self._deadline = max(self._deadline, time.monotonic() + self._limits.wall_s + 1)
        try:
            write_frame(self._send, upload)
            answer = read_frame(self._receive, MAX_ANSWER + 1)
        except (OSError, EOFError):
            self.close()
            raise Unavailable(ENDED) from None
        kind, value = answer[:1], answer[1:]
        if kind == PARSED:
            return _checked(value)
        raise _refusal(value) if kind == REFUSED else self._ended(kind)

    def kill(self) -> None:
        """End the child and what it forked."""
        if self.alive:
            os.killpg(self._child.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the child and wait for that."""
        self.kill()
        self._child.wait()
        self._link.close()

    def _send(self, data: bytes) -> None:
        self._link.settimeout(max(0.01, self._deadline - time.monotonic()))
        self._link.sendall(data)

    def _receive(self, count: int) -> bytes:
        self._link.settimeout(max(0.01, self._deadline - time.monotonic()))
        return self._link.recv(count)

    def _ended(self, kind: bytes) -> InferdError:
        if kind == TOO_SLOW:
            return LimitExceeded(
                f"parsing this program takes more than {self._limits.cpu_s:g} s", limit="parse_cpu_s",
                value=self._limits.cpu_s, raise_with="a smaller or simpler program",
            )  # fmt: skip
        if kind == TOO_LATE:
            return Unavailable(
                f"this program was not parsed within {self._limits.wall_s:g} s: the machine is busy, try again"
            )
        if kind == KILLED:
            return Unavailable(ENDED)
        return ProgramSyntaxError("parsing this program ended the parser: it is nested too deeply, or too large")


def _checked(value: bytes) -> ParsedUpload:
    """Return a child's answer. Raises ProgramSyntaxError for an invalid one, and what :func:`check_bundle` raises."""
    try:
        parsed = msgspec.json.decode(value, type=ParsedUpload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ProgramSyntaxError("the program cannot be parsed: its parser answered with nonsense") from None
    check_bundle(parsed.bundle)
    return parsed


def _refusal(value: bytes) -> InferdError:
    """Return the error that a child answered with: one of those that an upload can have, and of bounded size."""
    try:
        info = msgspec.json.decode(value, type=ErrorInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ProgramSyntaxError("the program cannot be parsed: its parser answered with nonsense")
    if not info.code.startswith(REFUSALS):
        return ProgramError("the program cannot be parsed")
    short = {key[:100]: one for key, one in list(info.detail.items())[:MAX_DETAIL] if _is_short(one)}
    return ErrorInfo(info.code, info.message[:MAX_MESSAGE], short).to_exception()


def _is_short(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) < 1 << 63
    return value is None or isinstance(value, float) or (isinstance(value, str) and len(value) <= MAX_MESSAGE)
