"""A session without processes: the caller's thread steps the engine until its request is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferd import protocol as p
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.session import Session
from inferd_runtime.session.state import SessionState

DISK_SECONDS = 30.0


@dataclass(frozen=True)
class Generated:
    """Result of one generation: its tokens (end of text left out), text, steps, and why it ended."""

    tokens: list[int]
    text: str
    steps: list[p.Step]
    finish: str

    @property
    def accepted(self) -> int:
        """Number of accepted draft tokens."""
        return sum(step.accepted for step in self.steps)


class DirectSession:
    """Protocol requests as plain calls, for tests, tools and benchmarks."""

    def __init__(self, model: ServedModel, *, tenant: str = "direct", snapshots: SnapshotStore | None = None) -> None:
        self.engine = model.engine
        self.session = Session(SessionState({model.info.name: model}, tenant, snapshots))
        self._snapshots = snapshots
        self._ticket = 0

    def submit(self, request: Any) -> tuple[int, list[Any]]:
        """Submit a request. Return its ticket, and the list that its one answer will be appended to."""
        self._ticket += 1
        replies: list[Any] = []
        self.session.handle(self._ticket, request, replies.append)
        return self._ticket, replies

    def call(self, request: Any) -> Any:
        """Step the engine until a request is answered, and return the reply. Raises the InferdError that was answered."""
        _, replies = self.submit(request)
        while not replies:
            progressed = self.engine.step() or bool(replies) or self._poll_snapshots()
            assert progressed or replies, f"{request} is never answered"
        assert len(replies) == 1
        if isinstance(replies[0], p.InferdError):
            raise replies[0]
        return replies[0]

    def _poll_snapshots(self) -> bool:
        """Wait for the disk thread, if there is one."""
        if self._snapshots is None or not self._snapshots.wait(DISK_SECONDS):
            return False
        self._snapshots.poll()
        return True

    def context(self, *parts: p.Part) -> int:
        """Return the handle of a new context that holds the parts."""
        context = int(self.call(p.CreateContext()).context)
        if parts:
            self.call(p.AppendContext(context, list(parts)))
        return context

    def text(self, text: str) -> int:
        """Return the handle of a new context that holds raw text."""
        return self.context(p.Part("text", text=text))

    def chat(self, system: str, user: str) -> int:
        """Return the handle of a new context that holds a system and a user message, and the assistant's cue."""
        return self.context(p.Part("message", "system", system), p.Part("message", "user", user), p.Part("cue"))

    def tokens(self, context: int) -> list[int]:
        """Return the tokens that a context holds."""
        return list(self.call(p.ContextTokens(context)).tokens)

    def generate(self, context: int, **fields: Any) -> Generated:
        """Run one generation (fields of StartGenerate) to its end, close it, and return its result."""
        generation = self.call(p.StartGenerate(context, **fields)).generation
        steps: list[p.Step] = []
        finish = ""
        while not finish:
            reply = self.call(p.NextSteps(generation))
            finish, steps = reply.finish, steps + reply.steps
        self.call(p.CloseGenerate(generation))
        return Generated([t for step in steps for t in step.tokens], "".join(s.text for s in steps), steps, finish)

    def together(self, contexts: Sequence[int], **fields: Any) -> list[list[int]]:
        """Run one generation per context at the same time, and return the tokens of each."""
        handles = [self.call(p.StartGenerate(context, **fields)).generation for context in contexts]
        tokens: list[list[int]] = [[] for _ in handles]
        waiting = {i: self.submit(p.NextSteps(handle))[1] for i, handle in enumerate(handles)}
        while waiting:
            self.engine.step()
            for i, replies in [(i, replies) for i, replies in waiting.items() if replies]:
                tokens[i] += [token for step in replies[0].steps for token in step.tokens]
                del waiting[i]
                if not replies[0].finish:
                    waiting[i] = self.submit(p.NextSteps(handles[i]))[1]
        return tokens

    def close(self) -> None:
        """Release everything and check that no page is left behind."""
        self.session.close()
        self.engine.pool.check_integrity([])
