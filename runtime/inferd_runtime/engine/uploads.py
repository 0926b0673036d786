"""Uploads: files that arrive in pieces."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from weakref import WeakSet

from inferd.protocol import LimitExceeded

MAX_UPLOADS = 64
"""Of one tenant: each call looks at all of them."""


@dataclass(eq=False)
class UploadedFile:
    """A file of a tenant, as far as it has come."""

    tenant: str
    data: bytearray = field(default_factory=bytearray)


class Uploads:
    """Files, by number, until they are taken. Each tenant may have ``limit`` bytes of them in all, and so many.

    One that was taken counts as long as anybody holds it: many may wait to be read.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers = count(1)
        self._files: dict[int, UploadedFile] = {}
        self._taken: WeakSet[UploadedFile] = WeakSet()

    def begin(self, tenant: str) -> int:
        """Start a file, and return its number. Raises LimitExceeded for too many."""
        if len(self._of(tenant)) >= MAX_UPLOADS:
            raise LimitExceeded(
                f"{MAX_UPLOADS} uploads of the tenant are not loaded yet", limit="uploads", value=MAX_UPLOADS,
                raise_with="loading some, or closing their sessions",
            )  # fmt: skip
        number = next(self._numbers)
        self._files[number] = UploadedFile(tenant)
        return number

    def add(self, number: int, data: bytes) -> int:
        """Append to a file, and return its size. Raises LimitExceeded above the tenant's limit, and discards the file."""
        file = self._files[number]
        if len(data) + sum(len(other.data) for other in self._of(file.tenant)) > self._limit:
            self.discard(number)
            text = f"uploads that are not loaded yet may take {self._limit} bytes"
            raise LimitExceeded(text, limit="adapter_bytes", value=self._limit, raise_with="--max-adapter-bytes")
        file.data += data
        return len(file.data)

    def knows(self, number: int) -> bool:
        """True if the file exists and was not taken."""
        return number in self._files

    def take(self, number: int) -> UploadedFile:
        """Return a file and forget its number."""
        file = self._files.pop(number)
        self._taken.add(file)
        return file

    def discard(self, number: int) -> None:
        """Remove a file if it exists."""
        self._files.pop(number, None)

    def _of(self, tenant: str) -> list[UploadedFile]:
        return [file for file in (*self._files.values(), *self._taken) if file.tenant == tenant]
