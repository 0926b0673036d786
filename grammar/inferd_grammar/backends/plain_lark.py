"""Grammars in Lark, as llguidance reads them or as Lark does.

Of llguidance's extensions a grammar from outside may use those that say nothing but which texts match.
"""

from __future__ import annotations

import re

import llguidance

from inferd_grammar.backends.text import library_reason
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.rewrites.regex_dialect import Ambiguous, with_classes_of_python
from inferd_grammar.rewrites.terminals import is_lazy
from inferd_grammar.schema import require_size

LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?P<expression>(?:\\.|[^/\\\n])+)/(?P<flags>[imslux]*)|//[^\n]*|#[^\n]*')
"""Texts and expressions in a grammar, and comments."""
NO_START = (
    "Lark grammar has no rule `start`: add one, as in `start: first_rule`, or give the first one's name as `start=`"
)
_UNKNOWN = re.compile(r'unknown name: "([A-Z_]+)"')
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
    try:
        if not _is_lazy(text):
            return _as_it_stands(text, limits)
        refusal = GrammarError("a lazy quantifier in a grammar that Lark itself cannot read is not supported")
    except GrammarError as error:
        refusal = error
    from inferd_grammar.backends import lark_library  # takes a third as long to import as all else here

    try:
        return llguidance.LLMatcher.grammar_from_lark(lark_library.written_plainly(text, limits))
    except lark_library.NotLark:
        raise refusal from None


def _is_lazy(text: str) -> bool:
    pieces = (piece[0] for piece in LITERALS.finditer(text))
    return any(is_lazy(piece) for piece in pieces if piece.startswith("/") and not piece.startswith("//"))


def _as_it_stands(text: str, limits: CompileLimits) -> str:
    grammar = llguidance.LLMatcher.grammar_from_lark(plain_lark(text, limits))
    if reason := llguidance.LLMatcher.validate_grammar(grammar):
        raise GrammarError(_with_remedy(library_reason(reason)))
    return grammar


def _with_remedy(reason: str) -> str:
    """Return the library's reason, with what helps where a rule or a terminal is missing."""
    if "no start rule found" in reason:
        return NO_START
    unknown = _UNKNOWN.search(reason)
    remedy = f"; define {unknown[1]}, or write `%import common.{unknown[1]}` if it is one of Lark's" if unknown else ""
    return f"{reason}{remedy}"


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
    return LITERALS.sub(_of_python, text)


def _of_python(literal: re.Match[str]) -> str:
    """Return a literal in which the classes of an expression are Python's, as they are for Lark. Raises GrammarError."""
    expression, flags = literal["expression"], literal["flags"]
    if expression is None:
        return literal[0]
    begin = f"(?{flags})" if flags else ""
    try:
        written = with_classes_of_python(begin + expression)
    except Ambiguous as error:
        raise GrammarError(f"dialects of regular expressions differ about this: {error}; write it without") from error
    return f"/{written.removeprefix(begin)}/{flags}"
