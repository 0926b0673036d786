"""What the gateway and a sandbox worker say to each other: msgpack-tagged structs over ZeroMQ DEALER/ROUTER."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from inferd.protocol import ErrorInfo

MAX_ASKED = 64
"""Operations of one run that the gateway has not answered, withdrawn ones included."""
MAX_ASKED_BYTES = 8 << 20
"""Bytes of their requests together."""
MAX_REQUEST_BYTES = 1 << 20
"""Bytes of one such request."""
PART_CHARS = 256 << 10
"""Characters of a result that go to the gateway at a time."""


class LockedPackage(msgspec.Struct, frozen=True):
    """A package that a program came with: the wheel that it was taken from, and the SHA-256 of that, in hexadecimal digits."""

    name: str
    version: str
    wheel: str
    sha256: str


class Bundle(msgspec.Struct, frozen=True, omit_defaults=True, weakref=True):
    """A program: ``files`` maps a relative path to text; ``entry`` is the one that defines ``main``.

    ``data``: other files of its folder, by relative path. ``packages``: files of the packages that it depends on, by their path
    where packages are installed; ``lock`` says which those are.
    """

    name: str
    files: dict[str, str]
    entry: str = "main.py"
    data: dict[str, bytes] = {}
    packages: dict[str, bytes] = {}
    lock: tuple[LockedPackage, ...] = ()

    @property
    def size(self) -> int:
        """Characters of its texts and bytes of the rest."""
        return sum(map(len, (*self.files.values(), *self.data.values(), *self.packages.values())))


class Limits(msgspec.Struct, frozen=True):
    """What one run may use. Times in seconds, memory in MiB, output in bytes.

    ``memory_mb`` is the instance's linear memory, of which Python and its library take about 40. ``output_bytes`` is all that
    leaves the program: what it writes, sends and returns. ``output_events`` counts the pieces that what it writes comes in, and
    its messages. ``memory_mb`` counts what the host holds for the program, too.
    """

    wall_s: float = 300.0
    cpu_s: float = 30.0
    memory_mb: int = 256
    output_bytes: int = 4 << 20
    output_events: int = 50_000


class RunUsage(msgspec.Struct, frozen=True):
    """What a run used, as shown to people. Times in milliseconds, memory in MiB."""

    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    wall_ms: float = 0.0
    cpu_ms: float = 0.0
    peak_memory_mb: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0


class KeepProgram(msgspec.Struct, frozen=True, tag=True):
    """Keep a program for the runs that name it, until :class:`ForgetProgram`."""

    program: str
    bundle: Bundle


class ForgetProgram(msgspec.Struct, frozen=True, tag=True):
    """Keep a program no more: its runs are over."""

    program: str


class LaunchRun(msgspec.Struct, frozen=True, tag=True):
    """Start a run. ``arguments`` is a JSON object's text; ``grant`` opens the run's session at the engine.

    ``seed``: of the program's random numbers, and of its samplers without one. ``reports_use``: the worker is to say what it
    uses (:class:`Used`). ``program``: the bundle is the one that is kept under this name, unless it is "".
    """

    run: str
    grant: bytes
    bundle: Bundle
    arguments: str
    limits: Limits
    seed: int | None = None
    reports_use: bool = False
    program: str = ""


class ReportUse(msgspec.Struct, frozen=True, tag=True):
    """Say from now on what a run uses."""

    run: str


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """End a run with this error, wherever it is."""

    run: str
    error: ErrorInfo


class Deliver(msgspec.Struct, frozen=True, tag=True):
    """A message for the program's ``session.receive``, as JSON text; an empty one: there are no more."""

    run: str
    json: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """The answer to an :class:`Asked`: a reply's JSON, or an error's. Each is answered once, a withdrawn one as well.

    ``receipt``: the gateway wants to hear (:class:`Received`) once the program has it.
    """

    run: str
    ticket: int
    ok: bool
    json: str
    receipt: bool = False


class EventsTaken(msgspec.Struct, frozen=True, tag=True):
    """The gateway has handled that many more of a run's ``Output`` and ``Sent``: there is room for new ones."""

    run: str
    events: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End all runs and exit."""


class WorkerReady(msgspec.Struct, frozen=True, tag=True):
    """The worker has loaded the runner and takes launches."""

    pid: int


class Started(msgspec.Struct, frozen=True, tag=True):
    """The run's instance exists and its program is being loaded."""

    run: str


class Output(msgspec.Struct, frozen=True, tag=True):
    """Text that a program wrote. ``stream``: stdout | stderr."""

    run: str
    stream: str
    text: str


class Sent(msgspec.Struct, frozen=True, tag=True):
    """A message that the program sent with ``session.send``, as JSON text."""

    run: str
    json: str


class Waiting(msgspec.Struct, frozen=True, tag=True):
    """The program waits for a message, and has none. Said once, until the next message comes."""

    run: str


class Asked(msgspec.Struct, frozen=True, tag=True):
    """An operation of the program that the gateway answers; ``json`` is its request."""

    run: str
    ticket: int
    op: str
    json: str


class Withdrawn(msgspec.Struct, frozen=True, tag=True):
    """The program does not wait for an operation any more, and has not got its answer."""

    run: str
    ticket: int


class Received(msgspec.Struct, frozen=True, tag=True):
    """The program has an answer that the gateway wanted to hear of."""

    run: str
    ticket: int


class Used(msgspec.Struct, frozen=True, tag=True):
    """What a run has used so far, each time that it is noticeably more."""

    run: str
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    output_bytes: int = 0
    output_events: int = 0


class ResultPart(msgspec.Struct, frozen=True, tag=True):
    """The next part of a long result. The last one is in ``RunFinished``."""

    run: str
    text: str


class RunFinished(msgspec.Struct, frozen=True, tag=True):
    """A run is over: exactly one of ``result`` (JSON text, or the last part of it) and ``error``."""

    run: str
    usage: RunUsage
    result: str | None = None
    error: ErrorInfo | None = None


ToWorker = KeepProgram | ForgetProgram | LaunchRun | ReportUse | Cancel | Deliver | Answered | EventsTaken | Shutdown
ServiceReport = Asked | Withdrawn | Received
"""What a worker passes on of the operations that the gateway answers."""
FromWorker = WorkerReady | Started | Output | Sent | Waiting | ServiceReport | Used | ResultPart | RunFinished


def in_parts(message: FromWorker) -> Iterator[FromWorker]:
    """Yield a message, one with a long result in parts: what takes them does other things between any two."""
    if not isinstance(message, RunFinished) or message.result is None or len(message.result) <= PART_CHARS:
        yield message
        return
    starts = range(0, len(message.result), PART_CHARS)
    for start in starts[:-1]:
        yield ResultPart(message.run, message.result[start : start + PART_CHARS])
    yield msgspec.structs.replace(message, result=message.result[starts[-1] :])
