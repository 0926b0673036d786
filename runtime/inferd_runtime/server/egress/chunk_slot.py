"""A queue for one piece of a body: a writer waits until the piece before was taken. A cancelled wait loses no piece."""

from __future__ import annotations

from inferd_runtime.change_signal import ChangeSignal


class ChunkSlot:
    """Hands pieces from one task to another, one at a time."""

    def __init__(self) -> None:
        self._chunk: bytes | None = None
        self._last = False
        self._closed = False
        self._changed = ChangeSignal()

    async def put(self, chunk: bytes, *, last: bool = False) -> bool:
        """Hand a piece over, once there is room. Returns False if nobody takes it any more."""
        while self._chunk is not None and not self._closed:
            await self._changed.wait()
        if self._closed:
            return False
        self._chunk, self._last = chunk, last
        self._changed.wake()
        return True

    async def take(self) -> tuple[bytes, bool]:
        """Return the next piece, and whether it is the last. After a close: nothing, and that it is."""
        await self.wait_for_chunk()
        return self.take_now() or (b"", True)

    async def wait_for_chunk(self) -> None:
        """Wait until there is a piece, or will be none."""
        while self._chunk is None and not self._closed:
            await self._changed.wait()

    def take_now(self) -> tuple[bytes, bool] | None:
        """Return the piece that is there, if there is one."""
        if self._chunk is None:
            return None
        chunk, self._chunk = self._chunk, None
        if self._last:
            self._closed = True
        self._changed.wake()
        return chunk, self._last

    def close(self) -> None:
        """End all waits. A piece that is there can still be taken."""
        self._closed = True
        self._changed.wake()
