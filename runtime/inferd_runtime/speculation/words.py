"""Finds the word that a text has begun in the context, where it is made of other tokens.

Prompt lookup compares tokens. A name has others behind a quote (``"``, ``In``, ``grid``) than behind a space (`` Ing``, ``rid``):
what is copied from a sentence into JSON or code is found by its second word, or not at all. Here bytes are compared, from where
the word begins, and what is left of it is proposed in the tokens that it has where it is written now.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np

WORD = re.compile(rb"[0-9A-Za-z\x80-\xff]+")
"""A word: letters and digits, and all bytes of characters beyond ASCII."""
NEWEST = 4096
"""Tokens before the word that are searched."""
BEGUN = 4
"""Tokens of a word after which it is not looked for any more."""
PLACES = 32
"""Places with the same first letter that are looked at, oldest first: what a text is made of is read from its beginning."""
SPELLED = 4
"""Words that begin so and are turned into tokens, which takes longer than all else."""
PIECES = 12
"""Tokens that a word may have where it is found."""


class FoundWord(NamedTuple):
    """The tokens that complete the word that has been begun, and the place in the text of the token behind it; -1 if the word
    ends inside a token there.
    """

    tokens: list[int]
    behind: int


class WordIndex:
    """The beginnings and ends of a vocabulary's tokens: what it takes to find words in texts. Immutable."""

    def __init__(self, pieces: Sequence[bytes], encode: Callable[[str], list[int]]) -> None:
        """``pieces``: the bytes of each token, b"" where it stands for no text. ``encode``: tokens of a text."""
        self._pieces = pieces
        self._encode = encode
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        text = np.frombuffer(b"".join(pieces) + b"  ", np.uint8)
        starts = np.concatenate(([0], np.cumsum(lengths)[:-1])) if len(pieces) else lengths
        is_word = np.zeros(256, np.bool_)
        is_word[[byte for byte in range(256) if WORD.fullmatch(bytes([byte]))]] = True
        spaced = (text[starts] == ord(" ")) & (lengths > 1)
        first = text[starts + spaced]
        self._first = np.where(is_word[first] & (lengths > 0), first, 0).astype(np.uint8)
        """By token: the letter that it may begin a word with, behind a space or not; 0 for none."""
        self._spaced = spaced
        letters = np.concatenate(([0], np.cumsum(is_word[text])))
        self._has_letter = letters[starts + lengths] > letters[starts]
        self._ends_word = is_word[text[starts + np.maximum(lengths, 1) - 1]] & (lengths > 0)

    def find(self, text: array[int], tail: Sequence[int]) -> FoundWord | None:
        """Return how the word at the end of ``tail``, whose last tokens are to follow ``text``, goes on in ``text``.

        Only for words that do not stand behind a space: for others the tokens themselves can be compared. None if there is no
        such word, if it is not found, or if it is complete.
        """
        count = self._begun(tail)
        if not count or not text:
            return None
        written = list(tail[-count:])
        before = self._pieces[tail[-count - 1]] if len(tail) > count else b""
        begun = b"".join(self._pieces[token] for token in written)
        for word, behind in islice(self._words(text, begun), SPELLED):
            spelled = self._spelled(before, word)
            if spelled[:count] == written and (len(spelled) > count or behind >= 0):
                return FoundWord(spelled[count:], behind)
        return None

    def any_letter(self, tokens: Sequence[int]) -> bool:
        """True if there is a letter or a digit in one of the tokens."""
        return any(self._has_letter[token] for token in tokens)

    def _words(self, text: array[int], begun: bytes) -> Iterator[tuple[bytes, int]]:
        """Yield the different words of a text that begin so, oldest first, each with the place behind it."""
        starts = np.flatnonzero(self._first[np.frombuffer(text, np.int32)] == begun[0])[:PLACES]
        seen = set[bytes]()
        for place in starts.tolist():
            found = self._completed(text, place, begun)
            if found is not None and found[0] not in seen:
                seen.add(found[0])
                yield found

    def _begun(self, tail: Sequence[int]) -> int:
        """Return how many tokens at the end belong to a word that has been begun there; 0 if there is none."""
        for count, token in enumerate(reversed(tail[-BEGUN:]), 1):
            if not self._first[token] or self._spaced[token] or not WORD.fullmatch(self._pieces[token]):
                return 0
            if count == len(tail):
                return count
            if not self._ends_word[tail[-count - 1]]:
                return 0 if self._pieces[tail[-count - 1]].endswith(b" ") else count
        return 0

    def _completed(self, text: array[int], place: int, begun: bytes) -> tuple[bytes, int] | None:
        """Return the word at a place, if it begins so, and the place of the token behind it (-1: it ends inside a token).

        The last word of the text is none: it is the one that has been begun, or may go on. One of more tokens is none, too.
        """
        if not self._spaced[text[place]] and place and self._ends_word[text[place - 1]]:
            return None  # inside a word
        pieces = [self._pieces[token] for token in text[place : place + PIECES]]
        pieces[0] = pieces[0].removeprefix(b" ")
        found = WORD.match(b"".join(pieces))
        if found is None or not found[0].startswith(begun):
            return None
        ends = list(accumulate(map(len, pieces)))
        last = bisect_left(ends, len(found[0]))
        behind = place + last + 1
        if behind in (len(text), place + PIECES):
            return None
        return found[0], behind if ends[last] == len(found[0]) else -1

    def _spelled(self, before: bytes, word: bytes) -> list[int]:
        """Return the tokens of a word behind other text; none if it shares one with that."""
        try:
            tokens = self._encode((before + word).decode())
        except UnicodeDecodeError:
            return []
        left = len(word)
        for count, token in enumerate(reversed(tokens), 1):
            left -= len(self._pieces[token])
            if left <= 0:
                return tokens[-count:] if left == 0 else []
        return []
