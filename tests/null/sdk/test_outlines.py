"""Outlines drives the runtime: its types become constraints, its generators get text back."""

from __future__ import annotations

import datetime
import enum
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from inferd import InvalidRequest
from inferd.protocol import StartGenerate
from inferd.schema import Choice
from inferd.testing import FakeRuntime

outlines = pytest.importorskip("outlines", reason="the optional front end is not installed")
dsl = outlines.types.dsl


@dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = "red"


def area(width: int) -> None: ...


@pytest.fixture
def runtime() -> Iterator[FakeRuntime]:
    with FakeRuntime(["first", "second"], steps=[2]) as runtime:
        yield runtime


@pytest.fixture
def model() -> Any:
    from inferd.outlines import OutlinesModel

    return OutlinesModel()


def constraints(runtime: FakeRuntime) -> list[Any]:
    return [request.constraint for request in runtime.of_kind(StartGenerate)]


def test_a_call_is_a_generation(runtime: FakeRuntime, model: Any) -> None:
    assert model("Hi", Literal["first", "other"], max_tokens=7) == "first"
    (request,) = runtime.of_kind(StartGenerate)
    assert (request.constraint.kind, request.constraint.options) == ("choice", ["first", "other"])
    assert request.max_tokens == 7
    assert not runtime.contexts


def test_a_batch_is_several(runtime: FakeRuntime, model: Any) -> None:
    assert sorted(model.batch(["a", "b"], int)) == ["first", "second"]
    assert [constraint.value for constraint in constraints(runtime)] == ['{"type": "integer"}'] * 2


def test_a_stream_comes_in_pieces_and_may_be_left(runtime: FakeRuntime, model: Any) -> None:
    assert list(model.stream("Hi")) == ["fi", "rs", "t"]
    left = model.stream("Hi")
    assert next(left) == "se"
    left.close()
    assert not runtime.contexts
    assert constraints(runtime) == [None, None]


def test_outlines_own_generator_drives_it(runtime: FakeRuntime, model: Any) -> None:
    generator = model.generator(Point)
    assert isinstance(generator, outlines.generator.BlackBoxGenerator)
    assert generator("Hi") == "first"
    assert list(generator.stream("Hi")) == ["se", "co", "nd"]
    assert [constraint.kind for constraint in constraints(runtime)] == ["json_schema"] * 2


def test_a_chat_keeps_its_roles(runtime: FakeRuntime, model: Any) -> None:
    chat = outlines.inputs.Chat([{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}])
    assert model(chat) == "first"


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (str, "json_schema", '{"type": "string"}'),
        (outlines.types.boolean, "json_schema", '{"type": "boolean"}'),
        (Literal[1, "a"], "json_schema", '{"enum": [1, "a"]}'),
        (dsl.JsonSchema({"type": "null"}), "json_schema", '{"type": "null"}'),
        (datetime.date, "regex", f"({outlines.types.date.pattern})"),
        (dsl.Regex("[ab]"), "regex", "([ab])"),
        (dsl.CFG('start: "a"'), "lark", 'start: "a"'),
        (dsl.CFG(outlines.grammars.json), "any_json", ""),
    ],
)
def test_output_types(model: Any, kind: Any, name: str, value: str) -> None:
    made = model.type_adapter.format_output_type(kind)
    assert made.constraint.kind == name
    assert (made.constraint.value or "") == value


def test_values_and_functions(model: Any) -> None:
    adapter = model.type_adapter
    assert adapter.format_output_type(Colour).constraint.options == ["red"]
    assert adapter.format_output_type(dsl.Choice(["a"])).constraint.options == ["a"]
    schema = adapter.format_output_type(area).schema
    assert (schema["required"], schema["additionalProperties"]) == (["width"], False)
    own = Choice(["a"])
    assert adapter.format_output_type(own) is own


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (object(), "not supported"),
        ("x" + dsl.JsonSchema({"type": "null"}), "drops keywords"),
        ("x" + dsl.CFG("start: y"), "cannot be written as a regular expression"),
        (dsl.Choice([[1]]), "not JSON"),
        (dsl.JsonSchema({"type": "null"}, whitespace_pattern=" "), "without white space"),
    ],
)
def test_what_has_no_meaning_is_refused_before_anything_is_sent(
    runtime: FakeRuntime, model: Any, kind: Any, reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        model.generator(kind)
    assert not runtime.requests


def test_other_inputs_and_backends_are_refused(model: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a string or a Chat, not int"):
        model(5)
    with pytest.raises(InvalidRequest, match="content of text"):
        model(outlines.inputs.Chat([{"role": "tool", "content": "x"}]))
    with pytest.raises(InvalidRequest, match="the runtime chooses"):
        model("Hi", backend="xgrammar")


def test_the_sdk_alone_imports_no_outlines() -> None:
    subprocess.run([sys.executable, "-c", "import sys, inferd; sys.exit('outlines' in sys.modules)"], check=True)
