"""The shortest end of a text: what the search finds is legal, and the shortest in the cases that schemas are made of."""

from __future__ import annotations

import itertools
import json
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings, strategies as st
from tiers import examples

from inferd_grammar import (
    AllOfGrammar,
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GbnfGrammar,
    GrammarCompiler,
    JsonSchemaGrammar,
    LarkGrammar,
    PrefixedGrammar,
    RegexGrammar,
    TaggedGrammar,
    TagGrammar,
    TokenTable,
    UntilGrammar,
    compiler as compiler_module,
)
from inferd_grammar.backends.llguidance_core import LlguidanceCore
from inferd_grammar.completion.json_place import START, JsonPlace
from inferd_grammar.completion.plan import LOOKS
from inferd_grammar.completion.search import SearchClock
from inferd_grammar.completion.split import Splitter
from inferd_grammar.constraints import AnyOfGrammar, SequenceGrammar, TextGrammar
from inferd_grammar.errors import GrammarLimit
from inferd_grammar.matchers.matcher import GuardedMatcher

BYTES = GrammarCompiler(TokenTable.of_bytes())
NAMES = ("a", "ab", "b", "long name")


def closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def schemas() -> st.SearchStrategy[tuple[dict[str, Any], int]]:
    """Schemas with the bytes of their shortest JSON."""
    flat = st.one_of(
        st.integers(0, 6).map(lambda n: ({"type": "string", "minLength": n}, n + 2)),
        st.integers(0, 5000).map(lambda n: ({"type": "integer", "minimum": n}, len(str(n)))),
        st.just(({"type": "boolean"}, 4)),
        st.lists(st.text("xyz", max_size=5), min_size=1, max_size=4).map(
            lambda words: ({"enum": words}, min(map(len, words)) + 2)
        ),
    )
    return st.recursive(flat, lambda inner: st.one_of(objects(inner), arrays(inner), unions(inner)), max_leaves=8)


def objects(inner: Any) -> st.SearchStrategy[tuple[dict[str, Any], int]]:
    def made(members: list[tuple[tuple[dict[str, Any], int], bool]]) -> tuple[dict[str, Any], int]:
        named = dict(zip(NAMES, members, strict=False))
        needed = {name: part[1] for name, (part, required) in named.items() if required}
        size = 2 + sum(len(name) + 3 + part for name, part in needed.items()) + max(0, len(needed) - 1)
        return closed({name: part[0] for name, (part, _) in named.items()}, list(needed)), size

    return st.lists(st.tuples(inner, st.booleans()), max_size=4).map(made)


def arrays(inner: Any) -> st.SearchStrategy[tuple[dict[str, Any], int]]:
    def made(item: tuple[dict[str, Any], int], least: int) -> tuple[dict[str, Any], int]:
        size = 2 + least * item[1] + max(0, least - 1)
        return {"type": "array", "items": item[0], "minItems": least}, size

    return st.builds(made, inner, st.integers(0, 2))


def kind(case: tuple[dict[str, Any], int]) -> str:
    return str(case[0].get("type", "string" if "enum" in case[0] else "union"))


def unions(inner: Any) -> st.SearchStrategy[tuple[dict[str, Any], int]]:
    """Of different kinds: branches of one kind share beginnings, and there the search may miss the shortest."""
    return st.lists(inner.filter(lambda case: kind(case) != "union"), min_size=1, max_size=3, unique_by=kind).map(
        lambda parts: ({"anyOf": [part for part, _ in parts]}, min(size for _, size in parts))
    )


@given(schemas())
@settings(max_examples=examples(300), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_the_shortest_json_of_a_schema_is_found(case: tuple[dict[str, Any], int]) -> None:
    schema, size = case
    end = BYTES.compile(JsonSchemaGrammar(schema)).shortest()
    assert end is not None
    json.loads(end)
    assert len(end) == size, (schema, end)


TREE = {
    "$ref": "#/$defs/tree",
    "$defs": {
        "tree": {
            "anyOf": [
                closed({"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}, ["left", "right"]),
                closed({"leaf": {"type": "integer"}}, ["leaf"]),
            ]
        }
    },
}


@pytest.mark.parametrize(
    ("constraint", "shortest"),
    [
        (AnyJsonGrammar(), b"0"),
        (JsonSchemaGrammar(TREE), b'{"leaf":0}'),
        (JsonSchemaGrammar({"type": "string", "pattern": r"^.+\.(png|json)$"}), b'"0.png"'),
        (JsonSchemaGrammar({"type": "string", "format": "date"}), b'"2000-01-01"'),
        (JsonSchemaGrammar({"type": "string", "format": "email"}), b'"a@a.aa"'),
        (JsonSchemaGrammar(closed({f"k{n}": {} for n in range(30)}, ["k29"])), b'{"k29":0}'),
        (ExactGrammar(JsonSchemaGrammar({"type": "array", "minItems": 2})), b"[0,0]"),
        (PrefixedGrammar("So: ", JsonSchemaGrammar({"type": "null"})), b"So: null"),
        (ChoiceGrammar(("perhaps", "no", "yes")), b"no"),
        (RegexGrammar("[a-c]{3}x|hello"), b"aaax"),
        (LarkGrammar('start: "(" (start | /[a-z]+/) ")"'), b"(a)"),
        (LarkGrammar('start: /[a-z]/ "=" ESCAPED_STRING\n%import common.ESCAPED_STRING'), b'a=""'),
        (
            LarkGrammar(
                'start: NOTE TEXT "."\n%import common (ESCAPED_STRING, WS)\n%import common.C_COMMENT -> NOTE\nTEXT: /x/'
            ),
            b"/**/x.",
        ),
        (AllOfGrammar((RegexGrammar("[ab]*"), RegexGrammar(".*b.*"), RegexGrammar(".{3}"))), b"aab"),
        (TaggedGrammar((TagGrammar("<a>", AnyJsonGrammar(), "</a>"),)), b""),
        (RegexGrammar(r"1?.*?\x0a"), b"\n"),
        (UntilGrammar("</a>"), b"</a>"),
        (ExactGrammar(UntilGrammar("</a>")), b"</a>"),
        (JsonSchemaGrammar({"type": "string", "pattern": "(?i)^ab|CDE$"}), b'"aB"'),
    ],
)
def test_what_is_found_for_each_kind_of_constraint(constraint: Constraint, shortest: bytes) -> None:
    assert BYTES.compile(constraint).shortest() == shortest


@pytest.mark.parametrize(
    ("names", "end"),
    [
        ("^[a-z]+$", b'{"a":0}'),
        ("^[a-z]{2}(-[A-Z]{2})?$", b'{"aa":0}'),
        ("^x[a-z]{70,}$", b'{"x' + b"a" * 70 + b'":0}'),
    ],
)
def test_an_object_that_needs_a_name_of_a_pattern_has_an_end(names: str, end: bytes) -> None:
    """All names that a pattern has were listed, without an end."""
    schema = {"type": "object", "propertyNames": {"pattern": names}, "additionalProperties": {"type": "integer"}}
    assert BYTES.compile(JsonSchemaGrammar({**schema, "minProperties": 1})).shortest() == end


def test_an_object_that_needs_names_of_patterns_that_overlap_has_an_end() -> None:
    patterns = {"^x": {"enum": ["bar"]}, "c": {"type": "string", "format": "time"}}
    schema = {"type": "object", "patternProperties": patterns, "additionalProperties": False, "minProperties": 2}
    assert BYTES.compile(JsonSchemaGrammar(schema)).shortest() == b'{"x":"bar","c":"00:00:00Z"}'


def test_a_pattern_beside_a_format_has_the_end_of_the_format() -> None:
    """As zod writes an address; of a look-ahead no shortest match is known."""
    pattern = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    schema = {"type": "string", "format": "email", "pattern": pattern}
    assert BYTES.compile(JsonSchemaGrammar(schema)).shortest() == b'"a@a.aa"'


@pytest.mark.parametrize(
    "constraint",
    [
        RegexGrammar(".+end"),
        RegexGrammar("<(div|span)>[^<]*</(div|span)>"),
        RegexGrammar(r"(.*\n){3}"),
        RegexGrammar("[^x]*x[^y]*y[^z]*z"),
        RegexGrammar(r"Thought: .*\nAction: (search|stop)\nInput: .*"),
        AllOfGrammar((RegexGrammar(".*ab.*"), RegexGrammar(".*cd.*"))),
        LarkGrammar('start: "begin" body "end"\nbody: (/[a-z]+;/ | "{" body "}")*'),
        LarkGrammar('start: "if " e ": pass"\ne: ID | e " and " e | "(" e ")"\nID: /[a-z]{3,8}/'),
        GbnfGrammar('root ::= "- " item{3,5}\nitem ::= [^\\n]+ "\\n"'),
        GbnfGrammar('root ::= [^a]* "a" [^b]* "b" [^c]* "c" "done"'),
    ],
)
def test_literal_texts_of_a_constraint_lead_to_an_end(constraint: Constraint) -> None:
    """Where anything may come first, nothing told the search which byte leads on, and `on_length="complete"` was refused."""
    planner = BYTES.compile(constraint).planner()
    assert planner is not None
    matcher, room, rng = BYTES.compile(constraint).matcher(), planner.needed + 12, random.Random(1)
    while not matcher.ended():
        row = np.empty(matcher.words, np.int32)
        matcher.fill(row)
        token = planner.admit(
            int(rng.choice(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")))), room
        )
        assert matcher.accept([token]) == 1
        room -= 1
    assert room >= -1


@pytest.mark.parametrize(
    ("constraint", "size"),
    [
        (RegexGrammar(r"[^\]\n]{1,40}\]"), 2),
        (RegexGrammar(r".{1,40}\]"), 2),
        (RegexGrammar(r".{0,40}\n"), 1),
        (RegexGrammar(".{1,40}END"), 4),
        (RegexGrammar(r'"""(.|\n){0,400}"""'), 6),
        (RegexGrammar(r"\[.{1,40}\] [^|]{1,40}\|"), 6),
        (LarkGrammar(r'start: /[^\]\n]{1,40}/ "]"'), 2),
        (GbnfGrammar('root ::= [^\\n]{1,40} "\\n"'), 2),
        (AllOfGrammar((RegexGrammar(".{1,40}"), RegexGrammar(r".*\]"))), 1),
    ],
)
def test_what_ends_a_text_of_so_many_characters_is_found_before_it_has_them_all(
    constraint: Constraint, size: int
) -> None:
    """Only bytes of a few kinds were tried, so that an answer in brackets of up to 40 characters was told to need 41 tokens."""
    found = BYTES.compile(constraint).shortest()
    assert found is not None
    assert len(found) == size


def test_strings_that_must_be_long_are_written_in_few_tokens(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(JsonSchemaGrammar({"type": "string", "minLength": 500}))
    assert compiled.shortest() is not None


def test_an_end_is_found_where_masks_hold_the_usual_split_alone(compiler: GrammarCompiler) -> None:
    """Behind `lo` a mask may hold one token of several bytes, and no single byte: the search found no end there."""
    schema = closed(
        {"first": {"enum": ["reddest", "second", "value"]}, "name": {"enum": ["name", "yes", "no"]}}, ["first", "name"]
    )
    end = compiler.compile(JsonSchemaGrammar(schema)).shortest()
    assert end == b'{"first":"value","name":"no"}'


@given(st.binary(max_size=12), st.sets(st.binary(min_size=2, max_size=4), max_size=8))
@settings(max_examples=examples(200), deadline=None)
def test_a_split_has_the_fewest_tokens(text: bytes, more: set[bytes]) -> None:
    tokens = [bytes([n]) for n in range(255)] + sorted(more)
    split = Splitter(tokens).split(text.replace(b"\xff", b"x"))
    assert b"".join(tokens[token] for token in split.tokens(0)) == split.text

    def fewest(at: int) -> int:
        ways = [fewest(at + len(piece)) for piece in more if split.text.startswith(piece, at) and b"\xff" not in piece]
        return 0 if at == len(split.text) else 1 + min([fewest(at + 1), *ways])

    assert split.count(0) == len(split.tokens(0)) == fewest(0)
    for other in (split.text[len(text) // 2 :], b"a" + split.text, split.text[1:] + b"a"):
        again, afresh = Splitter(tokens).split(other, split), Splitter(tokens).split(other)
        assert [again.count(at) for at in range(len(other) + 1)] == [afresh.count(at) for at in range(len(other) + 1)]
        assert again.tokens(0) == afresh.tokens(0)


@given(st.recursive(st.one_of(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.none()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))  # fmt: skip
@settings(max_examples=examples(200), deadline=None)
def test_a_place_counts_the_open_brackets(value: Any) -> None:
    text = json.dumps([value], separators=(",", ":")).encode()
    place, depths = JsonPlace(), list[int]()
    for byte in text:
        place = place.behind(bytes([byte]))
        depths.append(place.depth)
    assert place == JsonPlace(mode="done")
    assert min(depths[:-1]) >= 1


@given(st.lists(st.dictionaries(st.text(), st.text(), max_size=3), max_size=3), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_a_place_is_the_same_in_whatever_steps_a_text_comes(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=data.draw(st.booleans())).encode()
    end = data.draw(st.integers(0, len(text)))
    middle = data.draw(st.integers(0, end))
    single = START
    for byte in text[:end]:
        single = single.behind(bytes([byte]))
    for place in (START.behind(text[:end]), START.behind(text[:middle]).behind(text[middle:end])):
        assert place._replace(pieces=()) == single._replace(pieces=())
        assert place.name == single.name


@pytest.mark.parametrize("name", [b"x" * 100_000, rb"\n" * 50_000])
def test_a_long_name_takes_time_and_memory_by_its_length(name: bytes) -> None:
    """What each of its beginnings led to was kept for all: one name of 40 KB took 774 MiB for as long as the engine lived."""
    tracemalloc.start()
    try:
        place = START.behind(b'{"' + name + b'":')
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert place.mode == "value"
    assert peak < 1 << 20


def test_an_end_that_takes_long_to_find_refuses_its_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has so many looks, but each takes longer in an ambiguous text: two such grammars left nobody a lane to compile in."""
    monkeypatch.setattr(compiler_module, "_END_SECONDS", 0.05)
    rules = [f'r{n}: r{(n + 1) % 90} | "a"' for n in range(90)]
    grammar = LarkGrammar("\n".join(["start: " + " ".join(f"r{n}" for n in range(90)), *rules]))
    compiled = BYTES.compile(grammar)
    for ask in (compiled.shortest, compiled.shortest, compiled.planner, lambda: BYTES.find(grammar)):
        with pytest.raises(GrammarLimit, match="takes too long"):
            ask()


def test_what_is_forced_is_not_taken_beyond_what_an_end_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of 200,000 characters was taken four times, and given back: 17 s of a lane."""
    taken = Counter[str]()
    take = GuardedMatcher.take

    def counted(matcher: GuardedMatcher, tokens: Sequence[int]) -> int:
        taken["tokens"] += len(tokens)
        return take(matcher, tokens)

    monkeypatch.setattr(GuardedMatcher, "take", counted)
    name = "k" * 100_000
    schema = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    assert BYTES.compile(JsonSchemaGrammar(schema)).shortest() is None
    assert taken["tokens"] < 1000


def test_a_look_does_not_walk_to_the_end_of_what_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each walked through 64 bytes twice, with a mask for each, to tell states apart by eight of them."""
    masks, first, mark = list[LlguidanceCore](), *map(BYTES.table.tokens.index, (b"a", b"x"))
    fill = LlguidanceCore.fill

    def counted(core: LlguidanceCore, *row: Any) -> None:
        masks.append(core)
        fill(core, *row)

    monkeypatch.setattr(LlguidanceCore, "fill", counted)
    compiled = BYTES.compile(LarkGrammar(f'start: "a" | "{"x" * 1000}"'))
    planner = compiled.planner()
    assert planner is not None
    masks.clear()
    assert planner.admit(mark, 500) == first
    assert 0 < len(masks) < 12 * LOOKS
    matcher = compiled.matcher()
    matcher.accept([mark])
    assert (matcher.forced(3), matcher.forced()) == (b"xxx", b"x" * 64)


def test_a_long_text_that_a_tag_opens_is_split_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte takes some microseconds: each token that opened one of 20,000 held all streams for 0.3 s, and one of a MB for 13."""
    tag = TagGrammar("<", TextGrammar("z" * 5000), ">")
    planner = BYTES.compile(TaggedGrammar((tag,))).planner()
    assert planner is not None
    opening = BYTES.table.tokens.index(b"<")
    monkeypatch.setattr(Splitter, "split", lambda *_: pytest.fail("split"))
    assert planner.admit(opening, 6000) == opening
    assert planner.needed == 5001


def takes(monkeypatch: pytest.MonkeyPatch, constraint: Constraint) -> int:
    """How often a matcher takes something while a constraint is compiled and its ends are looked for."""
    taken = list[int]()
    take = GuardedMatcher.take

    def counted(matcher: GuardedMatcher, tokens: Sequence[int]) -> int:
        taken.append(len(tokens))
        return take(matcher, tokens)

    monkeypatch.setattr(GuardedMatcher, "take", counted)
    assert GrammarCompiler(TokenTable.of_bytes()).compile(constraint).planner() is not None
    return len(taken)


@pytest.mark.parametrize("number", [1, 40])
def test_the_end_of_a_call_is_made_of_its_own_values(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Those of all tools were tried for each parameter of each, twice: 46 tools took four seconds."""
    tools = [
        {f"p{at}": {"enum": [f"{tool}-{at}-{value}" for value in "abc"]} for at in range(4)} for tool in range(number)
    ]
    tags = [TagGrammar(f"<{at}>", JsonSchemaGrammar(closed(one, sorted(one))), "</>") for at, one in enumerate(tools)]
    assert takes(monkeypatch, TaggedGrammar(tuple(tags))) <= 40 * number


def test_a_text_of_a_format_is_known_and_not_searched_letter_by_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """No end of 32 bytes was found for a UUID, after 400 looks; a tool with one took a tenth of a second."""
    uuid = closed({"id": {"type": "string", "format": "uuid"}}, ["id"])
    assert takes(monkeypatch, TaggedGrammar((TagGrammar("<", JsonSchemaGrammar(uuid), ">"),))) <= 40


def test_a_text_without_quotes_goes_on_as_long_as_an_end_fits() -> None:
    """No end was known in the middle of one, so that it was bent to the one that was known at its beginning."""
    key = UntilGrammar("\n</p>", JsonSchemaGrammar({"type": "string", "pattern": "^[A-Z]+-[0-9]+$"}))
    planner = BYTES.compile(SequenceGrammar((TextGrammar("<p>"), key))).planner()
    assert planner is not None
    written = b""
    for left, byte in zip(range(60, 0, -1), b"<p>" + b"X" * 60, strict=False):
        written += BYTES.table.tokens[planner.admit(BYTES.table.tokens.index(bytes([byte])), left)]
    assert re.fullmatch(rb"<p>X{40,}-[0-9]+\n</p>", written.partition(b"</s>")[0]), written


def test_splitting_an_end_is_bounded_in_time_while_a_text_is_written() -> None:
    members = tuple(SequenceGrammar((TextGrammar(letter), TextGrammar(letter * 5000))) for letter in "xyz")
    planner = BYTES.compile(AnyOfGrammar(members)).planner()
    assert planner is not None
    now = itertools.count()
    with pytest.raises(GrammarLimit):
        planner.admit(BYTES.table.tokens.index(b"y"), 1 << 30, SearchClock(100, lambda: next(now)))


def test_an_end_that_cannot_fit_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    members = tuple(
        SequenceGrammar((TextGrammar(letter), TextGrammar(letter * size))) for letter, size in (("x", 2), ("y", 5000))
    )
    planner = BYTES.compile(AnyOfGrammar(members)).planner()
    assert planner is not None
    first, other = map(BYTES.table.tokens.index, (b"x", b"y"))
    monkeypatch.setattr(Splitter, "split", lambda *_: pytest.fail("split"))
    assert planner.admit(other, 100) == first


def test_many_tokens_are_taken_in_pieces_that_others_wait_for() -> None:
    """The library gives the interpreter up for none of them: a text of 100,000 held every thread for 0.35 s."""
    text, looks = "z" * 5000, list[int]()
    matcher = BYTES.compile(TextGrammar(text)).matcher()
    tokens = BYTES.table.splitter.split(text.encode()).tokens(0)
    assert matcher.ends_with(tokens, lambda: looks.append(matcher.depth))
    assert looks == [0, 1024, 2048, 3072, 4096]
    assert matcher.depth == 0
    assert matcher.take([*tokens, 5]) == 5000
