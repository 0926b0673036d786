"""What the command line reads of a server's answers. A newer server may say more; anything else is no server's answer."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, TypeVar

import msgspec

from inferd.protocol import ErrorInfo, InternalError
from inferd.transport.answers import NOT_OURS

T = TypeVar("T")


class ProgramName(TypedDict):
    """Which program a run is of."""

    name: str
    version: str


class Used(TypedDict):
    """What a run used, as far as a list shows it."""

    wall_ms: float
    tokens: int


class ShownRun(TypedDict):
    """A run in a list. Times in seconds since the epoch."""

    id: str
    program: ProgramName
    state: str
    created_at: float
    finished_at: float | None
    error: ErrorInfo | None
    usage: Used
    parent: NotRequired[str | None]


class Runs(TypedDict):
    """Runs, newest first."""

    runs: list[ShownRun]


class Started(TypedDict):
    """A run that was just started."""

    id: str


class Uploaded(TypedDict):
    """A program that the server has now. ``created``: this upload brought it."""

    id: str
    name: str
    version: str
    created: bool


class ShownProgram(TypedDict):
    """A program in a list. ``created_at`` is in seconds since the epoch."""

    id: str
    name: str
    version: str
    created_at: float
    serves: str


class Programs(TypedDict):
    """Programs, newest first."""

    programs: list[ShownProgram]


class Removed(TypedDict):
    """How many were removed."""

    removed: int


class Schema(TypedDict, total=False):
    """What options are made of, of a parameter's JSON Schema."""

    description: str
    enum: list[Any]
    prefixItems: list[Schema]
    items: Schema | bool
    anyOf: list[Schema]


class ShownParameter(TypedDict):
    """A parameter of a program's ``main``, beside what :class:`~inferd.program.interface.Parameter` says."""

    schema: Schema


Arguments = TypedDict("Arguments", {"$defs": NotRequired[dict[str, Schema]], "additionalProperties": bool})


class ShownInterface(TypedDict):
    """What a program takes."""

    doc: str
    parameters: list[ShownParameter]
    arguments: Arguments


class Tenant(TypedDict):
    """What a tenant may have, and has. Whole numbers stay whole, as a table shows them."""

    tenant: str
    quotas: dict[str, int | float]
    use: dict[str, int | float]


class Tenants(TypedDict):
    """All tenants."""

    tenants: list[Tenant]


class Stopped(TypedDict):
    """How much of a tenant's was asked to end."""

    tenant: str
    runs: int
    responses: int


class Model(TypedDict):
    """A model that is served."""

    name: str
    vocab_size: int
    max_context: int


class Models(TypedDict):
    """All models; the first is the default."""

    models: list[Model]


class Readiness(TypedDict):
    """Whether launches would work now."""

    ready: bool


class Version(TypedDict):
    """The server's version."""

    version: str


class Replica(TypedDict):
    """A replica of a cluster."""

    name: str
    ready: bool
    draining: bool
    runs: int
    waiting: int
    jobs: int
    kv_use: float


class Replicas(TypedDict):
    """All replicas of a cluster."""

    replicas: list[Replica]


def answer_as(kind: type[T], value: Any) -> T:
    """Return what a value of a server's answer stands for. Raises InternalError if it is none of that kind."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InternalError(f"{NOT_OURS}: {error}") from None
