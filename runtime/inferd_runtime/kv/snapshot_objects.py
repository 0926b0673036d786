"""Snapshots in a store that several machines share, by fsspec: a bucket, or a folder on a network file system.

Each snapshot is one object, whose path says whose and which it is, its version and its size. An object of another size is not
finished, and is never opened, so that one upload publishes a snapshot, whether the store shows objects that are still written
or not. Of several versions the highest is the snapshot, and its writer deletes those that it found.

Stores have no locks. An operation that needs a name for itself (a save that may not overwrite, a take) writes a claim, looks
for others, and gives way if there is one: of two at once both may give way, and never do both succeed.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from inferd.protocol import InferdError, SavedContext, SnapshotDamaged, Unavailable, check_snapshot_name
from inferd_runtime.kv import snapshot_format
from inferd_runtime.kv.snapshot_format import Snapshot
from inferd_runtime.kv.snapshot_place import (
    Row,
    Taken,
    check_count,
    in_blocks,
    in_use,
    over_quota,
    tenant_folder,
    unknown,
)

faults = logging.getLogger("inferd.storage")
OBJECT = re.compile(r"([0-9a-f]{8})-([0-9a-f]{16})-(\d+)-(\d+)-(\d+)-([^/]*)\.safetensors")
"""Version, a random number, tokens, bytes, when it was made (ms since the epoch), model."""
CLAIM = re.compile(r"claim-(\d+)-[0-9a-f]{16}")
CLAIM_SECONDS = 600.0
"""How long a claim holds whose owner has ended: longer than the clocks of machines differ, and than any request takes."""
UNFINISHED_SECONDS = 86_400.0
"""How old an object is that is deleted because it was never finished."""
LONGEST_MODEL = 120
READ_TRIES = 3
NAMES = str.maketrans("/:", "~!")
"""What stands in a path for characters of a snapshot's name; neither is in a name."""
MARK = "="
"""What a name's folder begins with: it is never ``..``."""


@dataclass(frozen=True)
class _Version:
    """An object as the store lists it. ``number`` and ``chance`` order the versions of a name."""

    number: int
    chance: str
    row: Row
    size: int

    @property
    def finished(self) -> bool:
        return self.size == self.row.bytes

    @property
    def order(self) -> tuple[int, str]:
        return self.number, self.chance


class SnapshotObjects:
    """All tenants' snapshots under one path of a store, at most ``quota`` bytes for each tenant; two that save at once may go
    above it by what they save.

    ``files``: a file system of fsspec. Only the servers may be able to write to the store: what lies there is opened.
    """

    def __init__(self, files: Any, root: str, quota: int, now: Callable[[], float] = time.time) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._quota = quota
        self._now = now

    def close(self) -> None:
        """Do nothing: each call opens what it needs."""

    def clean(self) -> None:
        """Do nothing: others may be writing."""

    def save(self, tenant: str, name: str, snapshot: Snapshot, *, overwrite: bool) -> SavedContext:
        """Upload a snapshot and return its row. Raises InvalidRequest, LimitExceeded and Unavailable."""
        check_snapshot_name(name)
        with _store_errors():
            if overwrite:
                return self._publish(tenant, name, snapshot).saved
            with contextlib.ExitStack() as alone:
                alone.callback(self._remove, self._claim(tenant, name))
                if self._newest(tenant, name) is not None:
                    raise in_use(name)
                return self._publish(tenant, name, snapshot).saved

    def load(self, tenant: str, name: str) -> Snapshot:
        """Return a snapshot. Raises NotFound, SnapshotDamaged, SnapshotForeign and Unavailable."""
        with _store_errors():
            return self._loaded(tenant, name)[1]

    def take(self, tenant: str, name: str, check: Callable[[Snapshot], object]) -> Taken:
        """Return a snapshot that nobody else takes until :meth:`finish_take`. Until then it stays where it is."""
        with _store_errors(), contextlib.ExitStack() as undo:
            claim = self._claim(tenant, name)
            undo.callback(self._remove, claim)
            row, snapshot = self._loaded(tenant, name)
            check(snapshot)
            undo.pop_all()
        return Taken(snapshot, row, claim)

    def finish_take(self, taken: Taken, *, used: bool) -> None:
        """Delete the snapshot if it was ``used``, and let others take it if not."""
        with _store_errors():
            if used:
                self._remove_up_to(taken.row)
            self._remove(taken.claim)

    def delete(self, tenant: str, name: str) -> None:
        """Delete all versions of a snapshot. Raises NotFound."""
        check_snapshot_name(name)
        with _store_errors():
            versions = self._versions(tenant, name)
            if not any(one.finished for one in versions):
                raise unknown(name)
            for one in sorted(versions, key=lambda one: one.order):  # the one that counts goes last
                self._remove(one.row.file)

    def saved(self, tenant: str) -> list[SavedContext]:
        """Return a tenant's snapshots, ordered by name."""
        with _store_errors():
            finished = [one for one in self._versions(tenant) if one.finished]
        newest = {one.row.name: one.row.saved for one in sorted(finished, key=lambda one: one.order)}
        return [newest[name] for name in sorted(newest)]

    # -- Objects --------------------------------------------------------------------------------------------------

    def _publish(self, tenant: str, name: str, snapshot: Snapshot) -> Row:
        """Upload a version above all others, see that the store shows it, and delete the others."""
        data = snapshot_format.encode(snapshot)
        found = self._versions(tenant)
        self._sweep(found)
        before = [one for one in found if one.row.name == name]
        self._check_room(found, name, len(data))
        row = self._row_of(tenant, name, snapshot, len(data), 1 + max((one.number for one in before), default=0))
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove, row.file)
            self._write(row.file, data)
            found = self._versions(tenant)
            if not any(one.row.file == row.file and one.finished for one in found):
                raise Unavailable("the store of saved contexts does not show what was written to it")
            self._check_room(found, name, len(data))
            undo.pop_all()
        for one in before:
            self._remove(one.row.file)
        return row

    def _row_of(self, tenant: str, name: str, snapshot: Snapshot, size: int, number: int) -> Row:
        created, model = int(self._now() * 1000), snapshot.facts.model
        shown = quote(model, safe="")[:LONGEST_MODEL]
        file = f"{number:08x}-{secrets.token_hex(8)}-{len(snapshot.tokens)}-{size}-{created}-{shown}.safetensors"
        path = f"{self._folder(tenant, name)}/{file}"
        return Row(tenant, name, path, model, len(snapshot.tokens), size, created / 1000)

    def _check_room(self, found: list[_Version], name: str, size: int) -> None:
        """Raise LimitExceeded if what there is of other names and ``size`` bytes are more than a tenant may have."""
        others = [one for one in found if one.row.name != name]
        if sum(in_blocks(one.row.bytes) for one in others) + in_blocks(size) > self._quota:
            raise over_quota(self._quota)
        check_count(len(others))

    def _sweep(self, found: list[_Version]) -> None:
        """Delete what others began to write long ago, and never finished."""
        for one in found:
            if not one.finished and one.row.created + UNFINISHED_SECONDS < self._now():
                self._remove(one.row.file)

    def _remove_up_to(self, row: Row) -> None:
        """Delete a version and those below it, which would count without it, that one last."""
        versions = sorted(self._versions(row.tenant, row.name), key=lambda one: one.order)
        files = [one.row.file for one in versions]
        for file in files[: files.index(row.file) + 1] if row.file in files else ():
            self._remove(file)

    def _loaded(self, tenant: str, name: str) -> tuple[Row, Snapshot]:
        check_snapshot_name(name)
        for _ in range(READ_TRIES):
            newest = self._newest(tenant, name)
            if newest is None:
                raise unknown(name)
            with contextlib.suppress(FileNotFoundError):  # another version has just taken its place
                return newest.row, self._read(newest.row)
        raise Unavailable(f"the snapshot {name!r} is replaced faster than it can be read", retry_after_s=1.0)

    def _read(self, row: Row) -> Snapshot:
        if row.bytes > self._quota:
            raise SnapshotDamaged("the snapshot is damaged: it is larger than any that may be saved")
        data = bytes(self._files.cat_file(row.file))
        if len(data) != row.bytes:
            raise SnapshotDamaged("the snapshot is damaged: it is not as long as it was")
        return snapshot_format.decode(data)

    def _newest(self, tenant: str, name: str) -> _Version | None:
        """Return the version of a name that counts."""
        finished = [one for one in self._versions(tenant, name) if one.finished]
        return max(finished, key=lambda one: one.order, default=None)

    def _versions(self, tenant: str, name: str = "") -> list[_Version]:
        """Return the objects of a tenant, or of one of its names, finished or not."""
        found = []
        for path, size in self._listed(self._folder(tenant, name)):
            folder, file = path.rsplit("/", 2)[-2:]
            parts = OBJECT.fullmatch(file)
            if parts is not None and folder.startswith(MARK):
                number, chance, length, bytes_, created, model = parts.groups()
                shown = folder[1:].translate({after: before for before, after in NAMES.items()})
                row = Row(tenant, shown, path, unquote(model), int(length), int(bytes_), int(created) / 1000)
                found.append(_Version(int(number, 16), chance, row, size))
        return found

    def _folder(self, tenant: str, name: str = "") -> str:
        """Return the path of a tenant's objects, or of those of one name."""
        path = f"{self._root}/{tenant_folder(tenant)}"
        return f"{path}/{MARK}{name.translate(NAMES)}" if name else path

    # -- Claims ---------------------------------------------------------------------------------------------------

    def _claim(self, tenant: str, name: str) -> str:
        """Return a claim to a name, which keeps others from it until it is removed. Raises Unavailable if others are at it."""
        check_snapshot_name(name)
        folder, now = self._folder(tenant, name), self._now()
        own = f"{folder}/claim-{int(now)}-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as undo:
            undo.callback(self._remove, own)
            self._write(own, b"")
            claims = {path: CLAIM.fullmatch(path.rsplit("/", 1)[-1]) for path, _ in self._listed(folder)}
            others = {path: int(found[1]) for path, found in claims.items() if found is not None and path != own}
            if own not in claims or any(now - at < CLAIM_SECONDS for at in others.values()):
                raise Unavailable(f"somebody else saves or takes {name!r} at the moment: try again", retry_after_s=1.0)
            for path in others:
                self._remove(path)
            undo.pop_all()
        return own

    # -- The store ------------------------------------------------------------------------------------------------

    def _listed(self, folder: str) -> list[tuple[str, int]]:
        """Return the objects under a folder with their sizes."""
        self._files.invalidate_cache()
        try:
            found = self._files.find(folder, detail=True)
        except FileNotFoundError:
            return []
        return [(path, int(info["size"])) for path, info in found.items()]

    def _write(self, path: str, data: bytes) -> None:
        try:
            self._files.pipe_file(path, data)
        except FileNotFoundError:  # a store with folders
            self._files.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            self._files.pipe_file(path, data)

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(path)


@contextmanager
def _store_errors() -> Iterator[None]:
    """Raise Unavailable for what a backend raises. Its text, which may name buckets, hosts and keys, is for the log alone."""
    try:
        yield
    except InferdError:
        raise
    except Exception as error:  # the boundary to a backend of fsspec, each of which has errors of its own
        faults.error("the store of saved contexts: %s: %s", type(error).__name__, error)
        raise Unavailable(f"the store of saved contexts cannot be used: {type(error).__name__}") from error
