"""Uploads: files that arrive in pieces."""

from __future__ import annotations

from itertools import count

from inferd.protocol import LimitExceeded

MAX_UPLOADS = 64
"""Of one tenant: each call looks at all of them."""


class Uploads:
    """Incomplete files, by number. Each tenant may have ``limit`` bytes of them in all, and so many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers = count(1)
        self._files: dict[int, tuple[str, bytearray]] = {}

    def begin(self, tenant: str) -> int:
        """Start a file, and return its number. Raises LimitExceeded for too many."""
        if sum(owner == tenant for owner, _ in self._files.values()) >= MAX_UPLOADS:
            raise LimitExceeded(
                f"{MAX_UPLOADS} uploads of the tenant are not loaded yet", limit="uploads", value=MAX_UPLOADS,
                raise_with="loading some, or closing their sessions",
            )  # fmt: skip
        number = next(self._numbers)
        self._files[number] = (tenant, bytearray())
        return number

    def add(self, number: int, data: bytes) -> int:
        """Append to a file, and return its size. Raises LimitExceeded above the tenant's limit, and discards the file."""
        tenant, file = self._files[number]
        if len(data) + sum(len(other) for owner, other in self._files.values() if owner == tenant) > self._limit:
            self.discard(number)
            raise LimitExceeded(
                f"uploads that are not loaded yet may take {self._limit} bytes",
                limit="adapter_bytes",
                value=self._limit,
                raise_with="--max-adapter-bytes",
            )
        file += data
        return len(file)

    def knows(self, number: int) -> bool:
        """True if the file exists."""
        return number in self._files

    def take(self, number: int) -> bytearray:
        """Remove a file, and return its bytes."""
        return self._files.pop(number)[1]

    def discard(self, number: int) -> None:
        """Remove a file if it exists."""
        self._files.pop(number, None)
