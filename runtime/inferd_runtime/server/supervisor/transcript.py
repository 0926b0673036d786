"""What a run has said, as a position and a digest: a run that is started again is held against it. Pure state.

How text was cut into events does not count, because that depends on time; its order, and that of messages, does.
"""

from __future__ import annotations

import hashlib

from inferd.protocol import ProgramError
from inferd_runtime.server.run_store.records import Said

MESSAGE = "message"


class ReplayDiffers(ProgramError):
    """A retry-safe run that was started again said something else than the first time."""

    code = "program.replay_differs"

    def __init__(self) -> None:
        super().__init__(
            "the run was started again after a crash, and did not say again what it had said: it is not safe to retry"
        )


class Transcript:
    """All that a run has said. ``position`` counts bytes: of the text, and of what separates its parts."""

    def __init__(self) -> None:
        self.position = 0
        self._hash = hashlib.sha256()
        self._kind = ""

    @property
    def said(self) -> Said:
        """What it comes to, so far."""
        return Said(self.position, self._hash.digest())

    def begin(self, kind: str) -> None:
        """Note that a text of this stream, or a message, follows."""
        if kind == MESSAGE or kind != self._kind:
            self.add(f"\0{kind}\0".encode())
        self._kind = kind

    def add(self, data: bytes) -> None:
        """Note the next bytes."""
        self._hash.update(data)
        self.position += len(data)


class RunReplay:
    """Takes what a run says when it is started again, and leaves out what it had said before."""

    def __init__(self, said: Said) -> None:
        self.transcript = Transcript()
        self._before = said
        self._differs = False

    @property
    def said(self) -> Said:
        """What the run has said in all of its attempts."""
        return self.transcript.said if self.over and not self._differs else self._before

    @property
    def over(self) -> bool:
        """True once the run has said again all that it had said."""
        return self.transcript.position >= self._before.position

    def take(self, kind: str, text: str) -> str:
        """Return what of a text, or a message, is new: "" for nothing. Raises ReplayDiffers, from then on always."""
        was_over = self.over
        self.transcript.begin(kind)
        data = text.encode()
        known = max(0, min(self._before.position - self.transcript.position, len(data)))
        if not was_over and kind == MESSAGE and known < len(data):
            self._differs = True
        self.transcript.add(data[:known])
        if not was_over and self.over and self.transcript.said != self._before:
            self._differs = True
        if self._differs:
            raise ReplayDiffers
        self.transcript.add(data[known:])
        return data[known:].decode(errors="replace")

    def finish(self) -> None:
        """Note that the run is over. Raises ReplayDiffers if it has not said again all that it had said."""
        if self._differs or not self.over:
            raise ReplayDiffers
