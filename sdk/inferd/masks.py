"""Masks: sets of token ids, held as bits, as programs use them and as requests carry them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Set
from typing import Any

from inferd.protocol.errors import InvalidRequest
from inferd.protocol.tokens import checked_tokens

FEW = 16
"""So many ids are always sent as a list."""
ANY_BIT = re.compile(rb"[^\x00]")
CHARACTERS_PER_ID = 6
"""About what one id takes in a list; bits take one character for six ids of the vocabulary."""


class TokenMask(Set[int]):
    """Token ids that are allowed: an immutable set, with ``&``, ``|``, ``-`` and ``in``.

    What ``Matcher.mask`` returns, and what ``forward(mask=...)`` and a program's own constraint take (any other iterable
    of ids will do there as well).
    """

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        ids = checked_tokens("tokens", tokens)
        bits = bytearray(max(ids, default=-1) // 8 + 1)
        for token in ids:
            bits[token >> 3] |= 1 << (token & 7)
        self._bits = bytes(bits)

    @classmethod
    def from_wire(cls, tokens: Iterable[int], bits: str) -> TokenMask:
        """Return the mask that :meth:`to_wire` was called on. Raises InvalidRequest for bits that are not base64."""
        if not bits:
            return cls(tokens)
        return cls._of(unpack_bits(bits))

    def to_wire(self) -> tuple[list[int], str]:
        """Return the ids, or the bits (:func:`pack_bits`) where these are shorter."""
        if worth_listing(len(self), len(self._bits)):
            return list(self), ""
        return [], pack_bits(self._bits)

    def __contains__(self, token: object) -> bool:
        if not isinstance(token, int) or not 0 <= token < 8 * len(self._bits):
            return False
        return bool(self._bits[token >> 3] >> (token & 7) & 1)

    def __iter__(self) -> Iterator[int]:
        for found in ANY_BIT.finditer(self._bits):
            first, byte = 8 * found.start(), self._bits[found.start()]
            yield from (first + bit for bit in range(8) if byte >> bit & 1)

    def __len__(self) -> int:
        return self._number().bit_count()

    def __hash__(self) -> int:
        return self._hash()

    def __and__(self, other: Any) -> TokenMask:
        return self._from(self._number() & _number_of(other))

    def __or__(self, other: Any) -> TokenMask:
        return self._from(self._number() | _number_of(other))

    def __sub__(self, other: Any) -> TokenMask:
        return self._from(self._number() & ~_number_of(other))

    def __repr__(self) -> str:
        shown = list(self) if len(self) <= FEW else f"{len(self)} tokens"
        return f"TokenMask({shown})"

    def _number(self) -> int:
        return int.from_bytes(self._bits, "little")

    @classmethod
    def _from(cls, number: int) -> TokenMask:
        return cls._of(number.to_bytes((number.bit_length() + 7) // 8, "little"))

    @classmethod
    def _of(cls, bits: bytes) -> TokenMask:
        mask = cls.__new__(cls)
        mask._bits = bits
        return mask


def worth_listing(count: int, size: int) -> bool:
    """Return True if so many ids take less than ``size`` bytes of bits."""
    return count <= FEW or count * CHARACTERS_PER_ID <= size * 4 // 3


def pack_bits(bits: bytes) -> str:
    """Return bits as text: base64, bit ``i & 7`` of byte ``i >> 3`` is token ``i``."""
    return base64.b64encode(bits).decode()


def unpack_bits(bits: str) -> bytes:
    """Return the bits that :func:`pack_bits` was given. Raises InvalidRequest for text that is not base64."""
    try:
        return base64.b64decode(bits, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"mask_bits is not base64: {error}") from error


def checked_mask(name: str, mask: Iterable[int]) -> TokenMask:
    """Return the mask as a set. Raises InvalidRequest, which names the argument, for what is no token id."""
    return mask if isinstance(mask, TokenMask) else TokenMask(checked_tokens(name, mask))


def _number_of(other: Any) -> int:
    return (other if isinstance(other, TokenMask) else TokenMask(other))._number()
