"""What Outlines takes as an output type, as a constraint: its terms as they are, its Python literals as JSON."""

from __future__ import annotations

import datetime
import enum
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Literal, Optional, Tuple, Union  # noqa: UP035

import pytest

from inferd_grammar import (
    AnyJsonGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    GrammarCompiler,
    GrammarError,
    JsonSchemaGrammar,
    LarkGrammar,
    RegexGrammar,
)
from inferd_grammar.outlines_types import constraint_of

outlines = pytest.importorskip("outlines", reason="the optional front end is not installed")
dsl = outlines.types.dsl
types = outlines.types


@dataclass
class Point:
    x: int
    note: Optional[str] = None  # noqa: UP045


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


def area(width: int, unit: str = "m") -> None: ...


def name(text: str) -> None: ...


class Tool(enum.Enum):
    AREA = area
    NAME = name


POINT = {
    "properties": {
        "x": {"title": "X", "type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Note"},
    },
    "required": ["x"],
    "title": "Point",
    "type": "object",
    "additionalProperties": False,
}
INTEGER = {"type": "integer"}


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (int, INTEGER),
        (float, {"type": "number"}),
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (dict, {"type": "object", "additionalProperties": True}),
        (List[int], {"type": "array", "items": INTEGER}),  # noqa: UP006
        (Dict[str, int], {"type": "object", "additionalProperties": INTEGER}),  # noqa: UP006
        (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [INTEGER, {"type": "string"}]}),  # noqa: UP007
        (Tuple[int, bool], {"type": "array", "prefixItems": [INTEGER, {"type": "boolean"}], "minItems": 2, "maxItems": 2}),  # noqa: UP006
        (list[datetime.date], {"type": "array", "items": {"type": "string", "format": "date"}}),
        (list[Literal["a"]], {"type": "array", "items": {"const": "a", "type": "string"}}),
        (list[types.digit], {"type": "array", "items": {"type": "string", "pattern": r"^(?:(\d))$"}}),
        (Point, POINT),
        (list[Point], {"$defs": {"Point": POINT}, "items": {"$ref": "#/$defs/Point"}, "type": "array"}),
        (Literal[1, "a", None], {"enum": [1, "a", None]}),
        (Mixed, {"enum": [1, "two"]}),
        (True, {"const": True}),
        (types.string, {"type": "string"}),
        (types.boolean, {"type": "boolean"}),
        (types.integer, INTEGER),
        (types.number, {"type": "number"}),
        (dsl.Choice([1, "b"]), {"enum": [1, "b"]}),
    ],
)  # fmt: skip
def test_python_types_become_json(kind: Any, schema: Any) -> None:
    made = constraint_of(kind)
    assert isinstance(made, JsonSchemaGrammar)
    assert made.schema == schema


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Literal["a", "b"], ChoiceGrammar(("a", "b"))),
        (Colour, ChoiceGrammar(("red", "blue"))),
        ("just this", ChoiceGrammar(("just this",))),
        (dsl.Choice(["x", "y"]), ChoiceGrammar(("x", "y"))),
        (datetime.time, RegexGrammar(f"({types.time.pattern})")),
        (types.email, RegexGrammar(f"({types.email.pattern})")),
        (dsl.between(2, 3, types.digit), RegexGrammar(r"((\d)){2,3}")),
        (dsl.JsonSchema(INTEGER), JsonSchemaGrammar('{"type": "integer"}')),
        (dsl.JsonSchema(INTEGER, whitespace_pattern="[ ]?"), JsonSchemaGrammar('{"type": "integer"}')),
        (dsl.CFG('start: "a"'), LarkGrammar('start: "a"')),
        (dsl.CFG(outlines.grammars.json), AnyJsonGrammar()),
        (LarkGrammar('start: "a"'), LarkGrammar('start: "a"')),
    ],
)
def test_text_stays_text(kind: Any, expected: Constraint) -> None:
    assert constraint_of(kind) == expected


def test_functions_are_their_arguments() -> None:
    made = constraint_of(area)
    assert isinstance(made, JsonSchemaGrammar)
    assert isinstance(made.schema, dict)
    assert made.schema["required"] == ["width"]
    assert made.schema["additionalProperties"] is False
    tools = constraint_of(Tool)
    assert isinstance(tools, JsonSchemaGrammar)
    assert isinstance(tools.schema, dict)
    assert [part["title"] for part in tools.schema["anyOf"]] == ["area", "name"]


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        (dsl.either("a.b", "c #d\n") + dsl.optional("!"), b"c #d\n!", b"axb"),
        (str, b'"two\\nlines"', b'"two\nlines"'),
        (bool, b"true", b"True"),
        (Optional[int], b"null", b"None"),  # noqa: UP045
        (Tuple[int, str], b'[1,"a"]', b'(1, "a")'),  # noqa: UP006
        ("x" + dsl.JsonSchema(INTEGER), b"x-12", b"x1.0"),
        (Tool, b'{"text":"a"}', b'{"text":1}'),
    ],
)
def test_they_compile_and_hold(compiler: GrammarCompiler, kind: Any, text: bytes, wrong: bytes) -> None:
    def takes(data: bytes) -> bool:
        matcher = compiler.compile(ExactGrammar(constraint_of(kind))).matcher()
        singles = [compiler.table.tokens.index(bytes([byte])) for byte in data]
        return matcher.accept(singles) == len(singles) and matcher.may_end()

    assert takes(text)
    assert not takes(wrong)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Dict[int, str], "keys of a JSON object are plain text, not int"),  # noqa: UP006
        (object(), "no JSON schema"),
        ("x" + dsl.JsonSchema({"type": "integer", "minimum": 3}), "does not enforce 'minimum'"),
        ("x" + dsl.CFG("start: y"), "cannot write Sequence as a regular expression"),
        (dsl.JsonSchema(INTEGER, whitespace_pattern="[ ]"), "without white space"),
        (dsl.Choice([[1]]), "is no JSON value"),
    ],
)
def test_what_has_no_such_meaning_is_refused(kind: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        constraint_of(kind)


def test_outlines_is_imported_only_when_it_is_needed() -> None:
    code = (
        "import sys; from inferd_grammar.outlines_types import constraint_of; from inferd_grammar import AnyJsonGrammar;"
        "constraint_of(AnyJsonGrammar()); sys.exit('outlines' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_outlines_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "outlines.types", None)
    with pytest.raises(GrammarError, match=r"inferd\[outlines\]"):
        constraint_of(int)
