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
            found = (ahead := self._text.find(data, self._at)) >= 0
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
