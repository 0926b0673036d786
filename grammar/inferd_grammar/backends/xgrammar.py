"""xgrammar: optional, for JSON schemas on a whitelist, plain regular expressions and choices.

Its traps, each closed here: schema keywords dropped without an error (`Whitelist`), special tokens legal inside strings
(given as empty), a mask that is left unwritten where all tokens are legal, `fill` that fails behind the stop token
(which never reaches it).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.backends.portable_regex import portable
from inferd_grammar.backends.text import check_choice, one_line
from inferd_grammar.backends.whitelist import Whitelist
from inferd_grammar.constraints import ChoiceGrammar, Constraint, ExactGrammar, JsonSchemaGrammar, RegexGrammar
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.matcher import Core
from inferd_grammar.matchers.product import ProductCore, product_members
from inferd_grammar.schema import read_schema, require_regex, schema_text
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked

try:
    import xgrammar
except ImportError as error:
    raise GrammarError("backend 'xgrammar' needs the package xgrammar: pip install inferd[xgrammar]") from error

WHITELIST = Whitelist("xgrammar", bounds=True, recursion=True, max_count=1000)


class XgrammarBackend:
    """Compiles constraints for one tokenizer. Safe to share between threads; compiling releases the GIL."""

    name = "xgrammar"

    def __init__(self, table: TokenTable) -> None:
        text = [token if b"\xff" not in token else b"" for token in table.tokens]
        info = xgrammar.TokenizerInfo(
            text, xgrammar.VocabType.RAW, vocab_size=table.vocab_size, stop_token_ids=list(table.eos_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint, limits: CompileLimits) -> Core:
        """Return the recogniser at its start. Raises GrammarError for what the library would not enforce as written."""
        if (members := product_members(constraint, limits)) is not None:
            return ProductCore([self.compile(member, limits) for member in members])
        while isinstance(constraint, ExactGrammar):  # its masks always are
            constraint = constraint.inner
        try:
            return XgrammarCore(xgrammar.GrammarMatcher(self._compiled(constraint, limits)))
        except RuntimeError as error:
            raise GrammarError(f"xgrammar: {one_line(str(error))}") from error

    def rebuild(self, recipe: str) -> Core:
        """Not supported: this backend's cores have no recipe."""
        raise GrammarError("xgrammar has no recipes")

    def _compiled(self, constraint: Constraint, limits: CompileLimits) -> Any:
        if isinstance(constraint, JsonSchemaGrammar):
            return self._schema(constraint, limits)
        if isinstance(constraint, RegexGrammar):
            require_regex(constraint.pattern, limits)
            return self._compiler.compile_regex(portable(constraint.pattern, self.name))
        if isinstance(constraint, ChoiceGrammar):
            check_choice(constraint, limits)
            return self._compiler.compile_grammar(f"root ::= {' | '.join(map(_quoted, constraint.options))}")
        kind = type(constraint).__name__
        raise GrammarError(
            f"backend 'xgrammar' does not support {kind}; it takes JsonSchemaGrammar, Regex, Choice and AllOf"
        )

    def _schema(self, constraint: JsonSchemaGrammar, limits: CompileLimits) -> Any:
        if constraint.mode != "strict":
            raise GrammarError("backend 'xgrammar' takes strict JSON schemas only")
        text = schema_text(constraint.schema)
        WHITELIST.check(read_schema(text, limits))
        return self._compiler.compile_json_schema(text, any_whitespace=False, separators=(",", ":"), strict_mode=False)


class XgrammarCore:
    """`Core` over one `GrammarMatcher`. EOS never reaches it, so it never terminates."""

    checked: tuple[Checked, ...] = ()
    named: frozenset[int] = frozenset()
    recipe = None

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        row.fill(-1)  # left as it is where every token is legal
        self._inner.fill_next_token_bitmask(row.reshape(1, -1), 0)

    def push(self, token: int) -> None:
        if not self._inner.accept_token(token):
            raise GrammarFailure(f"xgrammar refused token {token} that its mask allows")

    def pop(self, count: int) -> None:
        self._inner.rollback(count)

    def may_end(self) -> bool:
        return bool(self._inner.is_completed())

    def forced(self, most: int) -> bytes:
        """Return the bytes that the library says must follow; none inside a character, where it cannot tell."""
        if self.may_end():
            return b""
        try:
            text: str = self._inner.find_jump_forward_string()
        except UnicodeDecodeError:
            return b""
        return text.encode()

    def forced_tokens(self) -> list[int]:
        """Return nothing: the library does not say which split is the canonical one."""
        return []

    def copy(self) -> XgrammarCore:
        return XgrammarCore(self._inner.fork())


def _quoted(option: str) -> str:
    """Return a literal of the library's EBNF; `\\x` would take more than two digits there."""
    return '"' + "".join(c if c.isascii() and c.isalnum() else f"\\U{ord(c):08X}" for c in option) + '"'
