"""The sessions of a draft engine: which target has which sequences there."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterator

from inferd_runtime.draft_models.messages import AskDraft
from inferd_runtime.draft_models.remote.handshake import RefusedForNow

MOST_SESSIONS = 64
MOST_SEQUENCES = 1024
"""Of one session: as many as a draft host has at all."""
HALF_OPEN = 128
HALF_OPEN_OF_ADDRESS = 16
"""Connections that have not shown the key, of all addresses and of one."""


class DraftSession:
    """The sequences of one target. What it calls a number is another one here, so that no session reaches another's."""

    def __init__(self, name: str, numbers: Iterator[int], most: int) -> None:
        self.name = name
        self._numbers = numbers
        self._most = most
        self._own: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._own)

    def number(self, request: AskDraft) -> int | None:
        """Return the number of a request's sequence here, a new one if it starts; None if it is not known."""
        if request.spec is not None and request.sequence not in self._own:
            self._own[request.sequence] = next(self._numbers)
        if request.sequence in self._own:
            self._own.move_to_end(request.sequence)
        return self._own.get(request.sequence)

    def surplus(self) -> list[int]:
        """Forget the least recently used sequences beyond the limit, and return their numbers here, to be dropped."""
        return [self._own.popitem(last=False)[1] for _ in range(len(self._own) - self._most)]

    def drop(self, sequence: int) -> int | None:
        """Forget a sequence, and return its number here; None if it is not known."""
        return self._own.pop(sequence, None)

    def end(self) -> list[int]:
        """Forget all sequences, and return their numbers here."""
        numbers = list(self._own.values())
        self._own.clear()
        return numbers


class SessionTable:
    """All open sessions, bounded in number."""

    def __init__(self, most: int = MOST_SESSIONS, most_sequences: int = MOST_SEQUENCES) -> None:
        self._most = most
        self._most_sequences = most_sequences
        self._numbers = itertools.count(1)
        self._open: dict[str, DraftSession] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self) -> DraftSession:
        """Open a session. Raises RefusedForNow when there are too many."""
        if len(self._open) >= self._most:
            raise RefusedForNow(f"{self._most} sessions are open, and no more are allowed")
        session = DraftSession(secrets.token_hex(8), self._numbers, self._most_sequences)
        self._open[session.name] = session
        return session

    def close(self, session: DraftSession) -> list[int]:
        """Close a session, and return the numbers of its sequences, to be dropped. Nothing the second time."""
        self._open.pop(session.name, None)
        return session.end()


class HalfOpen:
    """Counts the connections that have not shown the key, of all addresses and of each."""

    def __init__(self, most: int = HALF_OPEN, most_of_address: int = HALF_OPEN_OF_ADDRESS) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._counts: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count a connection. False if there are too many: it has to be closed, and does not count."""
        if self._counts.total() >= self._most or self._counts[address] >= self._most_of_address:
            return False
        self._counts[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count a connection no more."""
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
