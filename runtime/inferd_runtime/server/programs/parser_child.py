"""The process that parses uploads; :mod:`inferd_runtime.server.programs.parser_process` starts it.

It never reads an upload itself: it forks for each one, so that nothing of one upload is left when the next one comes. The
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
from inferd_runtime.server.programs.bundles import check_bundle, describe_bundle
from inferd_runtime.server.programs.parser_messages import (
    CRASHED,
    MAX_ANSWER,
    PARSED,
    REFUSED,
    TOO_LATE,
    TOO_SLOW,
    ParsedUpload,
    ParseLimits,
    UploadBody,
    read_frame,
    write_frame,
)

MAX_REQUEST = 1 << 30
"""The gateway bounds what it takes from clients; this only keeps a frame a frame."""
QUICK_SECONDS = 0.1
NICENESS = 5
PAGE = resource.getpagesize()
CLOCKS: dict[int, bytes] = {signal.SIGPROF: TOO_SLOW, signal.SIGXCPU: TOO_SLOW, signal.SIGALRM: TOO_LATE}


def child_main(child: Child) -> int:
    """Answer until the gateway closes its end of the socket that is this process's standard input. Returns the exit code."""
    limits = child.settings(ParseLimits)
    link = socket.socket(fileno=os.dup(0))
    gc.freeze()  # what is loaded stays shared with the forks
    child.seal()
    while True:
        try:
            upload = read_frame(sys.stdin.buffer.read, MAX_REQUEST)
        except EOFError:
            return 0
        write_frame(link.sendall, _in_fork(upload, limits, link))


def _in_fork(upload: bytes, limits: ParseLimits, link: socket.socket) -> bytes:
    """Return the answer of a fork, or how it ended without one."""
    source, sink = os.pipe()
    parser = os.fork()
    if parser == 0:
        for handle in (source, link.fileno(), 0):
            os.close(handle)
        _parse_and_exit(upload, limits, sink)
    os.close(sink)
    with contextlib.closing(os.fdopen(source, "rb", 0)):
        answer = _answer_of(source, parser)
    status = os.waitpid(parser, 0)[1]
    if os.WIFSIGNALED(status):
        return CLOCKS.get(os.WTERMSIG(status), CRASHED)
    return answer or CRASHED


def _answer_of(source: int, parser: int) -> bytes:
    """Read what a fork writes. One that is slow gets what others leave of the processors; one that writes too much, nothing."""
    if not select.select([source], [], [], QUICK_SECONDS)[0]:
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, parser, NICENESS)
    parts: list[bytes] = []
    while part := os.read(source, 1 << 20):
        parts.append(part)
        if sum(map(len, parts)) > MAX_ANSWER:
            os.kill(parser, signal.SIGKILL)
            break
    return b"".join(parts)


def _parse_and_exit(upload: bytes, limits: ParseLimits, sink: int) -> NoReturn:
    """Be the fork: parse, write the answer, end."""
    try:
        die_with(os.getppid())
        _limit(limits)
        answer = _parsed(upload, limits)
        with open(sink, "wb") as pipe:
            pipe.write(answer)
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
        body = msgspec.json.decode(upload, type=UploadBody)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body: {error}") from None
    check_bundle(body.bundle)
    return ParsedUpload(body.bundle, describe_bundle(body.bundle), body.name, body.version)
