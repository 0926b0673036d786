"""JSON while it is written: what counts as finished, and that every partial value is the beginning of the whole one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, TypedDict

import pydantic
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import ConstraintError, ConstraintViolated, Context, JsonSchema, LimitExceeded, Partial, Sampler
from inferd.partial import PartialJson, decoded_start
from inferd.program.json_values import to_json_value
from inferd.testing import FakeRuntime

GREEDY = Sampler.argmax()


@dataclass
class Point:
    x: int
    y: int | None = None


@dataclass
class Size:
    wide: tuple[str, int] = ("", 0)
    high: set[Decimal] = field(default_factory=set)


class Named(TypedDict):
    name: str


@dataclass
class Shape:
    kind: Literal["line", "area"]
    points: list[Point]
    label: Named
    notes: dict[str, float] = field(default_factory=dict)
    more: Shape | None = None
    size: Size = field(default_factory=Size)


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


def begins(part: Any, whole: Any) -> bool:
    """Whether ``part`` can grow into ``whole``: the same type, the first keys or items, all but the last one whole."""
    if type(part) is not type(whole) or not isinstance(part, (dict, list)):
        return bool(part == whole) and type(part) is type(whole)
    if isinstance(part, dict):
        if list(part) != list(whole)[: len(part)]:
            return False
        pairs = [(part[key], whole[key]) for key in part]
    else:
        if len(part) > len(whole):
            return False
        pairs = list(zip(part, whole, strict=False))
    return all(a == b for a, b in pairs[:-1]) and all(begins(a, b) for a, b in pairs[-1:])


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


@settings(max_examples=examples(300), deadline=None)
@given(value=VALUES, cuts=st.lists(st.integers(0, 300)), indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_every_partial_is_a_beginning_and_the_last_is_the_value(
    value: Any, cuts: list[int], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    whole = json.loads(text)
    reader, before = PartialJson(), 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        changed = reader.feed(text[before:cut])
        shown, before = reader.snapshot(), cut
        assert not shown.complete
        if shown.value is None and not shown.path:
            assert not isinstance(whole, str) or whole.startswith(shown.text)
            continue
        assert begins(shown.value, whole)
        assert not shown.text or at(whole, shown.path).startswith(shown.text)
        assert changed or reader.feed("") is False
    reader.end()
    assert reader.snapshot() == Partial(whole)


POINTS = st.builds(Point, st.integers(), st.none() | st.integers())
SHAPES: st.SearchStrategy[Shape] = st.deferred(
    lambda: st.builds(
        Shape,
        st.sampled_from(["line", "area"]),
        st.lists(POINTS, max_size=3),
        st.fixed_dictionaries({"name": st.text()}),
        st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=2),
        st.none() | SHAPES,
    )
)


@settings(max_examples=examples(100), deadline=None)
@given(shape=SHAPES, size=st.integers(1, 9))
def test_what_fits_a_type_is_never_refused_on_the_way(shape: Shape, size: int) -> None:
    plain = to_json_value(shape, "shape")
    text = json.dumps(plain)
    reader = PartialJson(Shape)
    for first in range(0, len(text), size):
        reader.feed(text[first : first + size])
        assert begins(reader.snapshot().value, plain)
    reader.end()
    assert JsonSchema(Shape).parse(text) == shape


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(), data=st.data(), ascii_only=st.booleans())
def test_a_cut_string_shows_whole_characters_only(text: str, data: st.DataObject, ascii_only: bool) -> None:
    raw = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
    cut = data.draw(st.integers(0, len(raw)))
    assert text.startswith(decoded_start(raw[:cut]))
    assert decoded_start(raw) == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [("a\\", "a"), ("a\\\\", "a\\"), ("a\\\\\\", "a\\"), ("\\u00e", ""), ("\\ud83d", ""), ("\\ud83d\\ude0", ""),
     ("x\\ud83d\\ude00", "x😀"), ("\\\\ud83d", "\\ud83d")],
)  # fmt: skip
def test_escapes_that_are_cut_are_left_out(raw: str, shown: str) -> None:
    assert decoded_start(raw) == shown


def seen(text: str, kind: Any = Any) -> list[tuple[Any, tuple[str | int, ...], str]]:
    """What each character shows that is new."""
    reader, shown = PartialJson(kind), []
    for character in text:
        if reader.feed(character):
            part = reader.snapshot()
            shown.append((part.value, part.path, part.text))
    return shown


def test_only_finished_parts_are_shown() -> None:
    assert seen('{"a":12,"b":["x\\n"]}') == [
        ({}, (), ""),
        ({}, ("a",), ""),
        ({"a": 12}, (), ""),
        ({"a": 12}, ("b",), ""),
        ({"a": 12, "b": []}, ("b", 0), ""),
        ({"a": 12, "b": []}, ("b", 0), "x"),
        ({"a": 12, "b": []}, ("b", 0), "x\n"),
        ({"a": 12, "b": ["x\n"]}, ("b", 1), ""),
        ({"a": 12, "b": ["x\n"]}, (), ""),
        ({"a": 12, "b": ["x\n"]}, (), ""),
    ]


def test_a_number_is_finished_by_what_follows_it() -> None:
    reader = PartialJson()
    assert not reader.feed("12")
    assert reader.snapshot().value is None
    reader.feed("5")
    reader.end()
    assert reader.snapshot().value == 125


def test_partials_do_not_change_afterwards() -> None:
    reader, shown = PartialJson(), []
    for character in '{"a":[1,{"b":2}],"c":3}':
        reader.feed(character)
        shown.append((reader.snapshot(), json.dumps(reader.snapshot().value)))
    assert all(json.dumps(part.value) == text for part, text in shown)


@pytest.mark.parametrize(
    "text",
    ["}", "[}", "[1 2]", "[,", "{1", '{"a" 1', '{"a":1,}', '{"a":1,"a"', "tru,", "[01]", "[NaN,", '["\\x"', '["\t"', "{}x",
     '{"a":}', ":", '"a":', "[1,]"],
)  # fmt: skip
def test_what_is_no_json_is_refused_where_it_shows(text: str) -> None:
    reader = PartialJson()
    with pytest.raises(ConstraintError):
        reader.feed(text)


@pytest.mark.parametrize("text", ["", "[", '"a', '{"a":1', "tru", "-"])
def test_an_early_end_is_refused(text: str) -> None:
    reader = PartialJson()
    reader.feed(text)
    with pytest.raises(ConstraintError):
        reader.end()


def test_deep_nesting_needs_no_stack() -> None:
    reader = PartialJson()
    reader.feed("[" * 20_000)
    assert len(reader.snapshot().path) == 20_000


SHAPE = '{"kind":"line","points":[{"x":1},{"x":2,"y":null}],"label":{"name":"n"},"notes":{"a":1.5},'
SHAPE += '"size":{"wide":["2",1],"high":["2"]}}'


@pytest.mark.parametrize(
    ("good", "bad", "place"),
    [
        ('"line"', '"lane"', "output.kind"),
        ('"x":2', '"x":"2"', r"output.points\[1\].x"),
        ('{"x":1}', "{}", r"output.points\[0\]: missing key 'x'"),
        ('"name":"n"', '"name":1', "output.label.name"),
        ('"a":1.5', '"a":"b"', "output.notes.a"),
        ('"x":1}', '"z":1}', r"output.points\[0\]: unknown key 'z'"),
        ('"wide":["2"', '"wide":[2', r"output.size.wide\[0\]: must be a string"),
        ('"wide":["2",1', '"wide":["2","1"', r"output.size.wide\[1\]: must be an integer"),
        ('"high":["2"', '"high":["x"', r"output.size.high\[0\]: must be a decimal"),
    ],
)
def test_finished_parts_are_checked_at_once_and_by_place(good: str, bad: str, place: str) -> None:
    reader = PartialJson(Shape)
    reader.feed(SHAPE)
    text = SHAPE.replace(good, bad, 1)
    reader = PartialJson(Shape)
    first = text.index(bad)
    reader.feed(text[:first])  # nothing is wrong yet
    with pytest.raises(ConstraintError, match=place):
        reader.feed(bad + ",")


async def collect(text: str, kind: Any, **fields: Any) -> list[Partial[Any]]:
    with FakeRuntime([text], steps=[3, 1]):
        return [part async for part in Context().append("p").generate(GREEDY, constrain=kind, **fields).stream_json()]


@pytest.mark.parametrize("kind", [Shape, dict[str, Any], Any])
async def test_the_last_partial_is_complete_and_typed(kind: Any) -> None:
    parts = await collect(SHAPE, JsonSchema(kind))
    *unfinished, last = parts
    assert len(unfinished) > 10
    assert not any(part.complete or part.result for part in unfinished)
    assert last.complete
    assert last.value == json.loads(SHAPE)
    assert last.result == JsonSchema(kind).parse(SHAPE)
    assert all(begins(a.value, last.value) for a in unfinished)


async def test_a_pydantic_model_is_checked_as_a_whole() -> None:
    assert (await collect('{"name":"Ada","age":36}', JsonSchema(Person)))[-1].result == Person(name="Ada", age=36)
    with pytest.raises(ConstraintError, match="age"):
        await collect('{"name":"Ada","age":-1}', JsonSchema(Person))


async def test_a_cut_stream_says_so() -> None:
    with pytest.raises(LimitExceeded, match="max_tokens=9"):
        await collect(SHAPE, JsonSchema(Shape), max_tokens=9)


async def test_a_stream_without_a_constraint_refuses_what_is_no_json() -> None:
    with pytest.raises(ConstraintError, match="not JSON"):
        await collect("Sure! {}", None)


async def test_a_stream_has_no_second_attempt() -> None:
    with FakeRuntime(["{}", "{}"], problem=lambda _: "wrong") as runtime:
        stream = Context().append("p").generate(GREEDY, constrain=JsonSchema({}, mode="best_effort")).stream_json()
        shown: list[Partial[Any]] = []

        async def follow() -> None:
            async for part in stream:
                shown.append(part)

        with pytest.raises(ConstraintViolated, match="wrong"):
            await follow()
        assert [part.complete for part in shown] == [False, False]
        assert len(runtime.contexts) == 1


async def test_numbers_of_any_size_are_the_ones_that_json_reads() -> None:
    text = "[1e-7,123456789012345678901234567890,-0.0]"
    value = (await collect(text, JsonSchema(list[float])))[-1].value
    assert value == json.loads(text)
    assert math.copysign(1, value[2]) == -1
