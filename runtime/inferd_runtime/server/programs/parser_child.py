"""The process that parses uploads; :mod:`inferd_runtime.server.programs.parser_process` starts it.

It never reads an upload itself: a fork waits for each one, so that nothing of one upload is left when the next one comes. The
fork parses under limits that the kernel keeps, writes its answer into a pipe, and ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import sys
from typing import NoReturn

import msgspec

from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, ProgramSyntaxError
from inferd_runtime.isolation.child import Child
from inferd_runtime.isolation.tether import die_with
from inferd_runtime.server.programs.bundles import check_bundle, check_names, describe_bundle
from inferd_runtime.server.programs.parser_messages import (
    CRASHED,
    KILLED,
    MAX_ANSWER,
    PARSED,
    REFUSED,
    TOO_LATE,
    TOO_SLOW,
    ParsedUpload,
    ParseLimits,
    StoredBody,
    read_frame,
    write_frame,
)

MAX_REQUEST = 1 << 30
"""The gateway bounds what it takes from clients; this only keeps a frame a frame."""
QUICK_SECONDS = 0.1
REST_SECONDS = 0.02
"""How long after an answer the next fork is made: the upload that was answered goes on first."""
REHEARSAL = b'{"files": {"main.py": "async def main(x: int = 1) -> str: ..."}}'
BEHIND = 5
"""How much higher the nice value of a slow upload's parser is. A lower value than this process's own takes root's rights."""
LAST = 19
PAGE = resource.getpagesize()
CLOCKS: dict[int, bytes] = {signal.SIGPROF: TOO_SLOW, signal.SIGXCPU: TOO_SLOW, signal.SIGALRM: TOO_LATE}
ENDS = {**CLOCKS, signal.SIGKILL: KILLED}
"""What a signal that ended a fork means. None of its limits is SIGKILL's: the system had no memory, or somebody ended it."""


def child_main(child: Child) -> int:
    """Answer until the gateway closes its end of the socket that is this process's standard input. Returns the exit code."""
    limits = child.settings(ParseLimits)
    link = socket.socket(fileno=os.dup(0))
    slow = min(os.getpriority(os.PRIO_PROCESS, 0) + BEHIND, LAST)
    _parsed(REHEARSAL, limits)
    gc.freeze()  # what is loaded stays shared with the forks
    child.seal()
    while True:
        with contextlib.closing(Fork(limits, link)) as parser:
            try:
                upload = read_frame(sys.stdin.buffer.read, MAX_REQUEST)
            except EOFError:
                return 0
            write_frame(link.sendall, parser.answer(upload, slow))
        select.select([0], [], [], REST_SECONDS)


class Fork:
    """A fork that waits for one upload, so that the upload does not wait for it."""

    def __init__(self, limits: ParseLimits, link: socket.socket) -> None:
        """Fork. ``link`` is the gateway's, which the fork closes."""
        theirs, self._sink = os.pipe()
        self._source, answers = os.pipe()
        parent = os.getpid()
        self._ended_by: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            for handle in (self._sink, self._source, link.fileno(), 0):
                os.close(handle)
            _parse_and_exit(limits, theirs, answers, parent)
        os.close(theirs)
        os.close(answers)

    def answer(self, upload: bytes, slow: int) -> bytes:
        """Return what the fork answers to an upload, or how it ended without an answer.

        One that takes long goes on with the nice value ``slow``: it gets what others leave of the processors.
        """
        with contextlib.suppress(OSError), open(self._sink, "wb", closefd=False) as sink:  # it may have ended already
            write_frame(sink.write, upload)
        if not select.select([self._source], [], [], QUICK_SECONDS)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, self._pid, slow)
        with contextlib.suppress(EOFError):
            return read_frame(lambda count: os.read(self._source, count), MAX_ANSWER)
        return ENDS.get(self._end(), CRASHED)

    def close(self) -> None:
        """End the fork."""
        self._end()
        os.close(self._source)
        os.close(self._sink)

    def _end(self) -> int:
        """Kill the fork if it goes on, and return the number of the signal that ended it, 0 if none did."""
        if self._ended_by is None:
            os.kill(self._pid, signal.SIGKILL)
            status = os.waitpid(self._pid, 0)[1]
            self._ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        return self._ended_by


def _parse_and_exit(limits: ParseLimits, upload: int, sink: int, parent: int) -> NoReturn:
    """Run as the fork: wait for the upload, parse, write the answer, exit."""
    try:
        die_with(parent)
        _parsed(REHEARSAL, limits)  # the pages that parsing writes to are copied now
        body = read_frame(lambda count: os.read(upload, count), MAX_REQUEST)
        _limit(limits)
        with open(sink, "wb") as pipe:
            write_frame(pipe.write, _parsed(body, limits))
    finally:
        os._exit(0)  # without what the parent would do at its own end


def _limit(limits: ParseLimits) -> None:
    """Have the kernel end this process: the clocks' signals end it in the middle of a call into C, too."""
    for number in CLOCKS:
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s)
    whole = int(limits.cpu_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if held := _address_space():
        most = held + (limits.memory_mb << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _address_space() -> int:
    """Return the bytes of this process's address space; 0 where the system does not tell, and a limit means nothing."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * PAGE
    except OSError:
        return 0


def _parsed(upload: bytes, limits: ParseLimits) -> bytes:
    try:
        return PARSED + msgspec.json.encode(_parse(upload))
    except InferdError as error:
        refusal = error
    except MemoryError:
        refusal = LimitExceeded(
            f"parsing this program takes more than {limits.memory_mb} MiB", limit="parse_memory_mb",
            value=limits.memory_mb, raise_with="a smaller program",
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - the boundary of one upload: whatever its source breaks breaks only this fork
        refusal = ProgramSyntaxError(f"the program cannot be parsed: {type(error).__name__}: {str(error)[:200]}")
    return REFUSED + msgspec.json.encode(refusal.to_wire())


def _parse(upload: bytes) -> ParsedUpload:
    try:
        body = msgspec.json.decode(upload, type=StoredBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body: {error}") from None
    check_bundle(body.bundle)
    if body.name:  # by which what is said of its manifest names it
        check_names(body.name, body.version)
    return ParsedUpload(body.bundle, describe_bundle(body.bundle), body.name, body.version)
