"""outlines_core: optional, for regular expressions, choices, and JSON schemas on a whitelist.

In other schemas it ignores `minimum`, `uniqueItems` and more without an error; they are refused. An `Index` (the whole
automaton, built eagerly) is shared; a position is one integer, so states are kept here and not in a `Guide`, whose ring
of 32 would bound rollback.

Its automaton prefers the leftmost alternative, so on its own `a|ab` never accepts "ab", nor `a??` an "a". With a
closing mark behind the pattern no shorter match can win, and the language is exact: the text may end where the mark
would lead to the end. The mark is NUL (byte 0xFF is refused, `\\z` takes exponential time), so a text holds no NUL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.backends.text import choice_pattern, one_line
from inferd_grammar.backends.whitelist import Whitelist
from inferd_grammar.constraints import ChoiceGrammar, Constraint, ExactGrammar, JsonSchemaGrammar, RegexGrammar
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.matcher import Core
from inferd_grammar.matchers.product import ProductCore, product_members
from inferd_grammar.schema import read_schema, require_regex, schema_text
from inferd_grammar.tokens import TokenTable, bit_mask

try:
    import outlines_core
except ImportError as error:
    raise GrammarError("backend 'outlines' needs the package outlines_core: pip install inferd[outlines]") from error


_MARK = b"\x00"
WHITELIST = Whitelist("outlines", bounds=False, recursion=False, max_count=64)


class OutlinesBackend:
    """Compiles regular expressions for one tokenizer. Safe to share between threads."""

    name = "outlines"

    def __init__(self, table: TokenTable) -> None:
        ids = {_MARK: [table.vocab_size]}
        for i, token in enumerate(table.tokens):
            if token and _MARK not in token and b"\xff" not in token:
                ids.setdefault(token, []).append(i)
        self._vocabulary = outlines_core.Vocabulary(table.vocab_size + 1, ids)  # the library's EOS is never used
        self._bytes = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
        self._table = table

    def compile(self, constraint: Constraint, limits: CompileLimits) -> Core:
        """Return the recogniser at its start. Raises GrammarError for what the library would not enforce as written."""
        if (members := product_members(constraint, limits)) is not None:
            return ProductCore([self.compile(member, limits) for member in members])
        while isinstance(constraint, ExactGrammar):  # its masks always are
            constraint = constraint.inner
        pattern = _pattern(constraint, limits)
        try:
            outlines_core.Index(pattern, self._bytes)  # alone first: wrapped, `a)|(b` would be well formed
            index = outlines_core.Index(f"(?:{pattern})\\x00", self._vocabulary)
        except ValueError as error:
            raise GrammarError(f"outlines_core: {one_line(str(error))}") from error
        return OutlinesCore(index, self._table, [index.get_initial_state()])

    def rebuild(self, recipe: str) -> OutlinesCore:
        """Not supported: this backend's cores have no recipe."""
        raise GrammarError("outlines_core has no recipes")


def _pattern(constraint: Constraint, limits: CompileLimits) -> str:
    if isinstance(constraint, RegexGrammar):
        require_regex(constraint.pattern, limits)
        return constraint.pattern
    if isinstance(constraint, ChoiceGrammar):
        return choice_pattern(constraint, limits)
    if not isinstance(constraint, JsonSchemaGrammar):
        kind = type(constraint).__name__
        raise GrammarError(
            f"backend 'outlines' does not support {kind}; it takes JsonSchemaGrammar, Regex, Choice and AllOf"
        )
    if constraint.mode != "strict":
        raise GrammarError("backend 'outlines' takes strict JSON schemas only")
    text = schema_text(constraint.schema)
    WHITELIST.check(read_schema(text, limits))
    try:
        pattern: str = outlines_core.json_schema.build_regex_from_schema(text, "")
    except (ValueError, TypeError) as error:
        raise GrammarError(f"outlines_core: {one_line(str(error))}") from error
    return pattern


class OutlinesCore:
    """`Core` over one `Index`: the states passed so far, one integer per token."""

    checked = ()
    named: frozenset[int] = frozenset()
    recipe = None

    def __init__(self, index: Any, table: TokenTable, states: list[int]) -> None:
        self._index = index
        self._table = table
        self._states = states

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        allowed = self._index.get_allowed_tokens(self._states[-1])
        if allowed is None:
            raise GrammarFailure(f"outlines_core does not know its state {self._states[-1]}")
        size = self._table.vocab_size
        np.copyto(row, bit_mask([token for token in allowed if token < size], size))

    def push(self, token: int) -> None:
        state = self._index.get_next_state(self._states[-1], token)
        if state is None:
            raise GrammarFailure(f"outlines_core refused token {token} that its mask allows")
        self._states.append(state)

    def pop(self, count: int) -> None:
        del self._states[-count:]

    def may_end(self) -> bool:
        end = self._index.get_next_state(self._states[-1], self._table.vocab_size)
        return end is not None and bool(self._index.is_final_state(end))

    def forced(self, most: int) -> bytes:
        """Return nothing: the library does not tell."""
        return b""

    def forced_tokens(self) -> list[int]:
        """Return nothing: a single legal token need not be the canonical one."""
        return []

    def copy(self) -> OutlinesCore:
        return OutlinesCore(self._index, self._table, list(self._states))
