"""The bridge between two vocabularies: text of the target in tokens of the draft model, and the draft back in the target's."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Protocol

WINDOW = 48
"""Bytes of text before new text that are tokenized again with it."""
MAX_BYTES = 6 << 10
"""Bytes of text that are tokenized at once at most: of a longer context the draft model reads the end."""
SPECIAL_BYTES = 64
"""A token without text counts as so many, as it splits the text."""
PIECES = (2048, 64)
"""Bytes that are tokenized at once, and where that fails, so that one bad place does not affect the rest."""
LONGEST = 16
"""Bytes of the longest token that is used where the tokenizer cannot tokenize the bytes."""
RATIOS = (0.25, 4.0)


@dataclass(frozen=True)
class Vocabulary:
    """A model's vocabulary.

    ``tokens``: the bytes of every id, b"" for ids without text (special, unused and padded ones); ``special``: ids of special
    tokens by name; ``encode``: text to ids, without special tokens.
    """

    tokens: Sequence[bytes]
    special: Mapping[str, int]
    encode: Callable[[str], list[int]] = field(repr=False, compare=False)

    @cached_property
    def checksum(self) -> str:
        """A hex digest of id -> bytes, without padding after the last token, as models pad to different widths."""
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
        """The names of special tokens by id."""
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
        """Compute :attr:`sizes` ahead of time, as it takes too long within a step."""
        len(self.sizes)

    @cached_property
    def sizes(self) -> Mapping[bytes, Sequence[int]]:
        """The lengths of tokens in bytes, LONGEST at most, longest first, by their first two bytes (or the only one)."""
        found: dict[bytes, set[int]] = {}
        for token in self.by_bytes:
            if len(token) <= LONGEST:
                found.setdefault(token[:2], set()).add(len(token))
        return {start: sorted(sizes, reverse=True) for start, sizes in found.items()}

    def text(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of tokens."""
        return b"".join(map(self.piece, tokens))

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token; b"" for an unknown id."""
        return self.tokens[token] if 0 <= token < len(self.tokens) else b""

    def tokenize(self, data: bytes) -> list[int] | None:
        """Return the tokenizer's tokens of ``data``, whole characters; None if their bytes are not ``data``.

        Some tokenizers put a space before every text: it is removed.
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
        """Return the tokens after one of the ``fronts``, if their bytes are exactly ``data``."""
        pieces = [self.piece(token) for token in tokens]
        if not all(pieces):
            return None
        joined = b"".join(pieces)
        ends = [0, *accumulate(map(len, pieces))]
        for front in fronts:
            if joined == front + data and len(front) in ends:
                return tokens[ends.index(len(front)) :]
        return None

    def tokenize_all(self, data: bytes, pieces: Sequence[int] = PIECES) -> list[int]:
        """Return tokens of any bytes: piece by piece, in smaller pieces where that fails, and greedily where those fail.

        The tokenizer reads all of it once for each size at most, twice if it puts a space in front.
        """
        size, *smaller = pieces
        tokens: list[int] = []
        for piece in cut(data, size):
            tokenized = self.tokenize(piece)
            if tokenized is None and smaller and len(piece) > smaller[0]:
                tokenized = self.tokenize_all(piece, smaller)
            tokens += self._tokenize_greedily(piece) if tokenized is None else tokenized
        return tokens

    def _tokenize_greedily(self, data: bytes) -> list[int]:
        """Return tokens of the bytes, always the longest that fits. Bytes that no token begins with are left out."""
        tokens, at = [], 0
        while at < len(data):
            size = self._longest_at(data, at)
            if size:
                tokens.append(self.by_bytes[data[at : at + size]])
            at += size or 1
        return tokens

    def _longest_at(self, data: bytes, at: int) -> int:
        """Return the bytes of the longest token at that index; 0 if there is none."""
        for size in self.sizes.get(data[at : at + 2], ()):
            if data[at : at + size] in self.by_bytes:
                return size
        return int(data[at : at + 1] in self.by_bytes)


class Followed(NamedTuple):
    """The comparison of a stream with committed tokens: ``used`` of its tokens agree; ``agreed``: the rest may still do."""

    used: int
    agreed: bool


class TokenBridge(Protocol):
    """Translates a generation's committed tokens into the draft model's, and the draft into the target's.

    ``path``: the committed text in the draft model's tokens, without an unfinished end that its next token has to begin with.
    ``changed_from``: the index from which the last :meth:`follow` changed the path.
    """

    path: list[int]
    changed_from: int

    def follow(self, tokens: Sequence[int], stream: Sequence[int]) -> Followed:
        """Extend the path by committed ``tokens`` of the target, and compare them with the draft model's ``stream``."""

    def render(
        self, stream: Sequence[int], confidence: Sequence[float], *, ended: bool
    ) -> tuple[list[int], list[float]]:
        """Return the stream, and its confidences, in the target's tokens, exactly after the committed ones.

        ``ended``: the stream does not go on.
        """

    def wanted(self, count: int) -> int:
        """Return how many draft tokens it takes for ``count`` tokens of the target."""


class SharedVocabulary:
    """The bridge of two models with the same tokens. Only ids below ``width`` are the target's, too."""

    def __init__(self, width: int) -> None:
        self.path: list[int] = []
        self.changed_from = 0
        self._width = width

    def follow(self, tokens: Sequence[int], stream: Sequence[int]) -> Followed:
        """See :class:`TokenBridge`."""
        self.changed_from = len(self.path)
        self.path.extend(tokens)
        used = common_prefix(tokens, stream)
        return Followed(used, used == min(len(tokens), len(stream)))

    def render(
        self, stream: Sequence[int], confidence: Sequence[float], *, ended: bool
    ) -> tuple[list[int], list[float]]:
        """See :class:`TokenBridge`."""
        fine = next((at for at, token in enumerate(stream) if token >= self._width), len(stream))
        return list(stream[:fine]), list(confidence[:fine])

    def wanted(self, count: int) -> int:
        """See :class:`TokenBridge`."""
        return count


class VocabularyBridge:
    """The bridge of two tokenizers, by way of the text (compare TLI of Timor et al. 2025, arXiv 2502.05202).

    When text arrives, a window of WINDOW bytes before it is tokenized again with it. Of more than MAX_BYTES bytes at once only
    the end is translated, after its first token if that is special: otherwise the step loop would wait for the tokenizer. What
    is added later stays.

    It may find nothing to propose, or something that the target would not write, which verification rejects. It never proposes
    an id without text.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self.path: list[int] = []
        self.changed_from = 0
        self._target = target
        self._draft = draft
        self._segment = 0
        """The index in the path after the last special token."""
        self._unfinished = b""
        """Committed bytes after the path: the next draft token has to begin with them."""
        self._tail: list[int] = []
        self._read = self._written = 1

    def follow(self, tokens: Sequence[int], stream: Sequence[int]) -> Followed:
        """See :class:`TokenBridge`."""
        self.changed_from = len(self.path)
        start = self._window_start(tokens)
        if start:
            self._restart(tokens[0])
            tokens = tokens[start:]
        before = len(self.path)
        self._keep_tail(tokens)
        if stream and not start and all(map(self._target.piece, tokens)):
            followed = self._consume(self._unfinished + self._target.text(tokens), stream)
        else:
            self._write(tokens)
            followed = Followed(0, not stream)
        self._read += len(tokens)
        self._written += max(0, len(self.path) - before)
        return followed

    def _keep_tail(self, tokens: Sequence[int]) -> None:
        """Keep the last tokens of the target: WINDOW bytes or a little more, none before a special token."""
        for token in tokens[-WINDOW:]:
            self._tail = [*self._tail, token] if self._target.piece(token) else []
        size = len(self._target.text(self._tail))
        while self._tail and (
            size - len(self._target.piece(self._tail[0])) >= WINDOW
            or not starts_character(self._target.piece(self._tail[0]))
        ):
            size -= len(self._target.piece(self._tail.pop(0)))

    def _consume(self, data: bytes, stream: Sequence[int]) -> Followed:
        """Append the part of the stream that ``data`` confirms to the path. An end within a token of the stream is unfinished."""
        at = used = 0
        for token in stream:
            piece = self._draft.piece(token)
            if not piece or not data.startswith(piece, at):
                break
            at, used = at + len(piece), used + 1
        self.path += stream[:used]
        rest = data[at:]
        if used < len(stream) and rest and self._draft.piece(stream[used]).startswith(rest):
            self._unfinished = rest
            return Followed(used, True)
        self._unfinished = b""
        self._write_text(rest, ends=False)
        return Followed(used, not rest or used == len(stream))

    def _write(self, tokens: Sequence[int]) -> None:
        """Append tokens to the path, text by text between the special ones."""
        text = bytearray(self._unfinished)
        self._unfinished = b""
        for token in tokens:
            piece = self._target.piece(token)
            text += piece
            if not piece:
                self._write_text(bytes(text), ends=True)
                text.clear()
                self._write_special(token)
        self._write_text(bytes(text), ends=False)

    def _window_start(self, tokens: Sequence[int]) -> int:
        """Return the index at which the last MAX_BYTES bytes begin, at a whole character."""
        left, start = MAX_BYTES, len(tokens)
        while start and left > 0:
            start -= 1
            left -= len(self._target.piece(tokens[start])) or SPECIAL_BYTES
        if not start:
            return 0
        return next((at for at, token in enumerate(tokens[start : start + 4], start) if self._may_begin(token)), start)

    def _may_begin(self, token: int) -> bool:
        piece = self._target.piece(token)
        return not piece or starts_character(piece)

    def _restart(self, first: int) -> None:
        """Start a new path, after the context's first token if that is special, as such models never saw a text without it."""
        begun = bool(self.path)
        self.path = [token for token in self.path[:1] if not self._draft.piece(token)]
        self._unfinished, self._segment, self.changed_from = b"", len(self.path), 0
        if not begun and not self._target.piece(first):
            self._write_special(first)

    def _write_special(self, token: int) -> None:
        """Append the draft model's special token of the same name, if there is one."""
        number = self._draft.special.get(self._target.names.get(token, ""))
        if number is not None:
            self.path.append(number)
        self._segment = len(self.path)

    def _write_text(self, data: bytes, *, ends: bool) -> None:
        """Tokenize a window of the path again, together with new text. An incomplete character is unfinished."""
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
        text, self._unfinished = text[:whole], text[whole:]
        self.changed_from = min(self.changed_from, start)
        self.path[start:] = self._draft.tokenize_all(text)

    def render(
        self, stream: Sequence[int], confidence: Sequence[float], *, ended: bool
    ) -> tuple[list[int], list[float]]:
        """See :class:`TokenBridge`. The last token is left out unless the stream ended, as more text might change it."""
        pieces = [self._draft.piece(token) for token in stream]
        known = next((at for at, piece in enumerate(pieces) if not piece), len(pieces))
        text = b"".join(pieces[:known])
        if not text.startswith(self._unfinished):
            return [], []
        data = text[len(self._unfinished) :]
        tail = self._target.text(self._tail)
        data = data[: complete_characters(tail + data) - len(tail)] if data else b""
        tokens = self._behind_tail(tail, data)
        if not ended or known < len(pieces):
            tokens = tokens[:-1]
        return tokens, self._spread(tokens, pieces[:known], confidence)

    def _behind_tail(self, tail: bytes, data: bytes) -> list[int]:
        """Return ``data`` in tokens of the target: tokenized with the tail, if that keeps the tail's tokens, else alone."""
        if not data:
            return []
        together = self._target.tokenize(tail + data)
        if together is not None and together[: len(self._tail)] == self._tail:
            return together[len(self._tail) :]
        return self._target.tokenize(data) or []

    def _spread(self, tokens: Sequence[int], pieces: Sequence[bytes], confidence: Sequence[float]) -> list[float]:
        """Return each token's confidence: the product of those of the draft tokens that begin within it."""
        if not confidence:
            return []
        begins = [0, *accumulate(map(len, pieces))]
        ends = accumulate((len(self._target.piece(token)) for token in tokens), initial=len(self._unfinished))
        chances, at, end = [], 0, next(ends)
        for end in ends:
            chance = 1.0
            while at < len(pieces) and begins[at] < end:
                chance *= confidence[at]
                at += 1
            chances.append(chance)
        return chances

    def wanted(self, count: int) -> int:
        """See :class:`TokenBridge`. One more, as the last may change."""
        least, most = RATIOS
        return math.ceil((count + 1) * min(most, max(least, self._written / self._read)))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    for at, (first, second) in enumerate(zip(one, other, strict=False)):
        if first != second:
            return at
    return min(len(one), len(other))


def starts_character(piece: bytes) -> bool:
    """True if the bytes begin with the first byte of a UTF-8 character."""
    return bool(piece) and piece[0] & 0xC0 != 0x80


def cut(data: bytes, size: int) -> list[bytes]:
    """Return pieces of ``size`` bytes at most, cut before a space or after a line's end if possible, else between characters."""
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
    """Return the number of bytes without an incomplete character at the end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 != 0x80:
            size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return len(data) - back if size > back else len(data)
    return len(data)
