"""What is kept of a run beside its events and its result."""

from __future__ import annotations

import secrets

import msgspec

from inferd.protocol import ErrorInfo
from inferd_runtime.sandbox.messages import Bundle, Limits, RunUsage
from inferd_runtime.server.programs.bundles import Program

SHOWN_MESSAGE = 500
"""Characters of an error's message in a list of runs."""
RECORD_BYTES = 1024
"""Bytes that are counted for a run beside its events, its result and its error."""


def new_run_id(server: str = "") -> str:
    """Return an id for a run. ``server``: hexadecimal digits that it begins with, which tell where it was launched."""
    return f"run-{server}{secrets.token_hex(8)}"


class ProgramName(msgspec.Struct, frozen=True):
    """Which program a run is of: its hash, its name, its version."""

    id: str
    name: str
    version: str

    @classmethod
    def of(cls, program: Program) -> ProgramName:
        """Return a program's name."""
        return cls(program.id, program.name, program.version)


class RunRecord(msgspec.Struct, frozen=True):
    """A run as it is shown: the answer to ``GET /v1/runs/{id}`` without its result. Times in seconds since the epoch.

    ``parent``: the run, or the script's session, that launched it.
    """

    id: str
    program: ProgramName
    state: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    limits: Limits
    error: ErrorInfo | None
    usage: RunUsage
    next_event: int
    parent: str | None = None

    @property
    def over(self) -> bool:
        """True if the run has ended."""
        return self.finished_at is not None

    def in_list(self) -> RunRecord:
        """Return the record as a list shows it: of its error only the code and the beginning of the message."""
        if self.error is None:
            return self
        return msgspec.structs.replace(self, error=ErrorInfo(self.error.code, self.error.message[:SHOWN_MESSAGE]))


class StoredEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event of a run: text for the streams, JSON text for ``message``, nothing for ``started`` and ``finished``."""

    index: int
    kind: str
    time: float
    text: str | None = None


class Said(msgspec.Struct, frozen=True):
    """The length of a transcript, and its digest: equal for transcripts that say the same."""

    position: int
    digest: bytes


class Relaunch(msgspec.Struct, frozen=True):
    """What starting a retry-safe run again takes, beside the messages that it was sent.

    ``program``: the same for all runs of a program, whose bundle is kept once for all of them; "": it is kept for this one alone.
    """

    bundle: Bundle
    arguments: str
    seed: int | None
    mcp: str = ""
    program: str = ""

    @property
    def size(self) -> int:
        """Bytes of it, roughly, except its bundle, which many share."""
        return RECORD_BYTES + len(self.arguments)


class UnfinishedRun(msgspec.Struct, frozen=True):
    """A retry-safe run that the last server left: how often it was started, what it was sent, what is stored of what it said."""

    record: RunRecord
    tenant: str
    relaunch: Relaunch
    attempts: int
    said: Said
    inputs: list[str]
    events: list[StoredEvent]


class KeptKey(msgspec.Struct, frozen=True):
    """An ``Idempotency-Key`` of a tenant: the launch that it stood for, and the run that came of it."""

    key: str
    fingerprint: str
    run: str
    created_at: float
