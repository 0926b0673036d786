"""Tagged text, intersections, prefixes, exact masks: languages, masks at the borders, and what is refused."""

from __future__ import annotations

import random
import re
from itertools import product, takewhile

import numpy as np
import pytest
from tokenizers import Tokenizer

from inferd_grammar import (
    AllOfGrammar,
    AnyJsonGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    CompileLimits,
    Constraint,
    ExactGrammar,
    GrammarCompiler,
    GrammarError,
    GrammarFailure,
    GrammarMatcher,
    JsonSchemaGrammar,
    LarkGrammar,
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
from inferd_grammar.conformance.matcher_checks import (
    COMPOSED_CONSTRAINTS,
    GRAMMAR_CONSTRAINTS,
    JSON_CONSTRAINTS,
    TAGGED_CONSTRAINTS,
    language,
    legal_ids,
)
from inferd_grammar.keys import constraint_key
from inferd_grammar.matchers.product import is_regular

from .conftest import byte_level


def test_an_intersection_is_regular_from_two_expressions_on() -> None:
    one, other = RegexGrammar("a+"), ChoiceGrammar(("a", "b"))
    assert [is_regular(members) for members in ([one, other], [one], [one, AnyJsonGrammar()])] == [True, False, False]


CALL = TagGrammar("<call>", ChoiceGrammar(("x", "xy")), "</call>")


def spell(matcher: GrammarMatcher, table: TokenTable, text: bytes) -> int:
    """Take the text byte by byte; how many bytes were taken."""
    return matcher.accept([table.tokens.index(bytes([byte])) for byte in text])


@pytest.mark.parametrize(
    "constraint",
    [*GRAMMAR_CONSTRAINTS, *TAGGED_CONSTRAINTS, *COMPOSED_CONSTRAINTS, *JSON_CONSTRAINTS],
    ids=lambda constraint: type(constraint).__name__,
)
def test_exact_masks_hold_every_token_whose_bytes_go_on(
    compiler: GrammarCompiler, table: TokenTable, constraint: Constraint
) -> None:
    """Also tokens that span the border of two parts."""
    singles = {token[0]: i for i, token in enumerate(table.tokens) if len(token) == 1}
    spellable = sorted(
        (t, i) for i, t in enumerate(table.tokens) if t and b"\xff" not in t and singles.keys() >= set(t)
    )
    matcher, rng = compiler.compile(ExactGrammar(constraint)).matcher(), random.Random(1)
    for _ in range(12):
        legal, depth, before = set(legal_ids(matcher, table)), 0, b""
        for token, i in spellable:  # sorted: what was taken of the one before is not taken again
            common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(token, before, strict=False)))
            if depth >= common:
                matcher.rollback(depth - common)
                depth, before = common + matcher.accept([singles[byte] for byte in token[common:]]), token
            assert (depth == len(token)) == (i in legal), token
        matcher.rollback(depth)
        marks = [i for i in legal if i in table.special_ids or table.tokens[i][:1] in (b"<", b"(")]
        matcher.accept([rng.choice(sorted(marks) if marks and rng.random() < 0.5 else sorted(legal))])
        if matcher.ended():
            matcher.rollback(min(2, matcher.depth))


def test_a_complete_begin_must_be_followed(compiler: GrammarCompiler, table: TokenTable) -> None:
    matcher = compiler.compile(ExactGrammar(TaggedGrammar((CALL,)))).matcher()
    assert spell(matcher, table, b"a <calm> b <<call>") == 18
    assert matcher.forced() == b"x"
    assert not matcher.may_end()
    assert spell(matcher, table, b"xy</call> and <cal") == 18
    assert matcher.may_end()


def test_special_tokens_are_named_not_spelt(compiler: GrammarCompiler, tokenizer: Tokenizer, table: TokenTable) -> None:
    """Their bits are set where the tag begins, and nowhere else; the same text in letters is just text."""
    start, end = (tokenizer.token_to_id(name) for name in ("<|im_start|>", "<|endoftext|>"))
    matcher = compiler.compile(
        ExactGrammar(TaggedGrammar((TagGrammar("<|im_start|>", ChoiceGrammar(("x",)), "<|im_start|>."),)))
    ).matcher()
    assert start in legal_ids(matcher, table)
    assert spell(matcher, table, b"<|im_start|>y") == 13
    assert matcher.accept([start]) == 1
    assert (matcher.forced(), matcher.forced_tokens()[-1:]) == (b"x", [start])
    assert matcher.accept([start]) == 0
    assert spell(matcher, table, b"x") == 1
    assert legal_ids(matcher, table) == [start]
    assert matcher.accept([start, table.tokens.index(b"."), end]) == 3


def test_a_name_the_tokenizer_has_not_is_text(compiler: GrammarCompiler, table: TokenTable) -> None:
    matcher = compiler.compile(
        ExactGrammar(TaggedGrammar((TagGrammar("<|no_such|>", ChoiceGrammar(("x",)), "!"),)))
    ).matcher()
    assert spell(matcher, table, b"<|no_such|>x!") == 13


@pytest.mark.parametrize(
    ("tags", "reason"),
    [
        ((), "at least one tag"),
        ((TagGrammar("", CALL.content, ""),), "is empty"),
        ((CALL, TagGrammar("<call", CALL.content, "")), "inside that of another"),
        ((CALL, CALL), "inside that of another"),
        ((TagGrammar("<a>", TaggedGrammar((CALL,)), "</a>"),), "do not nest"),
        ((TagGrammar("a<|im_start|>", CALL.content, ""),), "must come first"),
        ((TagGrammar("<a>", CALL.content, "<|im_end|>"),), "names the end of the text"),
        ((TagGrammar("<a>", ExactGrammar(CALL.content), ""),), "put Exact outside"),
        (
            (TagGrammar("<a>", AllOfGrammar((AnyJsonGrammar(), RegexGrammar("a"))), ""),),
            "regular expressions and choices only",
        ),
        ((TagGrammar("<a>", AllOfGrammar((RegexGrammar("a"),) * 17), ""),), "max_all_of is 16"),
        ((TagGrammar("<a>", JsonSchemaGrammar({}, mode="best_effort"), ""),), "stands alone"),
        (tuple(TagGrammar(f"<{n}>", CALL.content, "") for n in range(401)), "max_tags is 400"),
    ],
)
def test_tags_that_cannot_be_held_are_refused(
    compiler: GrammarCompiler, tags: tuple[TagGrammar, ...], reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiler.compile(TaggedGrammar(tags))


@pytest.mark.parametrize(
    "patterns", [("[ab]*", "a.*", ".*b"), ("(a|ab)*", "(ab|ba)*"), ("a{1,4}", "(aa)*"), ("", "a*"), ("/", "/|a")]
)
@pytest.mark.parametrize("joined", [True, False], ids=["joined", "side-by-side"])
def test_intersections(compiler: GrammarCompiler, table: TokenTable, patterns: tuple[str, ...], joined: bool) -> None:
    members: list[Constraint] = [RegexGrammar(pattern) for pattern in patterns]
    if not joined:
        members.append(LarkGrammar("start: /[ab\\/]*/"))
    texts = ("".join(letters) for size in range(5) for letters in product("ab/", repeat=size))
    expected = {text.encode() for text in texts if all(re.fullmatch(pattern, text) for pattern in patterns)}
    assert language(compiler.compile(AllOfGrammar(tuple(members))).matcher(), table, 4) == expected


WHOLE = {
    "[ab]*b": SequenceGrammar((RegexGrammar("[ab]*"), TextGrammar("b"))),
    "a*ab": SequenceGrammar((RegexGrammar("a*"), RegexGrammar("ab"))),
    "(a+a|b)": AnyOfGrammar((SequenceGrammar((RegexGrammar("a+"), TextGrammar("a"))), TextGrammar("b"))),
    "((a|ab)b*){1,2}": RepeatedGrammar(
        SequenceGrammar((ChoiceGrammar(("a", "ab")), RegexGrammar("b*"))), least=1, most=2
    ),
    "(/|a)*a/": SequenceGrammar((RepeatedGrammar(ChoiceGrammar(("/", "a")), least=0), TextGrammar("a/"))),
    "aa|aaaa": SequenceGrammar((AllOfGrammar((RegexGrammar("a{1,3}"), RegexGrammar("a|aaa"))), TextGrammar("a"))),
}


@pytest.mark.parametrize("pattern", WHOLE)
def test_what_follows_an_expression_that_could_have_taken_it_comes_all_the_same(
    compiler: GrammarCompiler, table: TokenTable, pattern: str
) -> None:
    texts = ("".join(letters) for size in range(5) for letters in product("ab/", repeat=size))
    found = language(compiler.compile(WHOLE[pattern]).matcher(), table, 4)
    assert found == {text.encode() for text in texts if re.fullmatch(pattern, text)}


def test_a_dead_end_is_an_error_not_an_end(compiler: GrammarCompiler, table: TokenTable) -> None:
    """Members that contradict each other further on: a typed error where it shows, and rollback leads out of it."""
    both = AllOfGrammar((LarkGrammar('start: "a" ("b" | "c")'), LarkGrammar('start: "a" ("d" | "c" "x"?)')))
    matcher = compiler.compile(AllOfGrammar((*both.members, RegexGrammar("ab?")))).matcher()
    assert spell(matcher, table, b"a") == 1
    for _ in range(2):
        with pytest.raises(GrammarFailure, match="no token of this vocabulary"):
            matcher.fill(np.empty(table.words, np.int32))
    matcher.rollback(1)
    assert spell(matcher, table, b"a") == 1
    with pytest.raises(GrammarError, match="no first token"):
        compiler.compile(AllOfGrammar((LarkGrammar('start: "a"'), RegexGrammar("b"))))
    with pytest.raises(GrammarError):
        compiler.compile(AllOfGrammar((RegexGrammar("a"), RegexGrammar("b"))))


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ((), "at least one member"),
        ((AnyJsonGrammar(), JsonSchemaGrammar({}, mode="best_effort")), "stands alone"),
        (tuple(LarkGrammar(f'start: "{n}"') for n in range(17)), "max_all_of is 16"),
        (tuple(RegexGrammar(f"a*b{{{n}}}") for n in range(17)), "max_all_of is 16"),
    ],
)
def test_intersections_that_cannot_be_held_are_refused(
    compiler: GrammarCompiler, members: tuple[Constraint, ...], reason: str
) -> None:
    with pytest.raises(GrammarError, match=reason):
        compiler.compile(AllOfGrammar(members))


def test_a_prefix_may_be_covered_by_a_longer_token(compiler: GrammarCompiler, table: TokenTable) -> None:
    token = max((t for t in table.tokens if t.isalpha()), key=len).decode()
    matcher = compiler.compile(PrefixedGrammar(token[:2], RegexGrammar(f"{token[2:]}[0-9]"))).matcher()
    legal = {table.tokens[i] for i in legal_ids(matcher, table)}
    assert token.encode() in legal
    assert all(token.encode().startswith(piece) for piece in legal)


def test_constraints_nest_only_so_deep(compiler: GrammarCompiler) -> None:
    constraint: Constraint = RegexGrammar("a")
    for _ in range(40):
        constraint = ExactGrammar(constraint)
    with pytest.raises(GrammarError, match="nest deeper than 16"):
        compiler.compile(constraint)


@pytest.mark.parametrize("tokenizer", [byte_level], indirect=True)  # the search knows none, and compiling takes long
def test_parts_that_repeat_each_other_a_million_times_have_no_known_end_and_raise_nothing(
    compiler: GrammarCompiler,
) -> None:
    """The search for their ends ended in a RecursionError, which was told as a bug."""
    inner: Constraint = TextGrammar("ab")
    compiled = compiler.compile(RepeatedGrammar(RepeatedGrammar(inner, 1000, 1000), 1000, 1000))
    assert compiled.shortest() is None
    assert compiled.planner() is None
    few = compiler.compile(RepeatedGrammar(inner, 3, 3))
    assert few.shortest() == b"ababab"


def test_a_text_without_quotes_that_a_token_ends_has_none(
    compiler: GrammarCompiler, tokenizer: Tokenizer, table: TokenTable
) -> None:
    """GLM's tokenizer has a token for the end of an argument: behind a length or a pattern the value was JSON there."""
    end = tokenizer.token_to_id("<|im_start|>")
    for schema, text in (
        ({"maxLength": 3}, b"a<\n"),
        ({"pattern": "^[a-z<]+$", "minLength": 2}, b"<a"),
        ({"format": "ipv6"}, b"fe80::1"),
    ):
        until = UntilGrammar("<|im_start|>", JsonSchemaGrammar({"type": "string", **schema}))
        matcher = compiler.compile(ExactGrammar(until)).matcher()
        assert spell(matcher, table, text) == len(text)
        assert matcher.accept([end]) == 1
        assert matcher.may_end()


def test_a_part_that_stands_in_many_places_is_compiled_once(compiler: GrammarCompiler, table: TokenTable) -> None:
    """98 tools with 600 parameters, most of them texts that differ in what is said about them, took ten seconds."""
    values = [JsonSchemaGrammar({"type": "boolean", "title": f"The {number}."}) for number in range(50)]
    parts = SequenceGrammar(tuple(part for value in values for part in (value, TextGrammar(";"))))
    compiled = compiler.compile(ExactGrammar(parts))
    assert compiled.recipe is not None
    assert compiled.recipe.count("boolean") == 1
    matcher, text = compiled.matcher(), b"true;" * 50
    assert matcher.accept([table.tokens.index(bytes([byte])) for byte in text]) == len(text)
    assert matcher.may_end()


def test_a_key_does_not_double_with_each_level_of_parts() -> None:
    """Levels were quoted in each other: eight of them made more of a kilobyte than a constraint may have."""
    inner: Constraint = TextGrammar('"' * 1000)
    for _ in range(15):
        inner = SequenceGrammar((inner,))
    assert sum(map(len, constraint_key(inner))) < 2000


def test_keys_tell_constraints_apart(compiler: GrammarCompiler) -> None:
    plain, exact = compiler.compile(RegexGrammar("ab")), compiler.compile(ExactGrammar(RegexGrammar("ab")))
    assert plain is not exact
    assert compiler.compile(TaggedGrammar((CALL,))) is compiler.compile(
        TaggedGrammar((TagGrammar("<call>", ChoiceGrammar(("x", "xy")), "</call>"),))
    )
    assert compiler.compile(AllOfGrammar((RegexGrammar("a"), RegexGrammar("a|b")))) is not compiler.compile(
        AllOfGrammar((RegexGrammar("a|b"), RegexGrammar("a")))
    )


def test_keys_tell_apart_how_parts_are_grouped() -> None:
    a, b, c = (TextGrammar(text) for text in "abc")
    groupings = [
        SequenceGrammar((a, b, c)), SequenceGrammar((SequenceGrammar((a, b)), c)), SequenceGrammar((a, SequenceGrammar((b, c)))),
        SequenceGrammar((ChoiceGrammar(("a", "b")), ChoiceGrammar(("c",)))),
        SequenceGrammar((ChoiceGrammar(("a",)), ChoiceGrammar(("b", "c")))),
        SequenceGrammar((ChoiceGrammar(("a", "2", "choice", "b")),)),
        SequenceGrammar((ChoiceGrammar(("a",)), ChoiceGrammar(("b",)))),
    ]  # fmt: skip
    assert len(set(map(constraint_key, groupings))) == len(groupings)


def test_limits_hold_for_the_parts(table: TokenTable) -> None:
    compiler = GrammarCompiler(table, limits=CompileLimits(max_regex=10))
    with pytest.raises(GrammarError, match="max_regex is 10"):
        compiler.compile(TaggedGrammar((TagGrammar("<a>", RegexGrammar("a" * 11), ""),)))
