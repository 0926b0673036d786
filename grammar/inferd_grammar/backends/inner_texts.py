"""Texts of a grammar inside of other texts: as JSON strings, and up to a mark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from inferd_grammar.backends.look_aheads import as_intersection, require_known
from inferd_grammar.backends.text import check_choice, one_line
from inferd_grammar.constraints import (
    AllOfGrammar,
    ChoiceGrammar,
    Constraint,
    JsonTextGrammar,
    LarkGrammar,
    RegexGrammar,
)
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.product import check_members
from inferd_grammar.rewrites.codings import JSON_STRING, coded, up_to
from inferd_grammar.rewrites.regex_dialect import Ambiguous, with_classes_of_python
from inferd_grammar.rewrites.regex_syntax import NotUnderstood
from inferd_grammar.rewrites.regex_tree import Tree, characters, neighbours, read_tree
from inferd_grammar.schema import require_regex, require_size

if TYPE_CHECKING:
    from inferd_grammar.backends.lark_library import PlainGrammar


def json_text_lark(constraint: JsonTextGrammar, limits: CompileLimits) -> str:
    """Return llguidance's grammar of JSON strings whose values are texts of another grammar. Raises GrammarError."""
    match as_intersection(constraint.inner):
        case LarkGrammar(text):
            from inferd_grammar.backends.coded_lark import coded_lark

            return coded_lark(_read(text, limits), JSON_STRING, limits)
        case ChoiceGrammar() as choice:
            check_choice(choice, limits)
            return f"start: {' | '.join(_literal(option) for option in choice.options)}"
        case RegexGrammar(pattern):
            return f"start: TEXT\nTEXT: {_json_expression(pattern, limits)}"
        case AllOfGrammar(members) if members and all(isinstance(member, RegexGrammar) for member in members):
            check_members(members, limits)
            patterns = [
                _json_expression(member.pattern, limits) for member in members if isinstance(member, RegexGrammar)
            ]
            names = [f"P{number}" for number in range(len(patterns))]
            rules = [f"{name}: {pattern}" for name, pattern in zip(names, patterns, strict=True)]
            return "\n".join(["start: TEXT", f"TEXT: {' & '.join(names)}", *rules])
        case inner:
            raise GrammarError(
                f"a text in a JSON string is one of a regular expression, a choice or a Lark grammar, not {_name(inner)}"
            )


def lark_up_to(end: str, inner: Constraint, limits: CompileLimits) -> str:
    """Return llguidance's grammar of a Lark grammar's texts up to an end, which is plain text. Raises GrammarError."""
    if not isinstance(inner, LarkGrammar):
        raise GrammarError(
            f"a text up to an end is one of a regular expression, a choice or a Lark grammar, not {_name(inner)}"
        )
    from inferd_grammar.backends.coded_lark import coded_lark, terminal_trees

    grammar = _read(inner.text, limits)
    trees = list(terminal_trees(grammar).values())
    if _is_mark(end[0]) and not any(one.has(end[0]) for tree in trees for one in characters(tree)):
        return coded_lark(grammar, up_to(end, begun=False), limits)
    if all(map(_is_mark, end[:2])) and not _may_meet(trees, *end[:2]):
        return coded_lark(grammar, up_to(end, begun=True), limits)
    raise GrammarError(
        f"the texts of the Lark grammar may hold {end[:2]!r}, with which {end!r} begins that ends them here: write it without, "
        "or as a regular expression"
    )


def may_hold(constraint: Constraint, char: str) -> bool:
    """Return False if no text of a constraint has a character in it; True where that is not known."""
    match constraint:
        case ChoiceGrammar(options):
            return any(char in option for option in options)
        case RegexGrammar(pattern):
            try:
                return any(one.has(char) for one in characters(read_tree(with_classes_of_python(pattern))))
            except (Ambiguous, NotUnderstood):
                return True
        case AllOfGrammar(members):
            return all(may_hold(member, char) for member in members)
    return True


def _is_mark(char: str) -> bool:
    """Return True for a character of ASCII that is the same in any case."""
    return char.isascii() and not char.isalpha()


def _may_meet(trees: Sequence[Tree], first: str, second: str = "") -> bool:
    """Return True if two characters may stand side by side in texts of several terminals; those of a shorter end may."""
    found = [neighbours(tree, first, second) for tree in trees] if second else []
    meet = any(one.meet for one in found)
    return not second or meet or (any(one.ends for one in found) and any(one.begins for one in found))


def _read(text: str, limits: CompileLimits) -> PlainGrammar:
    from inferd_grammar.backends import lark_library  # takes a third as long to import as all else here

    require_size(text, "Lark grammar", limits)
    try:
        return lark_library.read_lark(text, limits)
    except lark_library.NotLark as error:
        raise GrammarError(
            f"inside of another text a grammar has to be one that Lark itself reads: {one_line(str(error))}"
        ) from error


def _json_expression(pattern: str, limits: CompileLimits) -> str:
    """Return a lexeme of a regular expression's texts as JSON strings."""
    from inferd_grammar.backends.lark_library import written_terminal

    require_regex(pattern, limits)
    require_known(pattern)
    try:
        tree = read_tree(with_classes_of_python(pattern))
        return written_terminal(f'"{coded(tree, JSON_STRING)}"')
    except Ambiguous as error:
        raise GrammarError(f"dialects of regular expressions differ about this: {error}; write it without") from error
    except NotUnderstood as error:
        raise GrammarError(f"not supported in a JSON string: {error}") from error


def _literal(option: str) -> str:
    return json.dumps(json.dumps(option, ensure_ascii=False))


def _name(constraint: Constraint) -> str:
    return type(constraint).__name__.removesuffix("Grammar")
