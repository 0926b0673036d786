"""``TokenVocabulary``: what every token of a model stands for."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import overload

from inferd.protocol import PackedVocabulary


class TokenVocabulary(Sequence[bytes]):
    """The bytes of each token, by its id: ``vocabulary[token]``. What ``await model.tokenizer.vocabulary()`` returns.

    A token may hold part of a character. A special token stands for its name, which :attr:`special` maps to its id. An id that
    the model has room for and its tokenizer does not use stands for no bytes.
    """

    def __init__(self, packed: PackedVocabulary) -> None:
        lengths = [int.from_bytes(packed.lengths[at : at + 4], "little") for at in range(0, len(packed.lengths), 4)]
        self._data = packed.data
        self._starts = array("Q", accumulate(lengths, initial=0))
        self._special = MappingProxyType(dict(zip(packed.special_names, packed.special_tokens, strict=True)))

    @property
    def special(self) -> Mapping[str, int]:
        """The special tokens: name to id."""
        return self._special

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, token: int) -> bytes: ...

    @overload
    def __getitem__(self, token: slice) -> Sequence[bytes]: ...

    def __getitem__(self, token: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(token, slice):
            return [self[each] for each in range(*token.indices(len(self)))]
        if not 0 <= token < len(self):
            raise IndexError(f"token id {token} is outside the vocabulary of {len(self)}")
        return self._data[self._starts[token] : self._starts[token + 1]]

    def __iter__(self) -> Iterator[bytes]:
        for start, end in zip(self._starts, self._starts[1:], strict=False):
            yield self._data[start:end]

    def __repr__(self) -> str:
        return f"TokenVocabulary({len(self)} tokens, {len(self.special)} special)"
