"""Calls a program's own sampler (``generate(my_sampler)``) for each token, and checks what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from inferd.custom_sampler import Candidates, CustomSampler, candidates_of
from inferd.protocol import CandidateRow, GenerationStarted, InvalidRequest
from inferd.protocol.tokens import plain_whole


class SamplerRunner:
    """Asks a program's own sampler for the token of each row that the runtime offers."""

    def __init__(self, sampler: CustomSampler, start: GenerationStarted) -> None:
        self._choose = sampler.start()
        self._context = list(start.prompt)
        self._start = len(self._context)
        self._row: Candidates | None = None

    async def next_token(self) -> int | None:
        """Return the token for the row that was offered last; None if none was.

        Raises InvalidRequest for what is no token id, and whatever the sampler raises.
        """
        if self._row is None:
            return None
        answer = self._choose(self._row)
        token = plain_whole(await answer if inspect.isawaitable(answer) else answer)
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise InvalidRequest(f"the sampler must return the id of a token, not {token!r}")
        return int(token)

    def record(self, tokens: Sequence[int], rows: Sequence[CandidateRow]) -> None:
        """Store the tokens that a reply brought, and the row that it offers, for the next call."""
        self._context += tokens
        made = len(self._context) - self._start
        self._row = candidates_of(rows[0], self._context, made) if rows else None
