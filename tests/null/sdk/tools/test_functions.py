"""Functions as tools: the schema that a model is held to, what is refused by name, and how arguments reach the function."""

from __future__ import annotations

import asyncio
import datetime
import functools
import json
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Generic, Literal, Optional, TypedDict, TypeVar

import jsonschema
import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field, create_model

import inferd
from inferd import InvalidRequest
from inferd.tools import ToolFunction
from inferd.tools.docstrings import described
from inferd.tools.results import result_text

T = TypeVar("T")


class Unit(Enum):
    KELVIN = "K"
    CELSIUS = "C"


@dataclass
class Place:
    city: str
    height: float = 0.0


@inferd.tool
async def weather(
    place: Place,
    unit: Unit = Unit.CELSIUS,
    days: Annotated[int, Field(description="how many of them")] = 1,
    kind: Annotated[Literal["rain", "sun"] | None, "what to look for"] = None,
    tags: Optional[list[str]] = None,  # noqa: UP045 - the older way to write it
) -> str:
    """Tell the weather
    of a place.

    More words that no model needs.

    Args:
        place (Place): where, as
            exactly as possible
        unit: of the temperature
        kind: is told by the annotation

    Returns:
        days: no parameter's text
    """
    return f"{place.city} {unit.name} {days} {kind} {tags}"


def test_a_schema_is_made_from_annotations_and_docstring() -> None:
    assert isinstance(weather, ToolFunction)
    assert (weather.name, weather.description) == ("weather", "Tell the weather of a place.")
    assert weather.parameters == {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place", "description": "where, as exactly as possible"},
            "unit": {"enum": ["K", "C"], "description": "of the temperature", "default": "C"},
            "days": {"type": "integer", "description": "how many of them", "default": 1},
            "kind": {
                "anyOf": [{"enum": ["rain", "sun"]}, {"type": "null"}],
                "description": "what to look for",
                "default": None,
            },
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
        },
        "required": ["place"],
        "additionalProperties": False,
        "$defs": {
            "Place": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "height": {"type": "number"}},
                "required": ["city"],
                "additionalProperties": False,
            }
        },
    }


def test_arguments_become_what_the_annotations_ask_for() -> None:
    text = '{"place": {"city": "Oslo", "height": 3}, "unit": "K", "tags": ["a"]}'
    assert asyncio.run(weather.run(text)) == "Oslo KELVIN 1 None ['a']"
    assert asyncio.run(weather(Place("Bo"))) == "Bo CELSIUS 1 None None"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ('{"place": {"city": 1}}', "place.city: must be a string"),
        ("{}", "'place' is missing"),
        ('{"place": {"city": "x"}, "wind": 1}', "weather has no parameter 'wind'"),
        ('{"place": {"city": "x"}, "place": {"city": "y"}}', "repeated"),
        ('{"place": {"ci', "not complete JSON"),
        ("[" * 100_000, "not complete JSON"),
        ("[]", "must be an object"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        asyncio.run(weather.run(arguments))


def test_an_ordinary_function_runs_beside_the_event_loop_and_a_method_is_a_tool() -> None:
    class Store:
        def look(self, key: str) -> str:
            """Look."""
            return f"{key} {threading.current_thread() is threading.main_thread()}"

    made = inferd.tool(Store().look)
    assert (made.name, list(made.parameters["properties"])) == ("look", ["key"])
    assert asyncio.run(made.run('{"key": "a"}')) == "a False"


def test_a_name_a_description_and_a_schema_may_be_given() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 3}}, "required": ["x"]}

    @inferd.tool(name="look-up", description="Find it.", parameters=schema)
    async def anything(**values: Any) -> Any:
        return values

    assert (anything.name, anything.description, anything.parameters) == ("look-up", "Find it.", schema)
    assert asyncio.run(anything.run('{"x": 1, "y": null}')) == {"x": 1, "y": None}


def no_annotation(x) -> None:  # type: ignore[no-untyped-def]
    pass


def many(*args: int) -> None:
    pass


def keywords(**kwargs: int) -> None:
    pass


def by_place(x: int, /) -> None:
    pass


def bounded(x: Annotated[int, Field(description="a number", ge=1)]) -> None:
    pass


def a_set(values: set[list[int]]) -> None:
    pass


def unknown(x: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


def yielding(n: int) -> Iterator[int]:
    yield n


async def yielding_later(n: int) -> AsyncIterator[int]:
    yield n


def not_a_text_key(x: dict[int, str]) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_annotation, "tool no_annotation, parameter x: it has no annotation: write one, such as `x: str`"),
        (many, "tool many, parameter args: give every argument a name"),
        (keywords, "tool keywords, parameter kwargs: give every argument a name"),
        (by_place, "tool by_place, parameter x: give every argument a name"),
        (bounded, "parameter x: .*an object that says nothing else"),
        (a_set, r"tool a_set, parameter values: set\[list\[int\]\] is not supported: a set cannot hold list"),
        (unknown, "tool unknown, parameter x: its annotation cannot be read: .*Missing.* or pass parameters="),
        (not_a_text_key, "JSON keys are strings"),
        (yielding, "tool yielding yields: return what the model is to get"),
        (yielding_later, "tool yielding_later yields"),
        (lambda: None, "cannot be called '<lambda>'"),
        (3, "a tool must be a function"),
    ],
)
def test_what_cannot_be_a_schema_is_refused_by_name(function: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        inferd.tool(function)


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "auto", "none", "required", "a.b", "<end>"])
def test_names_that_a_call_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be called"):
        inferd.tool(weather, name=name)


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"x": float("nan")}, {"x": {b""}}, {"x": 1 << 70}, {"x": "\ud800"}]
)
def test_schemas_that_are_none_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="the tool look"):
        inferd.tool(weather, name="look", parameters=schema)


class Address(BaseModel):
    city: str
    zip: int = Field(ge=1, description="its number")


class Person(BaseModel):
    name: str
    born: datetime.date | None = None
    homes: list[Address] = []
    friend: Person | None = None
    pet: Literal["cat", "dog"] = "cat"


@dataclass
class Letter:
    to: Person
    tags: dict[str, Unit] = field(default_factory=dict)
    copy: list[Address] | None = None


class Options(TypedDict, total=False):
    letter: Letter
    urgent: bool


@inferd.tool
async def send(
    to: Person, count: int, letters: list[Letter], options: Options | None = None, at: Address | None = None
) -> Any:
    """Send."""
    return to, count, letters, options, at


ADA = {"name": "Ada", "born": "1815-12-10", "homes": [{"city": "London", "zip": 2}], "friend": {"name": "Mary"}}


def test_models_stand_beside_other_parameters_and_in_each_other_and_arrive_as_instances() -> None:
    values = {
        "to": ADA,
        "count": 1,
        "letters": [{"to": {"name": "Bo"}, "tags": {"a": "K"}}],
        "options": {"urgent": True},
    }
    jsonschema.validate(values, send.parameters)
    assert set(send.parameters["$defs"]) == {"Person", "Address", "Letter", "Options"}, "each once"
    to, count, letters, options, at = asyncio.run(send.run(json.dumps(values)))
    assert to == Person.model_validate(ADA)
    assert (to.friend.name, to.born) == ("Mary", datetime.date(1815, 12, 10))
    assert (count, options, at) == (1, {"urgent": True}, None)
    assert letters == [Letter(Person(name="Bo"), {"a": Unit.KELVIN})]
    for wrong in ({**ADA, "nme": 1}, {**ADA, "homes": [{"city": "x", "zip": "y"}]}, {"pet": "cat"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**values, "to": wrong}, send.parameters)
    with pytest.raises(InvalidRequest, match=r"(?s)^to: .*homes.0.zip"):
        asyncio.run(send.run(json.dumps({**values, "to": {**ADA, "homes": [{"city": "x", "zip": 0}]}})))


def test_two_models_of_one_name_stay_apart() -> None:
    def made(kind: Any) -> Any:
        return create_model("Same", inner=(create_model("Inner", value=(kind, ...)), ...))

    async def both(a: Any, b: Any) -> str:
        return f"{a.inner.value!r} {b.inner.value!r}"

    both.__annotations__ = {"a": made(int), "b": made(str)}
    it = inferd.tool(both)
    jsonschema.validate({"a": {"inner": {"value": 1}}, "b": {"inner": {"value": "1"}}}, it.parameters)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"a": {"inner": {"value": 1}}, "b": {"inner": {"value": 1}}}, it.parameters)
    assert asyncio.run(it.run('{"a": {"inner": {"value": 1}}, "b": {"inner": {"value": "1"}}}')) == "1 '1'"


def test_models_of_the_first_pydantic_bring_their_definitions_along() -> None:
    class First:
        """Stands for a model of pydantic 1, which the sandbox can have."""

        @classmethod
        def schema(cls) -> dict[str, Any]:
            part = {"type": "object", "properties": {"x": {"type": "integer"}}}
            inner = {"$ref": "#/definitions/Part"}
            return {"type": "object", "properties": {"part": inner}, "definitions": {"Part": part}}

        schema_json = schema

        @classmethod
        def parse_obj(cls, value: Any) -> Any:
            return ("parsed", value)

    async def use(first: Any, n: int) -> Any:
        return first

    use.__annotations__ = {"first": First, "n": int}
    made = inferd.tool(use)
    assert made.parameters["$defs"]["First"]["properties"]["part"] == {"$ref": "#/$defs/Part"}
    jsonschema.validate({"first": {"part": {"x": 1}}, "n": 1}, made.parameters)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"first": {"part": {"y": 1}}, "n": 1}, made.parameters)
    assert asyncio.run(made.run('{"first": {"part": {}}, "n": 1}')) == ("parsed", {"part": {}})


class OfFunctions(BaseModel):
    call: Callable[[], int]


@dataclass
class Deep:
    parts: list[deque[int]]


@dataclass
class Box(Generic[T]):
    value: T


REFUSED = [
    (tuple[()], "use tuple[T, ...], or one type for each place"), (Sequence[int], "use list[T]"),
    (datetime.timedelta, "use str, and convert"), (Fraction, "use float, or Decimal"),
    (bytes, "use str, in Base64"), (Callable[[int], int], "use Literal"), (object(), "use bool"),
    (threading.Thread, "use a dataclass, a TypedDict or a pydantic model"),
    (Deep, "deque[int] is not supported: use list"),
    (Box[int], "use Box without type arguments"), (T, "use the type that it stands for"), (type[int], "use Literal"),
    (Mapping[str, int], "use dict[str, T]"), (OfFunctions, "use types that JSON has"),
    (Enum("E", {"A": (1, 2)}), "use text, numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "instead"), REFUSED)
def test_a_refusal_names_the_parameter_and_what_to_use_instead(kind: Any, instead: str) -> None:
    def take(x: int, wrong: Any) -> None:
        pass

    take.__annotations__["wrong"] = kind
    with pytest.raises(InvalidRequest, match=re.escape(instead)) as caught:
        inferd.tool(take)
    assert caught.value.message.startswith("the tool take, parameter wrong")


def test_tuples_sets_and_decimals_arrive_as_such() -> None:
    def pay(amount: Decimal, to: tuple[str, int], tags: set[str], shares: tuple[Decimal, ...] = ()) -> Any:
        return {"amount": amount, "to": to, "tags": tags, "shares": shares}

    made = inferd.tool(pay)
    jsonschema.Draft202012Validator.check_schema(made.parameters)
    given = {"amount": "1.10", "to": ["Ada", 2], "tags": ["b", "a"]}
    jsonschema.validate(given, made.parameters)
    assert made.parameters["properties"]["shares"]["default"] == []
    returned = asyncio.run(made.run(json.dumps(given)))
    assert returned == {"amount": Decimal("1.10"), "to": ("Ada", 2), "tags": {"a", "b"}, "shares": ()}
    assert json.loads(result_text("pay", returned, 100)) == {**given, "tags": ["a", "b"], "shares": []}


def test_partial_functions_are_tools() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    made = inferd.tool(functools.partial(add, b=2), name="add_two")
    assert asyncio.run(made.run('{"a": 1}')) == 3


@given(st.text(alphabet="Args:\n \ta:bx(é)", max_size=80))
def test_no_docstring_is_an_error(text: str) -> None:
    def function() -> None:
        pass

    function.__doc__ = text
    summary, told = described(function)
    assert "\n" not in summary
    assert all(isinstance(value, str) for value in told.values())
