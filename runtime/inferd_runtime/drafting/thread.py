"""A draft model in a thread of its own: it drafts while the target's forward pass has let go of the interpreter."""

from __future__ import annotations

import contextlib
import os
import select
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from inferd_runtime.drafting.host import DraftHost
from inferd_runtime.drafting.messages import AskDraft, Done, DraftAnswer, Pollable

Message = Callable[[], None]


class DraftThread:
    """Belongs to the thread of the step loop, which polls :attr:`waits_on` with its other sources and calls :meth:`poll`.

    The thread owns the host and its engine; ``prepare`` runs in it first. A request waits for at most one step of the draft
    model before it supersedes another.
    """

    overlaps = True

    def __init__(self, host: DraftHost, prepare: Callable[[], None] | None = None) -> None:
        self._host = host
        self._prepare = prepare
        self._inbox: SimpleQueue[Message | None] = SimpleQueue()
        self._answers: deque[tuple[Done, DraftAnswer]] = deque()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = Thread(target=self._run, name="draft", daemon=True)
        self._thread.start()

    def ask(self, request: AskDraft, done: Done) -> None:
        """See :class:`~inferd_runtime.drafting.messages.DraftTransport`."""
        if not self._thread.is_alive():
            return done(DraftAnswer(error="the draft model's thread has ended"))
        self._inbox.put(partial(self._host.ask, None, request, partial(self._answered, done)))

    def drop(self, sequence: int) -> None:
        """See :class:`~inferd_runtime.drafting.messages.DraftTransport`."""
        self._inbox.put(partial(self._host.drop, None, sequence))

    @property
    def waits_on(self) -> Sequence[Pollable]:
        """See :class:`~inferd_runtime.drafting.messages.DraftTransport`."""
        return [self._event]

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return bool(select.select([self._event], [], [], seconds)[0])

    def poll(self) -> bool:
        """See :class:`~inferd_runtime.drafting.messages.DraftTransport`."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        progressed = bool(self._answers)
        while self._answers:
            done, answer = self._answers.popleft()
            done(answer)
        return progressed

    def close(self) -> None:
        """End the thread; what is open is not answered any more."""
        self._inbox.put(None)
        self._thread.join()
        os.close(self._event)

    def _answered(self, done: Done, answer: DraftAnswer) -> None:
        self._answers.append((done, answer))
        os.eventfd_write(self._event, 1)

    # -- In the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._prepare is not None:
            self._prepare()
        busy = False
        while self._receive(wait=not busy):
            busy = self._host.step()
        self._host.close()

    def _receive(self, *, wait: bool) -> bool:
        """Take all messages that have come; False after the last one."""
        while True:
            try:
                message = self._inbox.get(block=wait)
            except Empty:
                return True
            if message is None:
                return False
            message()
            wait = False
