"""Grammars in Lark, as llguidance reads them or as Lark does.

Of llguidance's extensions a grammar from outside may use those that say nothing but which texts match.
"""

from __future__ import annotations

import re

import llguidance

from inferd_grammar.backends.text import one_line
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.rewrites.terminals import is_lazy
from inferd_grammar.schema import require_size

LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
"""Texts and expressions in a grammar, and comments."""
_LARK_SPECIAL = re.compile(r"<[^<>\n]*>")
_LARK_RULE = re.compile(r"^[ \t]*[?!]*[A-Za-z_][^:\n]*:", re.MULTILINE)
_LARK_OUTSIDE = re.compile(r"@\w+|%llguidance")
_NO_OPTIONS = re.compile(r"\A\s*%llguidance[ \t]*\{\s*\}[ \t]*(?=\n)")
_CAPTURE = re.compile(r'^([A-Za-z_]\w*)\[capture(?:="[^"\\\]\n]*")?\]:', re.MULTILINE)
_LARK_BRACKETS = re.compile(r"\[[^\[\]\n]*\]")
_LARK_ATTRIBUTE = re.compile(r"\b(max_tokens|stop|temperature|capture)\b")


def lark_grammar(text: str, limits: CompileLimits) -> str:
    """Return llguidance's grammar of a text in Lark: as it stands, if that says the same to the library, else written for it.

    Raises GrammarError.
    """
    require_size(text, "Lark grammar", limits)
    grammar, refusal = (
        None,
        GrammarError("a lazy quantifier in a grammar that Lark itself cannot read is not supported"),
    )
    try:
        grammar = llguidance.LLMatcher.grammar_from_lark(plain_lark(text, limits))
        if reason := llguidance.LLMatcher.validate_grammar(grammar):
            grammar, refusal = None, GrammarError(f"llguidance: {one_line(reason)}")
    except GrammarError as error:
        refusal = error
    if grammar is not None and not any(is_lazy(piece[0]) for piece in LITERALS.finditer(text) if piece[0][0] == "/"):
        return grammar
    from inferd_grammar.backends.lark_library import (
        NotLark,
        written_plainly,
    )  # a third of the time of all other imports

    try:
        return llguidance.LLMatcher.grammar_from_lark(written_plainly(text, limits))
    except NotLark:
        raise refusal from None


def plain_lark(text: str, limits: CompileLimits) -> str:
    """Return the grammar without what changes no text: empty options, and names of captures, as guidance writes them.

    Raises GrammarError for a grammar with too many rules, special tokens, or what reaches beyond the grammar.
    """
    text = _CAPTURE.sub(r"\1:", _NO_OPTIONS.sub("", text, count=1))
    bare = LITERALS.sub("", text)
    if (count := len(_LARK_RULE.findall(bare))) > limits.max_rules:
        raise GrammarError(f"Lark grammar has {count} rules; max_rules is {limits.max_rules}")
    if "::=" in bare:
        raise GrammarError("Lark writes rules as `start: ...`; a grammar with ::= is GBNF")
    if special := _LARK_SPECIAL.search(bare):
        raise GrammarError(f"Lark grammar names the special token {special[0]}: not supported")
    if outside := _LARK_OUTSIDE.search(bare):
        raise GrammarError(f"{outside[0]!r} in a Lark grammar is not supported")
    for bracket in _LARK_BRACKETS.finditer(bare):
        if attribute := _LARK_ATTRIBUTE.search(bracket[0]):
            raise GrammarError(f"Lark rule attribute {attribute[1]!r} is not supported")
    return text
