"""The part of the protocol that is about snapshots: contexts that outlive their session, by name or as bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from inferd.protocol.errors import InvalidRequest, LimitExceeded
from inferd.protocol.operations import Done, operation

MAX_EXPORT_BYTES = 8 << 20
"""The most bytes that ``context.export`` gives and ``context.import`` takes."""
MAX_SCRIPT_MESSAGE = MAX_EXPORT_BYTES + (64 << 10)
"""Bytes of a script's message: those of a context, and what stands around them. A longer one ends the connection."""
MAX_SNAPSHOTS = 10_000
"""Of one tenant: one reply lists all of them."""
SNAPSHOT_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,128}", re.ASCII)


def check_snapshot_name(name: str) -> None:
    """Raises InvalidRequest if no snapshot may have this name."""
    if not SNAPSHOT_NAME.fullmatch(name):
        raise InvalidRequest(
            f"a snapshot's name is 1 to 128 of the characters A-Z a-z 0-9 . _ : / -, not {name[:200]!r}"
        )


def check_export_size(size: int) -> None:
    """Raises LimitExceeded for more bytes than one reply or request carries."""
    if size > MAX_EXPORT_BYTES:
        raise LimitExceeded(
            f"the context takes {size} bytes as bytes, {MAX_EXPORT_BYTES} are allowed",
            limit="export_bytes", value=MAX_EXPORT_BYTES, raise_with="save() and open(), which have no such limit",
        )  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A context that was read back. ``length`` tokens, of which ``pending`` are not computed.

    Of the tokens that were computed when it was saved, the KV of ``restored`` was read back, and ``recomputed`` have to be
    computed again when the context is used. ``open_turns``: the lengths at which a user or system message had ended and
    the assistant was to speak.
    """

    context: int
    length: int
    pending: int
    restored: int
    recomputed: int
    open_turns: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class SavedContext:
    """A snapshot: its name, the name of its model, how many tokens and bytes it holds, and when it was saved (seconds
    since the epoch).
    """

    name: str
    model: str
    length: int
    bytes: int
    created: float


@dataclass(frozen=True)
class SavedContexts:
    """The tenant's snapshots, by name."""

    saved: list[SavedContext]


@dataclass(frozen=True)
class Exported:
    """A context as bytes, in the format of a snapshot's file."""

    data: bytes


@operation("context.save", SavedContext)
@dataclass(frozen=True)
class SaveContext:
    """Keep a copy of a context under a name of the tenant's. A name in use is refused unless ``overwrite``.

    While a generation runs on the context, the copy is of its first ``length`` tokens (-1: all that was delivered), as in
    ``context.fork``, and it goes on undisturbed. Otherwise the length is the context's.
    """

    context: int
    name: str
    overwrite: bool = False
    length: int = -1


@operation("context.open", Opened)
@dataclass(frozen=True)
class OpenSaved:
    """A new context that starts as a copy of a snapshot, on ``model``, which has to have its weights ("": whichever has).

    Of several that have, the one with the name that the snapshot's model had is taken.
    """

    name: str
    model: str = ""


@operation("context.take", Opened)
@dataclass(frozen=True)
class TakeSaved:
    """As ``context.open``, and the snapshot is gone afterwards. Of several takers exactly one gets it."""

    name: str
    model: str = ""


@operation("context.delete", Done)
@dataclass(frozen=True)
class DeleteSaved:
    """Delete a snapshot, a damaged one too."""

    name: str


@operation("context.saved", SavedContexts)
@dataclass(frozen=True)
class ListSaved:
    """The tenant's snapshots."""


@operation("context.export", Exported)
@dataclass(frozen=True)
class ExportContext:
    """A context's tokens and KV as bytes."""

    context: int


@operation("context.import", Opened)
@dataclass(frozen=True)
class ImportContext:
    """A new context out of the bytes of ``context.export``. Its KV is believed for this context and its forks alone.

    ``model``: as in ``context.open``.
    """

    data: bytes
    model: str = ""


def check_import(request: ImportContext) -> None:
    """Raises LimitExceeded for too many bytes."""
    check_export_size(len(request.data))
