"""What keeps snapshots: the interface of a folder of this machine and of a store elsewhere, and what both have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from inferd.protocol import MAX_SNAPSHOTS, InvalidRequest, LimitExceeded, NotFound, SavedContext
from inferd_runtime.kv.snapshot_format import Snapshot

BLOCK = 4096
"""Bytes of the smallest file; quotas count in these."""


@dataclass(frozen=True)
class Row:
    """A snapshot without its content. ``file`` is relative to the place."""

    tenant: str
    name: str
    file: str
    model: str
    length: int
    bytes: int
    created: float

    @property
    def saved(self) -> SavedContext:
        """The row as its owner sees it."""
        return SavedContext(self.name, self.model, self.length, self.bytes, self.created)


@dataclass(frozen=True)
class Taken:
    """A snapshot that was withdrawn. :meth:`SnapshotPlace.finish_take` ends it. ``claim``: what keeps others from it, "" for a
    lock.
    """

    snapshot: Snapshot
    row: Row
    claim: str = ""


class SnapshotPlace(Protocol):
    """All tenants' snapshots, within a quota of bytes per tenant. Blocking calls, which may raise Unavailable."""

    def close(self) -> None:
        """Let go of what is open, until the next call."""

    def clean(self) -> None:
        """Delete what a crash left behind, where that can be told without a doubt."""

    def save(self, tenant: str, name: str, snapshot: Snapshot, *, overwrite: bool) -> SavedContext:
        """Keep a snapshot. From then on it is opened as a whole, or, if this fails, what had the name before.

        Raises InvalidRequest for a name that is not allowed or in use, LimitExceeded past the tenant's quota.
        """

    def load(self, tenant: str, name: str) -> Snapshot:
        """Return a snapshot. Raises NotFound, SnapshotDamaged, SnapshotForeign."""

    def take(self, tenant: str, name: str, check: Callable[[Snapshot], object]) -> Taken:
        """Return a snapshot and withdraw it, unless it cannot be read or ``check`` raises. Nobody else takes it meanwhile."""

    def finish_take(self, taken: Taken, *, used: bool) -> None:
        """Delete the snapshot if it was ``used``; else put it back, unless its name is in use again."""

    def delete(self, tenant: str, name: str) -> None:
        """Delete a snapshot without reading it. Raises NotFound."""

    def saved(self, tenant: str) -> list[SavedContext]:
        """Return a tenant's snapshots, ordered by name."""


def tenant_folder(tenant: str) -> str:
    """Return a folder name that does not show the tenant's and cannot lead out of the folder."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:32]


def in_blocks(size: int) -> int:
    """Return the bytes that a file of this size is counted as."""
    return -(-size // BLOCK) * BLOCK


def unknown(name: str) -> NotFound:
    """Return the error for a name that no snapshot has."""
    return NotFound(f"there is no snapshot {name!r}")


def in_use(name: str) -> InvalidRequest:
    """Return the error for a name that a snapshot has already."""
    return InvalidRequest(f"there is a snapshot {name!r} already; delete it, or save with overwrite=True")


def check_count(others: int) -> None:
    """Raise LimitExceeded for a tenant that has so many snapshots beside the one that it saves, if they are too many."""
    if others >= MAX_SNAPSHOTS:
        raise LimitExceeded(
            f"a tenant may have {MAX_SNAPSHOTS} saved contexts; delete some",
            limit="snapshots", value=MAX_SNAPSHOTS, raise_with="deleting some of them",
        )  # fmt: skip


def over_quota(quota: int) -> LimitExceeded:
    """Return the error for a tenant whose snapshots would take more than ``quota`` bytes."""
    return LimitExceeded(
        f"the snapshots would take more than the {quota} bytes that a tenant may use; delete some",
        limit="snapshot_bytes", value=quota, raise_with="--snapshot-bytes of the server",
    )  # fmt: skip
