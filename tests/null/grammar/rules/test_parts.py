"""Arrays whose items differ inside of texts that are made of parts: calls of tools."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tiers import examples

from inferd_grammar import (
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GrammarCompiler,
    GrammarError,
    GrammarMatcher,
    JsonSchemaGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    TokenTable,
    UntilGrammar,
)

BYTES = GrammarCompiler(TokenTable.of_bytes())
TAGS = JsonSchemaGrammar({"type": "array", "items": {"type": "string"}, "uniqueItems": True})
LIST = JsonSchemaGrammar({"type": "array", "items": {"type": "integer"}})
NUMBER = JsonSchemaGrammar({"type": "integer"})
CALLS = AnyOfGrammar(
    (SequenceGrammar((TextGrammar("set "), TAGS)), SequenceGrammar((TextGrammar("list "), LIST, TextGrammar("."))))
)
CALL = TagGrammar("<c>", CALLS, "</c>")


def takes(constraint: Constraint, text: str, compiler: GrammarCompiler = BYTES) -> bool:
    """Return True if masks allow the text byte by byte, to a place where it may end."""
    matcher, ids = compiler.compile(constraint).matcher(), spelled(text, compiler.table)
    return matcher.accept(ids) == len(ids) and matcher.may_end()


def spelled(text: str, table: TokenTable) -> list[int]:
    parts = table.split_special(text)
    return [
        i
        for part in parts
        for i in ([part] if isinstance(part, int) else table.splitter.split(part.encode()).tokens(0))
    ]


@pytest.mark.parametrize(
    ("constraint", "valid", "invalid"),
    [
        (TaggedGrammar((CALL,)), 'a ["x","x"] <c>set ["x","y"]</c> b', '<c>set ["x","x"]</c>'),
        (TaggedGrammar((CALL,)), "<c>list [1,1].</c><c>set []</c>", '<c>set []</c><c>set ["",""]</c>'),
        (SequenceGrammar((TAGS, TextGrammar("!"), TAGS)), '["a"]!["a"]', '["a"]!["a","a"]'),
        (RepeatedGrammar(SequenceGrammar((CALLS, TextGrammar(";")))), 'list [1,1].;set ["1"];', 'list [1].;set ["1","1"];'),
        (RepeatedGrammar(SequenceGrammar((NUMBER, TextGrammar("="), TAGS))), '1=["a"]2=["a"]', '1=["a"]2=["a","a"]'),
        (SequenceGrammar((ChoiceGrammar(("a", "ab", "")), TAGS)), 'ab["a"]', 'ab["a","a"]'),
        (SequenceGrammar((UntilGrammar("--"), TAGS)), '["a","a"]- --["a"]', '["a"]- --["a","a"]'),
        (SequenceGrammar((PrefixedGrammar("of ", TAGS), RegexGrammar("[a-z]*"))), 'of ["a"]b', 'of ["a","a"]b'),
        (PrefixedGrammar("go ", TaggedGrammar((CALL,))), 'go <c>set ["x"]</c>', 'go <c>set ["x","x"]</c>'),
    ],
)  # fmt: skip
def test_arguments_of_a_call_repeat_no_item_of_a_set(constraint: Constraint, valid: str, invalid: str) -> None:
    """`uniqueItems` in a tool's parameters was refused: `set[str]` of a pydantic model has it."""
    for one in (constraint, *([] if isinstance(constraint, PrefixedGrammar) else [ExactGrammar(constraint)])):
        assert takes(one, valid)
        assert not takes(one, invalid)


def test_a_call_behind_a_special_token_is_followed(compiler: GrammarCompiler) -> None:
    """In letters the mark is text, and what is behind it no call."""
    mark = "<|im_start|>"
    call = SequenceGrammar((TextGrammar("\n"), TAGS))
    constraint = ExactGrammar(TaggedGrammar((TagGrammar(mark, call, f"\n{mark}"),)))
    assert takes(constraint, f'a {mark}\n["x"]\n{mark} b', compiler)
    assert not takes(constraint, f'a {mark}\n["x","x"]\n{mark} b', compiler)
    letters = compiler.table.splitter.split(f'{mark}\n["x","x"]'.encode()).tokens(0)
    assert compiler.compile(constraint).matcher().accept(letters) == len(letters)


def test_what_another_process_compiled_holds_sets_in_calls() -> None:
    compiled = BYTES.compile(SequenceGrammar((TextGrammar("ä"), TAGS)))
    assert compiled.recipe is not None
    core = BYTES._backend.rebuild(compiled.recipe)
    assert json.loads(compiled.recipe)["rules"]["parts"]
    for text, taken in (('ä["a","b"]', True), ('ä["a","a"]', False)):
        copy, ids = core.copy(), spelled(text, BYTES.table)
        assert (copy.consume(ids) == len(ids)) is taken  # type: ignore[attr-defined]


def test_a_text_that_cannot_be_followed_is_refused_by_name() -> None:
    with pytest.raises(GrammarError, match="uniqueItems is not supported behind an expression"):
        BYTES.compile(SequenceGrammar((RegexGrammar("[a-z]*"), TAGS)))
    branches = {"anyOf": [{"type": "array", "uniqueItems": True}, {"type": "array", "maxItems": 2}]}
    with pytest.raises(GrammarError, match="some branches only") as caught:
        BYTES.compile(SequenceGrammar((TextGrammar("x"), JsonSchemaGrammar(branches))))
    assert caught.value.pointer == "/anyOf/0/uniqueItems"


def walked(matcher: GrammarMatcher, rng: random.Random, steps: int) -> list[int]:
    taken: list[int] = []
    for _ in range(steps):
        legal = [i for i in rng.sample(range(1, 257), 256) if matcher.accept([i]) == 1 and not matcher.rollback(1)]
        if not legal:
            break
        taken.append(legal[0])
        assert matcher.accept(taken[-1:]) == 1
    return taken


@pytest.mark.hypothesis
@pytest.mark.parametrize("items", [{"enum": ["a", "b", "c", "d"]}, {"enum": ["1", None, True, "true"]}])
def test_calls_with_sets_are_taken_back_as_they_came(items: dict[str, Any]) -> None:
    tags = JsonSchemaGrammar({"type": "array", "items": items, "uniqueItems": True, "minItems": 2, "maxItems": 3})
    compiled = BYTES.compile(RepeatedGrammar(SequenceGrammar((TextGrammar("x"), tags))))
    rng = random.Random(1)
    for _ in range(examples(6)):
        matcher, fresh = compiled.matcher(), compiled.matcher()
        taken = walked(matcher, rng, 40)
        keep = rng.randint(0, len(taken))
        matcher.rollback(len(taken) - keep)
        assert fresh.accept(taken[:keep]) == keep
        again = walked(matcher.fork(), random.Random(2), 10)
        assert again == walked(fresh, random.Random(2), 10)
        for written in bytes(i - 1 for i in taken).decode().split("x")[1:-1]:
            assert len(set(json.loads(written))) == len(json.loads(written))
