"""Which of llguidance's extensions of Lark a grammar from outside may use: those that say nothing but which texts match."""

from __future__ import annotations

import re

from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits

_LARK_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_LARK_SPECIAL = re.compile(r"<[^<>\n]*>")
_LARK_RULE = re.compile(r"^[ \t]*[?!]*[A-Za-z_][^:\n]*:", re.MULTILINE)
_LARK_OUTSIDE = re.compile(r"@\w+|%llguidance")
_NO_OPTIONS = re.compile(r"\A\s*%llguidance[ \t]*\{\s*\}[ \t]*(?=\n)")
_CAPTURE = re.compile(r'^([A-Za-z_]\w*)\[capture(?:="[^"\\\]\n]*")?\]:', re.MULTILINE)
_LARK_BRACKETS = re.compile(r"\[[^\[\]\n]*\]")
_LARK_ATTRIBUTE = re.compile(r"\b(max_tokens|stop|temperature|capture)\b")


def plain_lark(text: str, limits: CompileLimits) -> str:
    """Return the grammar without what changes no text: empty options, and names of captures, as guidance writes them.

    Raises GrammarError for a grammar with too many rules, special tokens, or what reaches beyond the grammar.
    """
    text = _CAPTURE.sub(r"\1:", _NO_OPTIONS.sub("", text, count=1))
    bare = _LARK_LITERALS.sub("", text)
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
