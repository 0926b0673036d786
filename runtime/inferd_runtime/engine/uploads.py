"""Files that arrive in pieces."""

from __future__ import annotations

from itertools import count

from inferd.protocol import LimitExceeded


class Uploads:
    """Files that are not complete yet, by number. Each tenant may have ``limit`` bytes of them in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers = count(1)
        self._files: dict[int, tuple[str, bytearray]] = {}

    def begin(self, tenant: str) -> int:
        """A new file's number."""
        number = next(self._numbers)
        self._files[number] = (tenant, bytearray())
        return number

    def add(self, number: int, data: bytes) -> int:
        """Append to a file; how many bytes it has then. Raises LimitExceeded, and the file is gone."""
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
        """Whether there is such a file."""
        return number in self._files

    def take(self, number: int) -> bytes:
        """A file's bytes; it is forgotten."""
        return bytes(self._files.pop(number)[1])

    def discard(self, number: int) -> None:
        """Forget a file, if it is still there."""
        self._files.pop(number, None)
