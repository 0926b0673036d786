"""The shapes of what the runtime's own routes answer. They serve the document alone: nothing is made of them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from inferd.program.interface import Parameter as MainParameter
from inferd.protocol import ErrorInfo
from inferd.protocol.files import FileHead
from inferd_runtime.sandbox.messages import LockedPackage, RunUsage
from inferd_runtime.server.programs.registry import Entry
from inferd_runtime.server.run_store.records import RunRecord
from inferd_runtime.server.supervisor.run_events import RunState
from inferd_runtime.server.tenancy.quotas import Quotas


class OwnError(Struct):
    """What went wrong. ``error.code`` is of the tree of errors, as in ``client.not_found``."""

    error: ErrorInfo


class Liveness(Struct):
    """The process is alive."""

    live: bool


class EngineState(Struct):
    """The engine process."""

    up: bool
    restarts: int


class WorkersState(Struct):
    """The processes that programs run in; ``up`` is their number."""

    up: int
    restarts: int


class StoreState(Struct):
    """Whether runs can be written to disk, else why not."""

    works: bool
    error: str | None


class Readiness(Struct):
    """Whether launches would work now, and why not."""

    ready: bool
    engine: EngineState
    draining: bool
    store: StoreState
    workers: WorkersState


class Versions(Struct):
    """The versions of inferd and of its protocol."""

    version: str
    protocol: int


class TenantState(Struct):
    """A tenant's quotas, and what it uses of them now; rates are what is used up of a minute's worth."""

    tenant: str
    quotas: Quotas
    use: dict[str, float]


class TenantStates(Struct):
    """All tenants for an admin, else the tenant itself."""

    tenants: list[TenantState]


class StoppedTenant(Struct):
    """A tenant whose runs and responses in the background were asked to end, and how many those are."""

    tenant: str
    runs: int
    responses: int


class ShownInterface(Struct):
    """What a program takes and returns; ``arguments`` is the JSON Schema of a launch's arguments."""

    doc: str
    parameters: list[MainParameter]
    arguments: dict[str, Any]
    returns: dict[str, Any]


class ShownProgram(Struct):
    """A program with its interface."""

    id: str
    name: str
    version: str
    limits: dict[str, float]
    retry_safe: bool
    serves: str
    packages: list[LockedPackage]
    interface: ShownInterface


class UploadedProgram(ShownProgram):
    """A program that was uploaded; ``created`` is false when the same one was there already."""

    created: bool


class ProgramList(Struct):
    """The tenant's programs, newest first."""

    programs: list[Entry]


class RemovedPrograms(Struct):
    """How many versions were removed."""

    removed: int


class ShownRun(RunRecord, frozen=True, kw_only=True):
    """A run as it is now, with its result, null without one."""

    result: Any


class RunList(Struct):
    """The tenant's runs without their results, newest first."""

    runs: list[RunRecord]


class DeliveredMessage(Struct):
    """The run has the message."""

    delivered: bool


class SentFiles(Struct):
    """The files that a program has sent, oldest first."""

    files: list[FileHead]


class TakenPiece(Struct):
    """Whether the file is whole now."""

    whole: bool


class ShownEvent(Struct):
    """One event of a run: ``text`` is of ``stdout`` and ``stderr``, ``count`` of ``dropped``, the last four of ``finished``.

    ``call``: what the program asked of the world outside, over HTTP or of a server of tools.
    """

    index: int
    type: Literal[
        "started", "stdout", "stderr", "message", "waiting", "waiting_file", "call", "file", "dropped", "finished"
    ]
    time: float
    text: str | UnsetType = UNSET
    message: Any | UnsetType = UNSET
    call: dict[str, Any] | UnsetType = UNSET
    file: FileHead | UnsetType = UNSET
    count: int | UnsetType = UNSET
    state: RunState | UnsetType = UNSET
    error: ErrorInfo | UnsetType | None = UNSET
    usage: RunUsage | UnsetType = UNSET
    result: Any | UnsetType = UNSET
