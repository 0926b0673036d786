"""Sets of token ids as bits: what a mask is on the wire and for programs."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Set
from typing import Any

from inferd.errors import InvalidRequest
from inferd.tokens import checked_tokens

FEW = 16
"""So many ids are always sent as a list."""
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
        """What :meth:`to_wire` gave. Raises InvalidRequest for bits that are not base64."""
        if not bits:
            return cls(tokens)
        return cls._of(unpack_bits(bits))

    def to_wire(self) -> tuple[list[int], str]:
        """The ids, or the bits where these are shorter: base64, bit ``i & 7`` of byte ``i >> 3`` is token ``i``."""
        count = len(self)
        if count <= FEW or count * CHARACTERS_PER_ID <= len(self._bits) * 4 // 3:
            return list(self), ""
        return [], base64.b64encode(self._bits).decode()

    def __contains__(self, token: object) -> bool:
        if not isinstance(token, int) or not 0 <= token < 8 * len(self._bits):
            return False
        return bool(self._bits[token >> 3] >> (token & 7) & 1)

    def __iter__(self) -> Iterator[int]:
        for index, byte in enumerate(self._bits):
            while byte:
                lowest = byte & -byte
                yield 8 * index + lowest.bit_length() - 1
                byte ^= lowest

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


def unpack_bits(bits: str) -> bytes:
    """The bytes behind :meth:`TokenMask.to_wire`'s text. Raises InvalidRequest for text that is not base64."""
    try:
        return base64.b64decode(bits, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"mask_bits is not base64: {error}") from error


def checked_mask(name: str, mask: Iterable[int]) -> TokenMask:
    """The mask as a set. Raises InvalidRequest, which names the argument, for what is no token id."""
    return mask if isinstance(mask, TokenMask) else TokenMask(checked_tokens(name, mask))


def _number_of(other: Any) -> int:
    return (other if isinstance(other, TokenMask) else TokenMask(other))._number()
