"""Cache keys of constraints: equal keys mean equal grammars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from inferd_grammar.constraints import (
    AllOfGrammar,
    AnyJsonGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GbnfGrammar,
    JsonSchemaGrammar,
    JsonTextGrammar,
    LarkGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.errors import GrammarError
from inferd_grammar.schema import schema_text

_MAX_NESTING = 16


def constraint_key(constraint: Constraint, *, depth: int = 0) -> tuple[str, ...]:
    """Return the cache key; equal keys mean equal grammars. Key order of a schema counts: it is the order of the output.

    Raises GrammarError for what is no constraint, text that is not Unicode, and more than 16 levels of constraints.
    """
    if depth > _MAX_NESTING:
        raise GrammarError(f"constraints nest deeper than {_MAX_NESTING}")
    match constraint:
        case JsonSchemaGrammar(schema, mode, length, items):
            return ("json", mode, str(length), str(items), schema_text(schema))
        case AnyJsonGrammar():
            return ("any_json",)
        case RegexGrammar(pattern):
            return ("regex", _text(pattern, "regex"))
        case LarkGrammar(text):
            return ("lark", _text(text, "Lark grammar"))
        case GbnfGrammar(text):
            return ("gbnf", _text(text, "GBNF grammar"))
        case ChoiceGrammar(options):
            return ("choice", *(_text(option, "option of a choice") for option in options))
        case TaggedGrammar(tags):
            return ("tagged", *(part for tag in tags for part in _tag_key(tag, depth)))
        case AllOfGrammar(members):
            return ("all_of", *_all_nested(members, depth))
        case ExactGrammar(inner):
            return ("exact", *_nested(inner, depth))
        case TextGrammar(text):
            return ("text", _text(text, "text"))
        case UntilGrammar(end, None):
            return ("until", _text(end, "end of a text"))
        case UntilGrammar(end, inner) if inner is not None:
            return ("until", _text(end, "end of a text"), *_nested(inner, depth))
        case JsonTextGrammar(inner):
            return ("json_text", *_nested(inner, depth))
        case SequenceGrammar(members):
            return ("sequence", *_all_nested(members, depth))
        case AnyOfGrammar(members):
            return ("any_of", *_all_nested(members, depth))
        case RepeatedGrammar(inner, least, most):
            return ("repeated", str(least), str(most), *_nested(inner, depth))
        case PrefixedGrammar(prefix, None):
            return ("prefixed", _text(prefix, "prefix"))
        case PrefixedGrammar(prefix, inner) if inner is not None:
            return ("prefixed", _text(prefix, "prefix"), *_nested(inner, depth))
    raise GrammarError(f"{type(constraint).__name__} is not a constraint")


def _tag_key(tag: TagGrammar, depth: int) -> tuple[str, ...]:
    if not isinstance(tag, TagGrammar):
        raise GrammarError(f"tags must hold Tag, not {type(tag).__name__}")
    return _text(tag.begin, "begin of a tag"), *_nested(tag.content, depth), _text(tag.end, "end of a tag")


def _nested(constraint: Constraint, depth: int) -> tuple[str, ...]:
    """Return the key of a part, behind how long it is: so parts that stand side by side are told apart."""
    key = constraint_key(constraint, depth=depth + 1)
    return (str(len(key)), *key)


def _all_nested(members: Iterable[Constraint], depth: int) -> Iterator[str]:
    return chain.from_iterable(_nested(member, depth) for member in members)


def _text(value: object, what: str) -> str:
    """Return the value as text a library can read. Raises GrammarError for other types and lone surrogates."""
    if not isinstance(value, str):
        raise GrammarError(f"{what} must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"{what} is not Unicode text: {error}") from error
    return value
