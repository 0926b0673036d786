"""The plain transport to a draft model: in the caller's thread, answered before the request returns."""

from __future__ import annotations

from collections.abc import Sequence

from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer, Pollable


class DirectDrafts:
    """The reference for the other transports. ``overlaps``: draft ahead all the same, as if there were time for it."""

    round_trip = 0.0

    def __init__(self, host: DraftHost, *, overlaps: bool = False) -> None:
        self.overlaps = overlaps
        self._host = host

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        answers: list[DraftAnswer] = []
        self._host.ask(None, request, answers.append)
        while not answers and self._host.step():
            pass
        done(answers[0] if answers else DraftAnswer(error="the draft engine does not go on"))

    def drop(self, sequence: int) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._host.drop(None, sequence)

    def poll(self) -> bool:
        """Return False, as no answer is ever outstanding."""
        return False

    @property
    def waits_on(self) -> Sequence[Pollable]:
        """Empty."""
        return ()

    def close(self) -> None:
        """See :class:`~inferd_runtime.draft_models.messages.DraftTransport`."""
        self._host.close()
