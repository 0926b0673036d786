"""Responses in a SQLite file, each with all that led to it, and where their items are.

Synchronous, and for one thread: :class:`~inferd_runtime.server.response_store.response_store.ResponseStore` calls it from its
own. What goes wrong with the file is Unavailable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferd_runtime.server.database_file import DatabaseFile, DatabaseFormat
from inferd_runtime.server.dialects.responses.items import Item
from inferd_runtime.server.dialects.responses.stored import StoredResponse
from inferd_runtime.server.run_store.pruning import Pruned, split_kept
from inferd_runtime.server.tenancy.quotas import Quotas

SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, size INTEGER NOT NULL, stored BLOB NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS responses_of_tenant ON responses (tenant, number);
CREATE TABLE IF NOT EXISTS items (
    tenant TEXT NOT NULL, id TEXT NOT NULL, response INTEGER NOT NULL REFERENCES responses(number) ON DELETE CASCADE,
    PRIMARY KEY (tenant, id)
) STRICT;
CREATE INDEX IF NOT EXISTS items_of_response ON items (response);
"""
CHECK = """
SELECT number, id, tenant, size, stored FROM responses LIMIT 0;
SELECT tenant, id, response FROM items LIMIT 0;
"""
FORMAT = DatabaseFormat(1, SCHEMA, CHECK, "the store of responses", "its responses are forgotten")
COLUMNS = "id, tenant, size, stored"
TAKE_OVER = (
    f"INSERT OR IGNORE INTO responses ({COLUMNS}) SELECT {COLUMNS} FROM other.responses ORDER BY number",
    "INSERT OR IGNORE INTO items SELECT items.tenant, items.id, responses.number FROM other.items AS items "
    "JOIN other.responses AS theirs ON theirs.number = items.response "
    "JOIN main.responses AS responses ON responses.id = theirs.id",
)
"""What copies the tables of the attached file ``other``, in which responses have other numbers."""
RESPONSE_BYTES = 512
ITEM_BYTES = 256
"""What a response and an item that can be referred to take beside their contents, about."""
SCORE_BYTES = 512
"""What a token with its log-probabilities takes, about."""
MOST_ITEMS = 256
"""Items of a conversation that can be referred to: the newest ones."""
_stored = msgspec.msgpack.Decoder(StoredResponse)


class ResponseFile:
    """The file. Every method raises Unavailable where the file or the disk does not do what it should."""

    def __init__(self, path: Path) -> None:
        self._file = DatabaseFile(path, FORMAT)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def begin(self, tenant: str, response_id: str, packed: bytes) -> None:
        """Keep a response that is not over, unless it is kept already: what is left of it if the server ends now."""
        with self._file.transaction() as db:
            row = (response_id, tenant, len(packed) + RESPONSE_BYTES, packed)
            db.execute("INSERT OR IGNORE INTO responses (id, tenant, size, stored) VALUES (?, ?, ?, ?)", row)

    def keep(self, tenant: str, response_id: str, packed: bytes, items: Sequence[str]) -> None:
        """Keep a response of :func:`packed_response`, whose ``items`` can be referred to from now on."""
        with self._file.transaction() as db:
            size = len(packed) + RESPONSE_BYTES + ITEM_BYTES * len(items)
            row = (response_id, tenant, size, packed)
            query = "INSERT OR REPLACE INTO responses (id, tenant, size, stored) VALUES (?, ?, ?, ?)"
            number = db.execute(query, row).lastrowid
            rows = [(tenant, item, number) for item in items]
            db.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", rows)

    def take_over(self, path: Path) -> None:
        """Take all that is in the file of a server that has ended; what is here already stays as it is."""
        ResponseFile(path).close()  # it may have to be mended, or be of an older format
        with self._file.taking_over(path) as db:
            for copy in TAKE_OVER:
                db.execute(copy)

    def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response. Returns False if the tenant has none of that id."""
        with self._file.transaction() as db:
            gone = db.execute("DELETE FROM responses WHERE id = ? AND tenant = ?", (response_id, tenant))
            return gone.rowcount > 0

    def prune(self, tenant: str, quotas: Quotas, oldest: int = 0) -> Pruned:
        """Forget the tenant's ``oldest`` responses, and those beyond its quotas except its newest one."""
        with self._file.transaction() as db:
            query = "SELECT number, size FROM responses WHERE tenant = ? ORDER BY number DESC"
            pruned = split_kept(db.execute(query, (tenant,)).fetchall(), quotas, oldest)
            db.executemany("DELETE FROM responses WHERE number = ?", [(number,) for number in pruned.forgotten])
        return pruned

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return how many responses of each tenant there are, and their bytes."""
        with self._file.reading() as db:
            rows = db.execute("SELECT tenant, count(*), sum(size) FROM responses GROUP BY tenant")
            return {tenant: (count, size) for tenant, count, size in rows}

    def find(self, tenant: str, response_id: str) -> StoredResponse | None:
        """Return a response of the tenant; None if there is none of that id."""
        with self._file.reading() as db:
            query = "SELECT stored FROM responses WHERE id = ? AND tenant = ?"
            row = db.execute(query, (response_id, tenant)).fetchone()
        return None if row is None else _opened(row[0])

    def size(self, tenant: str, response_id: str, items: Sequence[str]) -> int:
        """Return how many bytes :meth:`find` and :meth:`items` would read, without reading them: each response once."""
        marks = ", ".join("?" * len(items))
        query = (
            "SELECT coalesce(sum(length(stored)), 0) FROM responses WHERE tenant = ? AND (id = ? OR number IN "
            f"(SELECT response FROM items WHERE tenant = ? AND id IN ({marks})))"
        )
        with self._file.reading() as db:
            return int(db.execute(query, (tenant, response_id, tenant, *items)).fetchone()[0])

    def items(self, tenant: str, ids: Sequence[str]) -> dict[str, Item]:
        """Return those of the tenant's items that are kept, by their ids."""
        numbered = "SELECT response FROM items WHERE tenant = ? AND id = ?"
        with self._file.reading() as db:
            numbers = {row[0] for item in ids for row in db.execute(numbered, (tenant, item))}
            query = "SELECT stored FROM responses WHERE number = ?"
            packed = [db.execute(query, (number,)).fetchone()[0] for number in sorted(numbers)]
        wanted = set(ids)
        found = [item for one in packed for item in _opened(one).conversation]
        return {item["id"]: item for item in found if item["id"] in wanted}


def packed_response(stored: StoredResponse) -> tuple[bytes, list[str]]:
    """Return a response as it is kept, and the ids of its items that can be referred to."""
    ids = dict.fromkeys(item["id"] for item in stored.conversation[-MOST_ITEMS:])
    return msgspec.msgpack.encode(_changed(stored, _as_bytes)), list(ids)


def _opened(packed: bytes) -> StoredResponse:
    return _changed(_stored.decode(packed), _as_json)


def _changed(stored: StoredResponse, change: Callable[[Any], Any]) -> StoredResponse:
    """Return a response with other log-probabilities."""
    output, before = (
        [_with_logprobs(item, change) for item in items] for items in (stored.response["output"], stored.input)
    )
    return StoredResponse({**stored.response, "output": output}, before, stored.events)


def _with_logprobs(item: Item, change: Callable[[Any], Any]) -> Item:
    parts = item.get("content")
    if not isinstance(parts, list) or not any("logprobs" in part for part in parts):
        return item
    return {**item, "content": [part | {"logprobs": change(part.get("logprobs"))} for part in parts]}


def _as_bytes(logprobs: Any) -> Any:
    """Return log-probabilities that were written as JSON as bytes, which no client can send, and others as they are."""
    return bytes(logprobs) if isinstance(logprobs, msgspec.Raw) else logprobs


def _as_json(logprobs: Any) -> Any:
    return msgspec.Raw(logprobs) if isinstance(logprobs, bytes) else logprobs


def about_bytes(stored: StoredResponse) -> int:
    """Return about how many bytes a response takes, without packing it: so much of it waits to be written."""
    response = len(msgspec.json.encode({**stored.response, "output": []}))
    items = sum(_about_bytes(item) for item in stored.conversation)
    return RESPONSE_BYTES + response + len(stored.events or b"") + items


def _about_bytes(item: Item) -> int:
    """Return about how many bytes an item takes: its texts and its tokens with log-probabilities count."""
    lists = [item[name] for name in ("content", "summary", "output") if isinstance(item.get(name), list)]
    parts = [part for each in lists for part in each]
    texts = sum(len(part.get("text") or part.get("refusal") or "") for part in parts)
    texts += sum(len(item[name]) for name in ("arguments", "output") if isinstance(item.get(name), str))
    return ITEM_BYTES + texts + sum(map(_about_logprobs, parts))


def _about_logprobs(part: dict[str, Any]) -> int:
    """Return about how many bytes the log-probabilities of a part take: written as JSON they are known."""
    logprobs = part.get("logprobs") or ()
    return len(logprobs) if isinstance(logprobs, msgspec.Raw) else SCORE_BYTES * len(logprobs)
