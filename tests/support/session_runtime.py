"""The real session over drivers that say what a test wants, where a fake runtime would have to imitate the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from inferd.transport import restore_transport, use_transport
from inferd_runtime.engine.sampling.host_sampling import LogitRows
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.models.batch import FloatRows
from inferd_runtime.testing.byte_tokenizer import END, TURN, VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import HIDDEN, NullDriver
from inferd_runtime.testing.served import null_model
from inferd_runtime.testing.transport import DirectTransport

CUE = [TURN, *b"assistant:"]


class SessionRuntime(DirectTransport):
    """A session in this process; in its ``with`` block it is the runtime in force, and at the end it holds no page."""

    def __init__(self, driver: NullDriver | None = None, snapshots: SnapshotStore | None = None) -> None:
        super().__init__()
        self.direct = DirectSession(null_model(driver=driver), snapshots=snapshots)
        self._restore: list[Any] = []

    def __enter__(self) -> Self:
        self._restore.append(use_transport(self))
        return self

    def __exit__(self, *error: object) -> None:
        restore_transport(self._restore.pop())
        self.direct.close()

    @property
    def contexts(self) -> int:
        """Return how many contexts the session holds."""
        return len(self.direct.session.owned_tables())

    def of_kind(self, kind: type[Any]) -> list[Any]:
        """Return the requests of one type, in order."""
        return [request for request in self.requests if type(request) is kind]


class SayingDriver(NullDriver):
    """Writes ``answer(prompt)`` behind every prompt that ends with ``cue``, and then the end of the text."""

    def __init__(
        self, answer: Callable[[list[int]], Sequence[int]], cue: Sequence[int] = CUE, *, room: int = 512
    ) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, order=room, max_context=room, pages=max(256, room))
        self._answer = answer
        self._cue = list(cue)

    def logits(self, history: list[int]) -> LogitRows:
        """All is possible, but what comes next outweighs whatever noise is drawn."""
        row = np.zeros(self.vocab_size, np.float32)
        row[self._next(history)] = 1000.0
        return row

    def _next(self, history: list[int]) -> int:
        size = len(self._cue)
        for end in range(len(history), size - 1, -1):
            if history[end - size : end] == self._cue:
                said = [*self._answer(history[: end - size]), END]
                return said[min(len(history) - end, len(said) - 1)]
        return END


class PlainDriver(NullDriver):
    """Likes the end of text a little better than all other tokens; a token's hidden state is its id's digits to base 4."""

    def __init__(self) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, order=512)

    def logits(self, history: list[int]) -> LogitRows:
        """1 for the end of text, 0 for everything else."""
        row = np.zeros(self.vocab_size, np.float32)
        row[END] = 1.0
        return row

    def hidden(self, history: list[int]) -> FloatRows:
        """The last token's digits, the lowest first."""
        return np.array([history[-1] // 4**place % 4 for place in range(HIDDEN)], np.float32)


def saying(*texts: str, cue: Sequence[int] = CUE) -> SessionRuntime:
    """Return a runtime whose model says the texts one after the other: whatever it said counts how many it has."""
    spoken = [text.encode() for text in texts]
    return SessionRuntime(SayingDriver(lambda prompt: spoken[_count(prompt, list(cue))], cue))


def _count(prompt: list[int], cue: list[int]) -> int:
    return sum(prompt[at : at + len(cue)] == cue for at in range(len(prompt)))
