"""Two vocabularies: what one model has written, as the other would read it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol

WINDOW = 48
"""Bytes of text before new text that are tokenised again with it."""
MEMORY = 6 << 10
"""Bytes of text that are spelled at once at most: of a longer context the draft model reads the end."""
SPECIAL_BYTES = 64
"""What stands for no text counts as so many, for it is a text less to spell in one go."""
PIECES = (2048, 64)
"""Bytes that are spelled in one go, and where that fails, so that one bad place stays alone."""
LONGEST = 16
"""Bytes of the longest token that bytes are spelled with where the tokenizer cannot help."""
RATIOS = (0.25, 4.0)


@dataclass(frozen=True)
class Vocabulary:
    """``tokens``: the bytes of every id, b"" for what stands for no text (special, unused and padded ids); ``special``: ids of
    special tokens by name; ``encode``: text to ids, without special tokens.
    """

    tokens: Sequence[bytes]
    special: Mapping[str, int]
    encode: Callable[[str], list[int]] = field(repr=False, compare=False)

    @cached_property
    def checksum(self) -> str:
        """A hex digest of id -> bytes. Padding behind the last token does not count: models pad to different widths."""
        used = len(self.tokens)
        while used and not self.tokens[used - 1]:
            used -= 1
        digest = hashlib.sha256()
        for token in self.tokens[:used]:
            digest.update(len(token).to_bytes(4, "little") + token)
        for name, number in sorted(self.special.items()):
            digest.update(f"{name}={number};".encode())
        return digest.hexdigest()

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Special tokens' names by id."""
        return {number: name for name, number in self.special.items()}

    @cached_property
    def by_bytes(self) -> Mapping[bytes, int]:
        """The first id of every token's bytes."""
        found: dict[bytes, int] = {}
        for number, token in enumerate(self.tokens):
            if token:
                found.setdefault(token, number)
        return found

    def index(self) -> None:
        """Look over all tokens once, which takes a while: not in a step."""
        len(self.sizes)  # keeps it

    @cached_property
    def sizes(self) -> Mapping[bytes, Sequence[int]]:
        """By the first two bytes of tokens (or the only one): how many bytes those have, LONGEST at most, longest first."""
        found: dict[bytes, set[int]] = {}
        for token in self.by_bytes:
            if len(token) <= LONGEST:
                found.setdefault(token[:2], set()).add(len(token))
        return {start: sorted(sizes, reverse=True) for start, sizes in found.items()}

    def text(self, tokens: Sequence[int]) -> bytes:
        """The bytes of tokens."""
        return b"".join(map(self.piece, tokens))

    def piece(self, token: int) -> bytes:
        """The bytes of one token; b"" for an id that is none."""
        return self.tokens[token] if 0 <= token < len(self.tokens) else b""

    def spell(self, data: bytes) -> list[int] | None:
        """The tokens that the tokenizer makes of whole characters, if their bytes are ``data``; else None.

        Some tokenizers put a space before every text: it is found in front and taken away.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        tokens = self.encode(text)
        found = self._behind(tokens, (b"", b" "), data)
        if found is not None or self.text(tokens) != b" " + data:
            return found
        return self._behind(self.encode("\n" + text), (b"\n", b" \n"), data)

    def _behind(self, tokens: list[int], fronts: tuple[bytes, bytes], data: bytes) -> list[int] | None:
        """The tokens behind one of the fronts, if those are exactly ``data``."""
        pieces = [self.piece(token) for token in tokens]
        if not all(pieces):
            return None
        joined = b"".join(pieces)
        ends = [0, *accumulate(map(len, pieces))]
        for front in fronts:
            if joined == front + data and len(front) in ends:
                return tokens[ends.index(len(front)) :]
        return None

    def spell_all(self, data: bytes, pieces: Sequence[int] = PIECES) -> list[int]:
        """Whatever the bytes are: piece by piece, what the tokenizer cannot spell in smaller pieces, and the rest greedily.

        The tokenizer reads all of it once for each size at most, twice where it puts a space in front.
        """
        size, *smaller = pieces
        tokens: list[int] = []
        for piece in cut(data, size):
            spelled = self.spell(piece)
            if spelled is None and smaller and len(piece) > smaller[0]:
                spelled = self.spell_all(piece, smaller)
            tokens += self._spell_greedily(piece) if spelled is None else spelled
        return tokens

    def _spell_greedily(self, data: bytes) -> list[int]:
        """Always the longest token that fits; bytes that no token begins with are left out."""
        tokens, at = [], 0
        while at < len(data):
            size = self._longest_at(data, at)
            if size:
                tokens.append(self.by_bytes[data[at : at + size]])
            at += size or 1
        return tokens

    def _longest_at(self, data: bytes, at: int) -> int:
        """Bytes of the longest token that stands there; 0: none does."""
        for size in self.sizes.get(data[at : at + 2], ()):
            if data[at : at + size] in self.by_bytes:
                return size
        return int(data[at : at + 1] in self.by_bytes)


class Followed(NamedTuple):
    """What became of a stream: how many of its tokens have come true, and whether nothing contradicts the rest."""

    used: int
    agreed: bool


class Spelling(Protocol):
    """What a generation has committed, in the draft model's tokens; and the draft, in the target's.

    ``path``: the committed text as the draft model reads it, less what its next token has to begin with. ``changed_from``:
    where the last :meth:`follow` changed the path.
    """

    path: list[int]
    changed_from: int

    def follow(self, tokens: Sequence[int], stream: Sequence[int]) -> Followed:
        """The target committed ``tokens``, the draft model guessed ``stream``."""
        ...

    def render(
        self, stream: Sequence[int], confidence: Sequence[float], *, ended: bool
    ) -> tuple[list[int], list[float]]:
        """The stream in the target's tokens, continuing exactly behind what was committed. ``ended``: no more can follow."""
        ...

    def wanted(self, count: int) -> int:
        """How many draft tokens it takes for ``count`` tokens of the target."""
        ...


class SharedVocabulary:
    """Both models have the same tokens. Ids outside ``width`` are the draft model's alone."""

    def __init__(self, width: int) -> None:
        self.path: list[int] = []
        self.changed_from = 0
        self._width = width

    def follow(self, tokens: Sequence[int], stream: Sequence[int]) -> Followed:
        """See :class:`Spelling`."""
        self.changed_from = len(self.path)
        self.path.extend(tokens)
        used = common_prefix(tokens, stream)
        return Followed(used, used == min(len(tokens), len(stream)))

    def render(
        self, stream: Sequence[int], confidence: Sequence[float], *, ended: bool
    ) -> tuple[list[int], list[float]]:
        """See :class:`Spelling`."""
        fine = next((at for at, token in enumerate(stream) if token >= self._width), len(stream))
        return list(stream[:fine]), list(confidence[:fine])

    def wanted(self, count: int) -> int:
        """See :class:`Spelling`."""
        return count


class VocabularyBridge:
    """Two tokenizers. Text is what both agree on: a boundary that both have is an agreement point, and from the last one
    before it, text is tokenised again when more arrives (compare TLI of Timor et al. 2025, arXiv 2502.05202).

    Of a text that is longer than MEMORY bytes only the end goes over at once, behind its first token where that is special:
    otherwise the step loop would stand still while it is spelled. What is added later stays.

    It may find nothing to propose, or something that the target would not write: verification is what makes the output
    right. It never proposes an id that stands for no text.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self.path: list[int] = []
        self.changed_from = 0
        self._target = target
        self._draft = draft
        self._segment = 0
        """Where in the path the text behind the last special token begins."""
        self._owed = b""
        """Committed bytes behind the path: the next draft token has to begin with them."""
        self._tail: list[int] = []
        self._read = self._written = 1

    def follow(self, tokens: Sequence[int], stream: Sequence[int]) -> Followed:
        """See :class:`Spelling`."""
        self.changed_from = len(self.path)
        start = self._memorable_from(tokens)
        if start:
            self._forget(tokens[0])
            tokens = tokens[start:]
        before = len(self.path)
        self._remember(tokens)
        if stream and not start and all(map(self._target.piece, tokens)):
            followed = self._consume(self._owed + self._target.text(tokens), stream)
        else:
            self._write(tokens)
            followed = Followed(0, not stream)
        self._read += len(tokens)
        self._written += max(0, len(self.path) - before)
        return followed

    def _remember(self, tokens: Sequence[int]) -> None:
        """Keep the end of the target's tokens: WINDOW bytes or a little more, none from before a special token."""
        for token in tokens[-WINDOW:]:
            self._tail = [*self._tail, token] if self._target.piece(token) else []
        size = len(self._target.text(self._tail))
        while self._tail and (
            size - len(self._target.piece(self._tail[0])) >= WINDOW
            or not starts_character(self._target.piece(self._tail[0]))
        ):
            size -= len(self._target.piece(self._tail.pop(0)))

    def _consume(self, data: bytes, stream: Sequence[int]) -> Followed:
        """How much of the stream comes true with ``data``. Where that ends within a token of the stream, the rest is owed."""
        at = used = 0
        for token in stream:
            piece = self._draft.piece(token)
            if not piece or not data.startswith(piece, at):
                break
            at, used = at + len(piece), used + 1
        self.path += stream[:used]
        rest = data[at:]
        if used < len(stream) and rest and self._draft.piece(stream[used]).startswith(rest):
            self._owed = rest
            return Followed(used, True)
        self._owed = b""
        self._write_text(rest, ends=False)
        return Followed(used, not rest or used == len(stream))

    def _write(self, tokens: Sequence[int]) -> None:
        """Put tokens on the path, text by text between the special ones."""
        text = bytearray(self._owed)
        self._owed = b""
        for token in tokens:
            piece = self._target.piece(token)
            text += piece
            if not piece:
                self._write_text(bytes(text), ends=True)
                text.clear()
                self._write_special(token)
        self._write_text(bytes(text), ends=False)

    def _memorable_from(self, tokens: Sequence[int]) -> int:
        """Where the last MEMORY bytes begin, at a whole character."""
        left, start = MEMORY, len(tokens)
        while start and left > 0:
            start -= 1
            left -= len(self._target.piece(tokens[start])) or SPECIAL_BYTES
        if not start:
            return 0
        return next((at for at, token in enumerate(tokens[start : start + 4], start) if self._may_begin(token)), start)

    def _may_begin(self, token: int) -> bool:
        piece = self._target.piece(token)
        return not piece or starts_character(piece)

    def _forget(self, first: int) -> None:
        """Begin anew, behind the context's first token where that is special: models of that kind never saw a text without."""
        begun = bool(self.path)
        self.path = [token for token in self.path[:1] if not self._draft.piece(token)]
        self._owed, self._segment, self.changed_from = b"", len(self.path), 0
        if not begun and not self._target.piece(first):
            self._write_special(first)

    def _write_special(self, token: int) -> None:
        """A special token of the same name stands for it, where there is one."""
        number = self._draft.special.get(self._target.names.get(token, ""))
        if number is not None:
            self.path.append(number)
        self._segment = len(self.path)

    def _write_text(self, data: bytes, *, ends: bool) -> None:
        """Tokenise a window of the path again, together with new text. A character that is not complete is owed."""
        if not data:
            return
        start, size = len(self.path), 0
        while start > self._segment and (
            size < WINDOW or (size < 2 * WINDOW and not starts_character(self._draft.piece(self.path[start])))
        ):
            start -= 1
            size += len(self._draft.piece(self.path[start]))
        text = self._draft.text(self.path[start:]) + data
        whole = len(text) if ends else complete_characters(text)
        text, self._owed = text[:whole], text[whole:]
        self.changed_from = min(self.changed_from, start)
        self.path[start:] = self._draft.spell_all(text)

    def render(
        self, stream: Sequence[int], confidence: Sequence[float], *, ended: bool
    ) -> tuple[list[int], list[float]]:
        """See :class:`Spelling`. The last token is kept where the text ends: elsewhere more text might make another of it."""
        pieces = [self._draft.piece(token) for token in stream]
        known = next((at for at, piece in enumerate(pieces) if not piece), len(pieces))
        text = b"".join(pieces[:known])
        if not text.startswith(self._owed):
            return [], []
        data = text[len(self._owed) :]
        tail = self._target.text(self._tail)
        data = data[: complete_characters(tail + data) - len(tail)] if data else b""
        tokens = self._behind_tail(tail, data)
        if not ended or known < len(pieces):
            tokens = tokens[:-1]
        return tokens, self._spread(tokens, pieces[:known], confidence)

    def _behind_tail(self, tail: bytes, data: bytes) -> list[int]:
        """``data`` as tokens of the target: as it goes on from the tail if the tail is spelled as it was written, else alone."""
        if not data:
            return []
        together = self._target.spell(tail + data)
        if together is not None and together[: len(self._tail)] == self._tail:
            return together[len(self._tail) :]
        return self._target.spell(data) or []

    def _spread(self, tokens: Sequence[int], pieces: Sequence[bytes], confidence: Sequence[float]) -> list[float]:
        """Each token as sure as the draft tokens that begin within it."""
        if not confidence:
            return []
        begins = [0, *accumulate(map(len, pieces))]
        ends = accumulate((len(self._target.piece(token)) for token in tokens), initial=len(self._owed))
        chances, at, end = [], 0, next(ends)
        for end in ends:
            chance = 1.0
            while at < len(pieces) and begins[at] < end:
                chance *= confidence[at]
                at += 1
            chances.append(chance)
        return chances

    def wanted(self, count: int) -> int:
        """See :class:`Spelling`. One more, because the last is not certain."""
        least, most = RATIOS
        return math.ceil((count + 1) * min(most, max(least, self._written / self._read)))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with together."""
    for at, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return at
    return min(len(one), len(other))


def starts_character(piece: bytes) -> bool:
    """Whether it begins with the first byte of a UTF-8 character."""
    return bool(piece) and piece[0] & 0xC0 != 0x80


def cut(data: bytes, size: int) -> list[bytes]:
    """Pieces of ``size`` bytes at most, where there is a choice before a space or behind the end of a line, else between
    characters.
    """
    pieces, at = [], 0
    while len(data) - at > size:
        end = at + size
        space, line = data.rfind(b" ", at + size // 2, end), data.rfind(b"\n", at + size // 2, end)
        if max(space, line) > 0:
            end = max(space, line + 1)
        else:
            end -= next((back for back in range(4) if starts_character(data[end - back : end - back + 1])), 0)
        pieces.append(data[at:end])
        at = end
    return [*pieces, data[at:]]


def complete_characters(data: bytes) -> int:
    """How many bytes there are without the incomplete character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 != 0x80:
            size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return len(data) - back if size > back else len(data)
    return len(data)
