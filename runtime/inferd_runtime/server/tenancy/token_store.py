"""Tokens that can be made, listed and revoked while a server runs: one SQLite file, which holds hashes only."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.server.tenancy.quotas import Role
from inferd_runtime.server.tenancy.shared_file import SharedFile
from inferd_runtime.server.tenancy.tokens import TokenRights, new_token, token_digest

TOKENS_FILE = "tokens.sqlite3"
SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL, role TEXT NOT NULL, note TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL, revoked_at REAL
) STRICT;
"""
COLUMNS = "id, tenant, role, note, created_at, expires_at, revoked_at"


@dataclass(frozen=True)
class TokenEntry:
    """A token as it is listed. Times in seconds since the epoch, None for what has not happened or never will."""

    id: str
    tenant: str
    role: str
    note: str
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    @property
    def rights(self) -> TokenRights:
        """What the token allows. Raises ValueError for a role that there is not."""
        return TokenRights(
            self.tenant, Role(self.role), self.id, math.inf if self.expires_at is None else self.expires_at
        )

    def is_valid(self, now: float) -> bool:
        """Return True if the token opens anything at ``now``."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


@dataclass(frozen=True)
class NewToken:
    """A token that was just made: the only time that its text is known."""

    token: str
    entry: TokenEntry


class TokenStore(SharedFile):
    """The tokens' file."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        super().__init__(path, "tokens'", SCHEMA)
        self._now = now
        self._rights: Mapping[bytes, TokenRights] = {}

    def rights(self) -> Mapping[bytes, TokenRights]:
        """Return what the tokens that are not revoked allow, by digest: the same object until somebody changes the file.

        Some may have expired. Raises Unavailable if the file cannot be read.
        """
        with self._typed():
            version = self._db.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version:
                rows = self._db.execute(f"SELECT digest, {COLUMNS} FROM tokens WHERE revoked_at IS NULL")
                self._rights = {digest: _entry(row).rights for digest, *row in rows}
                self._version = version
        return self._rights

    def create(self, tenant: str, role: Role, lifetime_s: float | None = None, note: str = "") -> NewToken:
        """Make a token."""
        token, now = new_token(), self._now()
        expires_at = None if lifetime_s is None else now + lifetime_s
        entry = TokenEntry(f"tok-{secrets.token_hex(4)}", tenant, role.value, note, now, expires_at, None)
        values = (entry.id, token_digest(token), entry.tenant, entry.role, note, now, expires_at)
        with self._typed():
            self._db.execute("INSERT INTO tokens VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", values)
        self._version = -1
        return NewToken(token, entry)

    def entries(self) -> list[TokenEntry]:
        """Return all tokens that were ever made, newest first."""
        with self._typed():
            rows = self._db.execute(f"SELECT {COLUMNS} FROM tokens ORDER BY created_at DESC, rowid DESC")
            return [_entry(row) for row in rows]

    def revoke(self, token_id: str) -> TokenEntry:
        """End a token now. Raises NotFound."""
        with self._typed():
            changed = "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?) WHERE id = ?"
            self._db.execute(changed, (self._now(), token_id))
        self._version = -1
        return self._entry(token_id)

    def rotate(self, token_id: str, overlap_s: float = 0.0) -> NewToken:
        """Make a token like another one, with a life as long, which ends in ``overlap_s``. Raises NotFound, InvalidRequest."""
        with self._typed(), self._db:
            # Else a token that is rotated or revoked at once has several successors.
            self._db.execute("BEGIN IMMEDIATE")
            old, now = self._entry(token_id), self._now()
            if not old.is_valid(now):
                raise InvalidRequest(f"{token_id} is revoked or expired: make a new one with `inferd token create`")
            lifetime = None if old.expires_at is None else old.expires_at - old.created_at
            made = self.create(old.tenant, Role(old.role), lifetime, old.note)
            end = now + overlap_s if old.expires_at is None else min(now + overlap_s, old.expires_at)
            self._db.execute("UPDATE tokens SET expires_at = ? WHERE id = ?", (end, token_id))
        return made

    def _entry(self, token_id: str) -> TokenEntry:
        found = next((entry for entry in self.entries() if entry.id == token_id), None)
        if found is None:
            raise NotFound(f"there is no token {token_id!r}; see `inferd token list`")
        return found


def _entry(row: Sequence[Any]) -> TokenEntry:
    """Return the token of a row of ``COLUMNS``. Raises ValueError for what this program has not written there."""
    return msgspec.convert(dict(zip(COLUMNS.split(", "), row, strict=True)), TokenEntry)
