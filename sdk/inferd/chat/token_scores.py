"""Tokens' log-probabilities with their texts and bytes, as clients want to see them, and where in a text they stand."""

from __future__ import annotations

import base64
import codecs
from collections.abc import Sequence

from inferd.chat.events import TokenScore
from inferd.protocol import TokenBytes, TokenPieces
from inferd.protocol.passes import TokenLogprob
from inferd.transport import current_transport


class TokenScores:
    """Asks the runtime for the bytes of tokens, of each token once."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._known: dict[int, tuple[str, list[int]]] = {}

    async def of(
        self, entries: Sequence[TokenLogprob], *, top: int | None = None, ranked: bool = True
    ) -> list[TokenScore]:
        """Return a score for each entry, with its alternatives, ``top`` of them at most.

        ``ranked``: they are the most likely ones, in order.
        """
        await self._learn({token for entry in entries for token in (entry.token, *entry.top_tokens[:top])})
        return [self._score(entry, top, ranked) for entry in entries]

    async def _learn(self, tokens: set[int]) -> None:
        unknown = sorted(tokens - self._known.keys())
        if unknown:
            reply: TokenPieces = await current_transport().call(TokenBytes(unknown, self._model))
            pieces = (base64.b64decode(piece) for piece in reply.pieces)
            told = ((data.decode(errors="replace"), list(data)) for data in pieces)
            self._known |= dict(zip(unknown, told, strict=True))

    def _score(self, entry: TokenLogprob, most: int | None, ranked: bool) -> TokenScore:
        told = zip(entry.top_tokens[:most], entry.top_logprobs[:most], strict=True)
        top = [
            TokenScore(token, *self._known[token], logprob, [], rank if ranked else 0)
            for rank, (token, logprob) in enumerate(told, 1)
        ]
        return TokenScore(entry.token, *self._known[entry.token], entry.logprob, top, entry.rank)


LOOKED_THROUGH = 1024
"""Bytes of a text in which a token is looked for: each of a long text may be one that does not show."""


class TokenPlaces:
    """Finds the tokens of a text in it, one after the other: places are in characters, and the text's first is ``start``.

    A token that begins inside a character has the place of this character, one that does not show that of the next one.
    """

    def __init__(self, text: str, start: int = 0) -> None:
        self.end = start
        """Where the last token that was found ends."""
        self._text = text.encode("utf-8", "surrogatepass")
        self._at = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("ignore").decode

    def of(self, score: TokenScore) -> int:
        """Return where the next token begins."""
        data = bytes(score.data)
        found = self._text.startswith(data, self._at)
        if not found and _is_text(data):  # before it may stand what was held back, or could not be decoded
            found = (ahead := self._text.find(data, self._at, self._at + LOOKED_THROUGH)) >= 0
            self._go(ahead)
        place = self.end
        if found:
            self._go(self._at + len(data))
        return place

    def _go(self, at: int) -> None:
        if at > self._at:
            self.end += len(self._decode(self._text[self._at : at]))
            self._at = at


def _is_text(data: bytes) -> bool:
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False
