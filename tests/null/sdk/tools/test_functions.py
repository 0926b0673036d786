"""Functions as tools: the schema that a model is held to, what is refused by name, and how arguments reach the function."""

from __future__ import annotations

import asyncio
import functools
import threading
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given, strategies as st
from pydantic import Field

import inferd
from inferd import InvalidRequest
from inferd.tools import ToolFunction
from inferd.tools.docstrings import described


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
            "tags": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
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


def a_set(values: set[int]) -> None:
    pass


def unknown(x: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    pass


def not_a_text_key(x: dict[int, str]) -> None:
    pass


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_annotation, "tool no_annotation, parameter x: it has no annotation"),
        (many, "tool many, parameter args: give every argument a name"),
        (keywords, "tool keywords, parameter kwargs: give every argument a name"),
        (by_place, "tool by_place, parameter x: give every argument a name"),
        (bounded, "parameter x: .*an object that says nothing else"),
        (a_set, r"tool a_set, parameter values: set\[int\] is not supported"),
        (unknown, "tool unknown: its parameters cannot be read: .*Missing"),
        (not_a_text_key, "JSON keys are strings"),
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
    "schema", [{"type": "array"}, {"x": float("nan")}, {"x": {1}}, {"x": 1 << 70}, {"x": "\ud800"}]
)
def test_schemas_that_are_none_are_refused(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="the tool look"):
        inferd.tool(weather, name="look", parameters=schema)


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
