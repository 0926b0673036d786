"""The recogniser of the llguidance backend: `Core` over one `LLMatcher`, and how it finds text that must come."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from inferd_grammar.backends.text import one_line
from inferd_grammar.errors import DeadEnd, GrammarFailure
from inferd_grammar.matchers.matcher import AT_ONCE
from inferd_grammar.tokens import TokenTable, bit_mask
from inferd_grammar.validation import Checked

_NO_WAY_ON = "NoExtensionBias"
_SPECIAL_MARK = b"\xff"  # how the library writes a special token among bytes
_SPECIAL_FIRST = re.compile(rb"\xff\[(\d+)\]")
_MOST_WALKED = 64
_ALL_BYTES = 255  # 0xFF is the library's mark


@dataclass(frozen=True)
class Recipe:
    """What a recogniser is made from, here or in another process.

    Fields:
        grammar: the library's grammar text.
        checked: assertions that it does not enforce.
        named: special tokens that it names.
        walked: what must come is found by :class:`ForcedWalk`. The grammar then has to allow every split.
    """

    grammar: str
    checked: tuple[Checked, ...] = ()
    named: frozenset[int] = frozenset()
    walked: bool = False

    def text(self) -> str:
        """Return what :meth:`read` reads."""
        return json.dumps([self.grammar, self.checked, sorted(self.named), self.walked])

    @classmethod
    def read(cls, parts: Sequence[Any]) -> Recipe:
        """Return the recipe of a text's JSON value."""
        grammar, checked, named, walked = parts
        return cls(grammar, tuple(Checked(*place) for place in checked), frozenset(named), walked)


class ForcedWalk:
    """Finds the text that must come from one mask after the other, as far as 64 bytes.

    The library's own search does not return where one byte alone can follow for ever: in `/a+/ "a"` the first part takes
    every `a`. It searches before each mask, too, unless the grammar allows every split.
    """

    def __init__(self, tokenizer: llguidance.LLTokenizer, table: TokenTable) -> None:
        self._tokenizer = tokenizer
        self._table = table
        splitter = table.splitter
        self._bytes, self._ids = splitter.bytes, splitter.byte_ids
        self._complete = len(self._bytes) >= _ALL_BYTES

    def text(self, core: LlguidanceCore, most: int = _MOST_WALKED) -> bytes:
        """Return bytes that any continuation starts with; none for a vocabulary that cannot spell every byte by itself."""
        text, row = bytearray(), np.empty(self._table.words, np.int32)
        try:
            while self._complete and len(text) < min(most, _MOST_WALKED) and not core.may_end():
                core.fill(row, row.ctypes.data)
                (following,) = np.nonzero(row[self._ids >> 5] >> (self._ids & 31) & 1)
                if len(following) != 1 or any(row[token >> 5] >> (token & 31) & 1 for token in core.named):
                    break
                core.push(int(self._ids[following[0]]))
                text.append(self._bytes[following[0]])
        except DeadEnd:
            pass  # what was found leads nowhere, and has to come for all that
        finally:
            if text:
                core.pop(len(text))
        return bytes(text)

    def tokens(self, core: LlguidanceCore) -> list[int]:
        """Return the usual tokens of :meth:`text`, without those that could merge with what follows."""
        text = self.text(core)
        tokens: list[int] = self._tokenizer.tokenize_partial(text)[0] if text else []
        return tokens if text.startswith(b"".join(self._table.tokens[token] for token in tokens)) else []

    def only_special(self, core: LlguidanceCore) -> bool:
        """Return True if a special token must come next."""
        return self._complete and not core.may_end() and not any(core.takes(int(token)) for token in self._ids)


class LlguidanceCore:
    """`Core` over one `LLMatcher`. The library records every text token, so its rollback is exact without EOS.

    Where no token continues the text the library's matcher breaks for good. A rollback out of there takes the tokens that
    stay once more, from a copy of the beginning.
    """

    def __init__(
        self,
        inner: llguidance.LLMatcher,
        made_from: Recipe,
        walk: ForcedWalk,
        origin: llguidance.LLMatcher | None = None,
        taken: Sequence[int] = (),
    ) -> None:
        self._inner = inner
        self._made_from = made_from
        self._walk = walk
        self._origin = inner.deep_copy() if origin is None else origin
        self._taken = list(taken)
        self._dead = False
        self.checked = made_from.checked
        self.named = made_from.named

    @property
    def recipe(self) -> str:
        return self._made_from.text()

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        if self.named and (special := self._only_special()):
            row[:] = bit_mask(special, row.size * 32)
            return
        self._inner.unsafe_compute_mask_ptr(address, row.nbytes)
        if self._inner.is_error():
            self._dead = _NO_WAY_ON in self._inner.get_error()
            self._check()

    def push(self, token: int) -> None:
        taken = self._inner.try_consume_tokens([token])
        if taken != 1:
            self._check()
            self._inner.compute_logit_bias()  # a limit of its own that it has reached just now shows in a mask alone
            self._check()
            raise GrammarFailure(f"llguidance refused token {token} that its mask allows")
        self._taken.append(token)

    def consume(self, tokens: Sequence[int]) -> int:
        """Take tokens in any split, up to the first one that the grammar refuses."""
        taken = 0
        for start in range(0, len(tokens), AT_ONCE):
            piece = list(tokens[start : start + AT_ONCE])
            count = self._inner.try_consume_tokens(piece)
            taken += count
            if count < len(piece):
                self._check()
                break
        self._taken += tokens[:taken]
        return taken

    def pop(self, count: int) -> None:
        del self._taken[-count:]
        if self._dead:
            self._start_again()
            return
        done = self._inner.rollback(count)
        self._check()
        if not done:
            raise GrammarFailure(f"llguidance did not roll back {count} tokens")

    def _start_again(self) -> None:
        self._inner, self._dead = self._origin.deep_copy(), False
        if self._inner.try_consume_tokens(self._taken) != len(self._taken):
            self._check()
            raise GrammarFailure("llguidance refused tokens that it had taken")

    def may_end(self) -> bool:
        result = self._inner.is_accepting()
        if self._inner.is_error():
            self._check()
        return result

    def takes(self, token: int) -> bool:
        """Return True if a token may come next, in any split."""
        return self._inner.validate_tokens([token]) == 1

    def forced(self, most: int) -> bytes:
        if self._made_from.walked:
            return self._walk.text(self, most)
        result = self._inner.compute_ff_bytes()
        self._check()
        return result.split(_SPECIAL_MARK, 1)[0]

    def forced_tokens(self) -> list[int]:
        """Return the library's forced tokens up to the first special one: what follows that would not spell `forced`."""
        if self._made_from.walked:
            return self._walk.tokens(self)
        result = self._inner.compute_ff_tokens()
        self._check()
        special = next((place for place, token in enumerate(result) if token in self.named), len(result))
        return result[: special + 1]

    def _only_special(self) -> list[int]:
        """Return the special tokens of which one must come next, if one must: the library's masks break on them."""
        if self._made_from.walked:
            special = [token for token in self.named if self.takes(token)]
            return special if special and self._walk.only_special(self) else []
        found = _SPECIAL_FIRST.match(self._inner.compute_ff_bytes())
        self._check()
        return [] if found is None or self.may_end() else [int(found[1])]

    def copy(self) -> LlguidanceCore:
        self._check()
        return LlguidanceCore(self._inner.deep_copy(), self._made_from, self._walk, self._origin, self._taken)

    def _check(self) -> None:
        if self._dead:
            raise DeadEnd("no token continues the text, and it may not end here")
        if self._inner.is_error():
            raise GrammarFailure(f"llguidance: {one_line(self._inner.get_error())}")
