"""What the supervisor knows of a run that is to start, or that a worker holds. Pure state."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from inferd.protocol import ErrorInfo, LimitExceeded
from inferd_runtime.sandbox.messages import Limits
from inferd_runtime.server.programs.bundles import Program
from inferd_runtime.server.supervisor.event_texts import one_line
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.session.wire import RUN_SESSION
from inferd_runtime.settings.settings import FIELDS

MAX_UNDELIVERED = 256
MAX_UNDELIVERED_BYTES = 4 << 20
"""Messages, and bytes of them, that may wait for a run to start."""
RECEIPT_EVENTS = 32
RECEIPT_BYTES = 32 << 10
"""After how many events, or bytes of them, the gateway confirms them to the worker: long before it would have to wait."""
MOST_POSTPONED_SECONDS = 60.0
"""How much longer than the others a run may take to end while its worker ends these."""
FRAME_BYTES = 256
"""What an event's frame may have beside the program's own text."""


@dataclass(frozen=True)
class RunRequest:
    """What a run is to do: a program with arguments (a JSON object's text), its limits, and the key of its launch, if any.

    ``retry_safe``: it may be started again after a crash. ``seed``: of its random numbers; None: any. ``parent``: whose child it
    is.
    """

    program: Program
    arguments: str
    limits: Limits
    key: str = ""
    retry_safe: bool = False
    seed: int | None = None
    parent: str | None = None
    mcp: str = ""
    """Under which key clients offer it servers of tools."""

    @property
    def fingerprint(self) -> str:
        """The same for launches that ask for the same."""
        asked = (self.program.id, self.program.version, self.arguments, self.limits, self.retry_safe, self.seed)
        return hashlib.sha256(msgspec.json.encode(asked)).hexdigest()


@dataclass
class HeldRun:
    """A run that a worker holds. ``verdict``: the error that it was told to end with, at the latest at ``kill_at``."""

    run: Run
    worker: str
    overdue_at: float
    verdict: ErrorInfo | None = None
    kill_at: float = math.inf
    latest: float = math.inf
    """When it ends, or its worker, however many others that one still ends."""
    events: int = 0
    size: int = 0
    receipt_events: int = 0
    receipt_bytes: int = 0
    parts: list[str] = field(default_factory=list)
    """The beginning of a long result."""

    def tell(self, error: ErrorInfo, kill_at: float) -> None:
        """Note that the worker was told to end it."""
        self.verdict, self.kill_at, self.latest = error, kill_at, kill_at + MOST_POSTPONED_SECONDS

    def postpone(self, kill_at: float) -> None:
        """Note that its worker has ended another run: of many that are cancelled at once, the last end late on a busy machine."""
        if self.verdict is not None:
            self.kill_at = min(max(self.kill_at, kill_at), self.latest)

    def count(self, size: int) -> bool:
        """Count a reported event of ``size`` bytes. False if the run's limits allow no such thing."""
        self.events += 1
        self.size += size
        self.receipt_events += 1
        self.receipt_bytes += size
        return self.events <= self.run.limits.output_events and self._fits()

    def add_part(self, text: str, size: int) -> bool:
        """Take a part of the result, which came in ``size`` bytes. False if the run's limits allow no such thing."""
        self.size += size
        self.parts.append(one_line(text))
        return self._fits()

    def _fits(self) -> bool:
        limits = self.run.limits
        # JSON in msgpack is longer than in the guest.
        return self.size <= 2 * limits.output_bytes + FRAME_BYTES * limits.output_events

    def receipt(self) -> int:
        """Return how many events the worker is to be told about now: none while a follower has much to read."""
        if (self.receipt_events < RECEIPT_EVENTS and self.receipt_bytes < RECEIPT_BYTES) or self.run.outruns_followers:
            return 0
        events, self.receipt_events, self.receipt_bytes = self.receipt_events, 0, 0
        return events


def session_of(run: Run) -> str:
    """Return the name of a run's session at the engine: each attempt has its own."""
    return RUN_SESSION + run.id + (f"/{run.attempts}" if run.attempts > 1 else "")


def check_undelivered(run: Run, queue: Sequence[str], message: str) -> None:
    """Raise LimitExceeded if one more message may not wait for a run that has not started."""
    waits = f"{run.id} has not started, and messages wait for it already"
    if len(queue) >= MAX_UNDELIVERED:
        raise LimitExceeded(f"{waits}: {len(queue)}", limit="waiting_messages", value=MAX_UNDELIVERED)
    if sum(map(len, queue)) + len(message) > MAX_UNDELIVERED_BYTES:
        raise LimitExceeded(waits, limit="waiting_message_bytes", value=MAX_UNDELIVERED_BYTES)


def too_long(limits: Limits) -> ErrorInfo:
    """Return the error of a run that outlasts its worker's own limit."""
    message = f"the run took more than {limits.wall_s:g} s"
    return LimitExceeded(
        message, limit="wall_s", value=limits.wall_s, raise_with=f"{FIELDS['wall_s'].flag}, or wall_s in its limits"
    ).to_wire()
