"""The interface that an answer is read from, the same for all that can answer."""

from __future__ import annotations

from typing import Protocol

from inferd.chat import ChatEvent


class AnswerSource(Protocol):
    """The events of one answer."""

    run: str
    """The id of the run that writes it, "" where there is none."""

    async def next(self) -> list[ChatEvent]:
        """Wait for more events; an empty list is the end. Raises the InferdError that the answer failed with."""
