"""Tokens' log-probabilities with their texts and bytes, as clients want to see them."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from inferd.chat.events import TokenScore
from inferd.protocol import TokenBytes, TokenPieces
from inferd.protocol.passes import TokenLogprob
from inferd.transport import current_transport


class TokenScores:
    """Asks the runtime for the bytes of tokens, of each token once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._bytes: dict[int, bytes] = {}

    async def of(self, entries: Sequence[TokenLogprob], *, ranked: bool = True) -> list[TokenScore]:
        """Return a score for each entry, with its alternatives. ``ranked``: they are the most likely ones, in order."""
        await self._learn({token for entry in entries for token in (entry.token, *entry.top_tokens)})
        return [self._score(entry, ranked) for entry in entries]

    async def _learn(self, tokens: set[int]) -> None:
        unknown = sorted(tokens - self._bytes.keys())
        if unknown:
            reply: TokenPieces = await current_transport().call(TokenBytes(unknown, self._model))
            self._bytes |= {token: base64.b64decode(piece) for token, piece in zip(unknown, reply.pieces, strict=True)}

    def _score(self, entry: TokenLogprob, ranked: bool) -> TokenScore:
        told = zip(entry.top_tokens, entry.top_logprobs, strict=True)
        top = [self._one(*pair, [], rank if ranked else 0) for rank, pair in enumerate(told, 1)]
        return self._one(entry.token, entry.logprob, top, entry.rank)

    def _one(self, token: int, logprob: float | None, top: list[TokenScore], rank: int) -> TokenScore:
        data = self._bytes[token]
        return TokenScore(token, data.decode(errors="replace"), list(data), logprob, top, rank)
