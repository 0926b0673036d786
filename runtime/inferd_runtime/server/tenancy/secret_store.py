"""Secrets that programs use by name and never see: one SQLite file of mode 600, which the gateway reads and nobody else.

The texts are not encrypted: the server needs them without being asked for a key, and a key beside them would protect nothing.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inferd.protocol import Forbidden, InvalidRequest, NotFound
from inferd.protocol.http import SECRET_NAME
from inferd_runtime.server.egress.origins import Origin, OriginPattern, read_pattern
from inferd_runtime.server.egress.redaction import SHORTEST
from inferd_runtime.server.tenancy.shared_file import SharedFile

SCHEMA = """
CREATE TABLE IF NOT EXISTS secrets (
    tenant TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, origins TEXT NOT NULL, changed_at REAL NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT;
"""
ALL_TENANTS = "*"
VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
MAX_VALUE = 8 << 10


@dataclass(frozen=True)
class SecretEntry:
    """A secret as it is listed: never with its text. ``tenant``: whose programs may use it, ``*`` for everybody's."""

    tenant: str
    name: str
    origins: list[str]
    changed_at: float


@dataclass(frozen=True)
class Secret:
    """A secret with its text, and where it may be sent."""

    entry: SecretEntry
    value: str = field(repr=False)

    @property
    def patterns(self) -> tuple[OriginPattern, ...]:
        """The origins that it is bound to."""
        return tuple(map(read_pattern, self.entry.origins))

    def check(self, origin: Origin) -> None:
        """Raise Forbidden if it is not bound to an origin."""
        if not any(pattern.matches(origin) for pattern in self.patterns):
            raise Forbidden(f"the secret {self.entry.name} is not for {origin}: see `inferd secret list`")


class SecretStore(SharedFile):
    """The secrets' file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "secrets'", SCHEMA, secret=True)
        self._secrets: Mapping[tuple[str, str], Secret] = {}

    def find(self, name: str, tenant: str) -> Secret:
        """Return a tenant's secret, or everybody's of that name. Raises NotFound, and Unavailable."""
        secrets = self._current()
        found = secrets.get((tenant, name)) or secrets.get((ALL_TENANTS, name))
        if found is None:
            raise NotFound(f"this tenant has no secret {name}: an operator makes one with `inferd secret set`")
        return found

    def set(self, name: str, tenant: str, value: str, origins: Sequence[str]) -> SecretEntry:
        """Keep a secret, in place of an older one of that name. Raises InvalidRequest."""
        check_secret(name, value, origins)
        entry = SecretEntry(tenant, name, [str(read_pattern(origin)) for origin in origins], time.time())
        values = (tenant, name, value, json.dumps(entry.origins), entry.changed_at)
        with self._typed():
            self._db.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?, ?, ?, ?)", values)
        self._version = -1
        return entry

    def remove(self, name: str, tenant: str) -> None:
        """Forget a secret. Raises NotFound."""
        with self._typed():
            changed = self._db.execute("DELETE FROM secrets WHERE tenant = ? AND name = ?", (tenant, name)).rowcount
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._version = -1
        if not changed:
            raise NotFound(f"{tenant} has no secret {name}; see `inferd secret list`")

    def entries(self) -> list[SecretEntry]:
        """Return all secrets without their texts, by tenant and name."""
        secrets = self._current()
        return [secrets[key].entry for key in sorted(secrets)]

    def _current(self) -> Mapping[tuple[str, str], Secret]:
        with self._typed():
            version = self._db.execute("PRAGMA data_version").fetchone()[0]
            if version != self._version:
                rows = self._db.execute("SELECT tenant, name, value, origins, changed_at FROM secrets")
                self._secrets = {
                    (tenant, name): Secret(SecretEntry(tenant, name, json.loads(origins), changed), value)
                    for tenant, name, value, origins, changed in rows
                }
                self._version = version
        return self._secrets


def check_secret(name: str, value: str, origins: Sequence[str]) -> None:
    """Raise InvalidRequest for what cannot be a secret. Its text is not repeated."""
    if not SECRET_NAME.fullmatch(name):
        raise InvalidRequest(f"a secret's name must match {SECRET_NAME.pattern}, {name!r} does not")
    if not origins:
        raise InvalidRequest("a secret is bound to the origins that it may be sent to: --for https://api.example.com")
    if not VALUE.fullmatch(value) or not SHORTEST <= len(value) <= MAX_VALUE:
        raise InvalidRequest(
            f"a secret has {SHORTEST} to {MAX_VALUE} printable ASCII characters, no line break among them"
        )
