"""The transport to a draft model in a thread of its own, which drafts while the target's forward pass releases the GIL."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer, Pollable
from inferd_runtime.waker import Waker

LOG = logging.getLogger(__name__)
ENDED = "the draft model's thread has ended"
ThreadTask = Callable[[], None]


class DraftThread:
    """Belongs to the thread of the step loop, which polls :attr:`waits_on` with its other sources and calls :meth:`poll`.

    The thread owns the host and its engine; ``prepare`` runs in it first. A request waits for at most one step of the draft
    model before it supersedes another. If the thread ends with an exception, all open and later requests are answered with an
    error, and generations go on without drafts.
    """

    overlaps = True
    round_trip = 0.0

    def __init__(self, host: DraftHost, prepare: Callable[[], None] | None = None) -> None:
        self._host = host
        self._prepare = prepare
        self._inbox: SimpleQueue[ThreadTask | None] = SimpleQueue()
        self._tickets = itertools.count()
        self._pending: dict[int, AnswerCallback] = {}
        self._answers: deque[tuple[int, DraftAnswer]] = deque()
        self._failed = False
        self._waker = Waker()
        self._thread = Thread(target=self._run, name="draft", daemon=True)
        self._thread.start()

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        if not self._alive:
            return done(DraftAnswer(error=ENDED))
        ticket = next(self._tickets)
        self._pending[ticket] = done
        self._inbox.put(partial(self._host.ask, None, request, partial(self._answered, ticket)))

    def drop(self, sequence: int) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        if self._alive:
            self._inbox.put(partial(self._host.drop, None, sequence))

    @property
    def waits_on(self) -> Sequence[Pollable]:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        return [self._waker]

    def wait(self, seconds: float) -> bool:
        """Wait until there may be something to do, for callers that poll nothing else. False when the time is up."""
        return self._waker.wait(seconds)

    def poll(self) -> bool:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._waker.drain()
        failed = self._failed  # read first: all answers were queued before
        progressed = bool(self._answers)
        while self._answers:
            ticket, answer = self._answers.popleft()
            self._pending.pop(ticket)(answer)
        if failed:
            pending, self._pending = self._pending, {}
            for done in pending.values():
                done(DraftAnswer(error=ENDED))
        return progressed

    def close(self) -> None:
        """End the thread; what is open is not answered any more."""
        self._inbox.put(None)
        self._thread.join()
        self._waker.close()

    @property
    def _alive(self) -> bool:
        return self._thread.is_alive() and not self._failed

    def _answered(self, ticket: int, answer: DraftAnswer) -> None:
        self._answers.append((ticket, answer))
        self._waker.wake()

    # -- In the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            # The boundary of the thread, above which no caller would see the exception.
            LOG.exception("the draft model's thread has ended; generations go on without it")
            self._failed = True
            self._waker.wake()

    def _serve(self) -> None:
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
