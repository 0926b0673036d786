"""A program's interface: read from source without running it, and applied to the live function."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, strategies as st

from inferd import InvalidRequest, ProgramError, ProgramSyntaxError
from inferd.program.interface import Parameter, coerce_arguments, describe_source, to_result
from inferd.program.json_types import SchemaBuilder
from inferd.program.manifest import LIMITS, Manifest, project_manifest, script_manifest
from inferd.program.pie import input_of, read_pie_file
from inferd_runtime.sandbox.messages import Limits

ROOT = Path(__file__).parents[3]

SOURCE = '''
"""The module."""
raise SystemExit("never run")
from dataclasses import dataclass, field
import dataclasses as dc, datetime, decimal as d, typing as t
from datetime import date as Day, time
from uuid import UUID
from enum import Enum, IntEnum
from typing import *

Names = list[str]
Alias: TypeAlias = "Names | None"

class Color(Enum):
    """Colors."""
    RED = "red"
    BLUE = "blue"
    ROUGE = "red"

class Level(IntEnum):
    LOW = 1
    HIGH = 2

@dataclass
class Base:
    id: int

@dataclass(order=True)
class Node(Base):
    """A node."""
    next: "Node | None" = None
    tags: list[str] = field(default_factory=list)
    hidden: int = field(default=0, init=False)
    must: int = field(kw_only=True)
    count: ClassVar[int] = 0
    color: Color = Color.RED

@dc.dataclass
class Pair:
    left: Node
    right: t.Optional[Node]

class Open(TypedDict, total=False):
    a: Required[int]
    b: "NotRequired[str]"
    c: "Required[str]"

class Closed(Open):
    d: NotRequired[Annotated[float, "a number"]]
    e: int

async def main(
    text: str,
    count: int = 3,
    *,
    ratio: float | None = None,
    flag: bool = False,
    names: Names = ("a", "b"),
    alias: Alias = None,
    color: Color = Color.RED,
    levels: dict[str, Level] = {},
    node: Node,
    pairs: List[Pair] = [],
    both: Union[int, str, None] = -1,
    option: Literal["x", 1, -2, None] = "x",
    closed: Closed | None = None,
    maybe: Optional[int | str] = None,
    anything: Any = {"a": [1, 2.5, None, True]},
    bare: list = [],
    more: Dict = {},
    untyped=None,
    day: Day | None = None,
    moments: list[datetime.datetime] = [],
    key: UUID | time = None,
    place: tuple[float, d.Decimal] = (0, 0),
    rest: Tuple[Level, ...] = (),
    tags: set[str] = (),
    few: "FrozenSet[int]" = (),
    whole: tuple = (),
    some: frozenset = (),
) -> list[Pair]:
    """Do it.

    More about it.
    """
'''


def test_the_interface_of_a_source() -> None:
    interface = describe_source(SOURCE, "demo.py")
    by_name = {parameter.name: parameter for parameter in interface.parameters}
    assert interface.doc == "Do it.\n\nMore about it."
    assert interface.returns == "list[Pair]"
    assert interface.manifest == Manifest("demo")
    assert by_name["text"] == Parameter("text", "str", {"type": "string"}, True)
    assert by_name["count"] == Parameter("count", "int", {"type": "integer"}, False, 3, "3")
    assert by_name["untyped"] == Parameter("untyped", "", {}, False, None, "None")
    assert by_name["names"].default == ["a", "b"]
    assert by_name["both"].default == -1
    assert (by_name["color"].default, by_name["color"].default_text) == (None, "Color.RED")
    assert [name for name, parameter in by_name.items() if parameter.required] == ["text", "node"]
    arguments = interface.arguments_schema
    jsonschema.Draft202012Validator.check_schema(arguments)
    assert arguments["required"] == ["text", "node"]
    assert arguments["properties"]["count"] == {"type": "integer", "default": 3}
    assert "default" not in arguments["properties"]["color"]
    assert arguments["properties"]["alias"]["default"] is None
    jsonschema.validate({"text": "a", "node": {"id": 1, "must": 2, "next": {"id": 2, "must": 1}}}, arguments)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"text": "a", "node": {"id": 1}}, arguments)
    assert interface.returns_schema["items"] == {"$ref": "#/$defs/Pair"}
    assert set(interface.returns_schema["$defs"]) == {"Pair", "Node"}


def unordered(schema: Any) -> Any:
    """A schema without the order of its alternatives: ``typing`` remembers the order that it met first for a union."""
    if isinstance(schema, list):
        return [unordered(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: unordered(value) for key, value in schema.items()}
    return {key: sorted(value, key=repr) if key == "anyOf" else value for key, value in parts.items()}


def test_what_is_read_equals_what_the_types_say() -> None:
    """The reader of source text and the builder over live types agree on every supported annotation."""
    interface = describe_source(SOURCE, "demo.py")
    module = types.ModuleType("interface_demo")
    sys.modules["interface_demo"] = module
    try:
        exec(SOURCE.replace('raise SystemExit("never run")', ""), module.__dict__)
        hints = typing.get_type_hints(module.main, include_extras=True)
        builder = SchemaBuilder()
        for parameter in interface.parameters:
            if parameter.annotation:
                live = builder.build(hints[parameter.name], parameter.name)
                assert unordered(parameter.schema) == unordered(live), parameter.name
        assert unordered(interface.definitions) == unordered(builder.definitions)
    finally:
        del sys.modules["interface_demo"]


@pytest.mark.parametrize(
    "annotation",
    [
        "Unknown", "list[Unknown]", "np.ndarray", "Odd", "Auto", "Loop", "tuple[()]", "date",
        "d.Decimal", "dict[int, str]", "Cls", "5", "Annotated[int, 5]", "f(int)", "'not python('", "Literal[Odd]", "Child",
    ],
)  # fmt: skip
def test_what_one_file_does_not_tell_is_anything(annotation: str) -> None:
    source = f"""
class Odd: x: int
class Child(Odd): y: int
class Auto(Enum): A = auto()
Loop = list["Loop"]
class Cls(Generic[T]): x: int
async def main(x: {annotation}, y: int) -> {annotation}: ...
"""
    interface = describe_source(source, "p.py")
    assert [parameter.schema for parameter in interface.parameters] == [{}, {"type": "integer"}]
    assert (interface.returns_schema, interface.definitions) == ({}, {})


def test_docstring_and_name_fall_back() -> None:
    interface = describe_source('"""Module."""\nasync def main(): ...', "folder/sub/main.py")
    assert (interface.doc, interface.manifest.name, interface.parameters) == ("Module.", "sub", [])
    assert interface.arguments_schema == {
        "type": "object", "properties": {}, "required": [], "additionalProperties": False,
    }  # fmt: skip
    assert describe_source("async def main(): ...", "main.py").manifest.name == "main"


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("x = 1", ProgramError, "no `async def main`"),
        ("from core import main", ProgramError, "write it there, also where it awaits"),
        ("def main(): ...", ProgramError, "must be `async def main`"),
        ("class A:\n async def main(self): ...", ProgramError, "no `async def main`"),
        ("async def main(): ...\nasyncio.run(main())", ProgramError, r"^p\.py:2: .*run it twice"),
        ("async def main(): ...\ncode = sys.exit(anyio.run(main()))", ProgramError, r"^p\.py:2: .*run it twice"),
        ("async def main(*a): ...", ProgramError, "parameter a is not supported"),
        ("async def main(**k): ...", ProgramError, "parameter k is not supported"),
        ("async def main(p, /): ...", ProgramError, "parameter p is not supported"),
        ("async def main(:", ProgramSyntaxError, r"^p\.py:1: "),
        ("x = '\0'", ProgramSyntaxError, r"p\.py"),
    ],
)
def test_sources_that_are_refused(source: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        describe_source(source, "p.py")


def test_a_main_that_a_lambda_may_call_is_not_taken_for_one_that_runs_twice() -> None:
    assert describe_source("async def main(): ...\nagain = lambda: main()", "p.py").parameters == []


def test_a_syntax_error_says_where() -> None:
    with pytest.raises(ProgramSyntaxError) as raised:
        describe_source("\nx = = 1\n", "p.py")
    assert raised.value.detail == {"file": "p.py", "line": 2, "column": 5, "text": "x = = 1"}


def test_warnings_about_the_source_stay_away() -> None:
    assert describe_source(r"async def main(x: str = '\d'): ...", "p.py").parameters[0].default == r"\d"


# -- PEP 723 ----------------------------------------------------------------------------------------------------------

BLOCK = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = ["inferd", "attrs"]
#
# [tool.inferd]
# name = "my-program"
# version = "1.2.0"
# [tool.inferd.limits]
# wall_s = 10
# memory_mb = 64
# ///
async def main(): ...
"""


def test_the_block_of_a_script() -> None:
    expected = Manifest("my-program", "1.2.0", {"wall_s": 10.0, "memory_mb": 64}, ["inferd", "attrs"], ">=3.11")
    assert script_manifest(BLOCK, "p.py") == expected
    assert script_manifest(BLOCK.replace("\n", "\r\n"), "p.py") == expected
    assert describe_source(BLOCK, "p.py").manifest == expected
    assert script_manifest("# /// other\n# x\n# ///\n", "p.py") == Manifest("p")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("name = 5", "cannot be a program's name"),
        ('name = "a b"', "cannot be a program's name"),
        ('name = "../a"', "cannot be a program's name"),
        ('version = ""', "cannot be a program's version"),
        ("memory_mb = 512", r"no key 'memory_mb'; limits stand in \[tool.inferd.limits\]"),
        ('versoin = "1"', r"no key 'versoin'; it has http, limits, mcp, name, retry_safe, serves, version"),
        ("limits = 5", "limits must be a table"),
        ("limits.walls = 5", "no limit 'walls'; there are wall_s"),
        ("limits.wall_s = 0", "wall_s must be a number above 0"),
        ("limits.wall_s = inf", "wall_s must be a number above 0"),
        ("limits.memory_mb = 1.5", "memory_mb must be a whole number"),
        ("limits.memory_mb = true", "memory_mb must be a whole number"),
        ("retry_safe = 1", "retry_safe must be true or false, not 1"),
        ("name =", "p.py: "),
    ],
)
def test_bad_blocks_are_refused_by_name(lines: str, message: str) -> None:
    source = f"# /// script\n# [tool.inferd]\n# {lines}\n# ///\n"
    with pytest.raises(InvalidRequest, match=message):
        script_manifest(source, "p.py")


def test_broken_blocks_are_not_overlooked() -> None:
    with pytest.raises(InvalidRequest, match="not closed"):
        script_manifest("# /// script\n# [tool.inferd]\nimport x\n", "p.py")
    block = "# /// script\n# x = 1\n# ///\n"
    with pytest.raises(InvalidRequest, match="2 `# /// script` blocks"):
        script_manifest(block + "\n" + block, "p.py")
    for line in ("dependencies = 5", "dependencies = [1]", "requires-python = 3", "tool = 5"):
        with pytest.raises(InvalidRequest, match=r"p\.py: "):
            script_manifest(f"# /// script\n# {line}\n# ///\n", "p.py")


def test_a_project_file() -> None:
    text = '[project]\nname = "p"\nversion = "2.0"\ndependencies = ["attrs"]\n'
    assert project_manifest(text, "some/folder") == Manifest("p", "2.0", {}, ["attrs"])
    over = text + '[tool.inferd]\nname = "q"\nlimits.cpu_s = 1.5\n'
    assert project_manifest(over, "f") == Manifest("q", "2.0", {"cpu_s": 1.5}, ["attrs"])
    assert project_manifest("", "some/folder") == Manifest("folder")


def test_the_limits_are_those_of_the_runtime() -> None:
    assert set(LIMITS) == set(Limits.__struct_fields__)


def test_shipped_programs_describe_themselves() -> None:
    folders = sorted(path.parent for path in (ROOT / "inferlets").glob("*/main.py"))
    assert len(folders) >= 3
    for folder in folders:
        interface = describe_source((folder / "main.py").read_text(), f"{folder.name}/main.py")
        assert interface.manifest.name == folder.name
        assert interface.manifest.version != "0.0.0"
        assert interface.doc
        if interface.manifest.serves == "chat":
            assert [parameter.annotation for parameter in interface.parameters] == ["ChatRequest"]
        else:
            assert all(parameter.schema and not parameter.required for parameter in interface.parameters)
        readme = (folder / "README.md").read_text()
        assert all(f"| `{parameter.name}` |" in readme for parameter in interface.parameters)


# -- Arguments and results --------------------------------------------------------------------------------------------


class Color(Enum):
    RED = "red"


@dataclass
class Person:
    name: str
    age: int = 0


async def program(person: Person, color: "Color" = Color.RED, count: int = 1, *, anything=None) -> None:  # type: ignore[no-untyped-def]  # noqa: UP037
    """A program."""


def test_arguments_become_the_types_of_the_signature() -> None:
    arguments = coerce_arguments(program, {"person": {"name": "Ada"}, "color": "red", "count": 2.0, "anything": [1]})
    assert arguments == {"person": Person("Ada"), "color": Color.RED, "count": 2, "anything": [1]}
    assert coerce_arguments(program, {"person": {"name": "Ada"}}) == {"person": Person("Ada")}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({}, "the parameter 'person' is missing"),
        ({"person": {"name": "a"}, "x": 1}, "no parameter 'x'; main takes person, color, count, anything"),
        ({"person": {"name": 1}}, r"^person\.name: must be a string"),
        ({"person": {"name": "a"}, "color": "blue"}, "^color: must be one of"),
        ({"person": {"name": "a"}, "count": "1"}, "^count: must be an integer"),
    ],
)
def test_wrong_arguments_name_the_parameter(args: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        coerce_arguments(program, args)


def test_signatures_that_cannot_be_called_by_name_are_refused() -> None:
    async def stars(*args: int) -> None: ...

    async def positional(a: int, /) -> None: ...

    async def lost(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    async def odd(a: complex) -> None: ...

    for main, message in ((stars, "args"), (positional, "a"), (lost, "Nowhere"), (odd, "^a: complex")):
        with pytest.raises(InvalidRequest, match=message):
            coerce_arguments(main, {"a": 1})
    with pytest.raises(InvalidRequest, match="main takes nothing"):
        coerce_arguments(lambda: None, {"a": 1})


def test_results_become_json() -> None:
    class Name(str):
        pass

    value = {"p": Person("Ada", 36), "c": [Color.RED, (1, 2.5)], "n": None, "s": Name("x"), "b": True}
    assert to_result(value) == {"p": {"name": "Ada", "age": 36}, "c": ["red", [1, 2.5]], "n": None, "s": "x", "b": True}
    assert type(to_result(Name("x"))) is str


def _cycle() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [b"x"]}, r"^result\['a'\]\[0\] is of type bytes"),
        ({1j}, r"^result\[\.\.\.\] is of type complex"),
        (float("nan"), "^result is nan"),
        ({1: 2}, r"^result has the key 1: .*str\(\)"),
        (Person, "^result is the class Person"),
        (object(), "^result is of type object"),
        (dataclasses.make_dataclass("D", ["x"])(1j), r"^result\.x is of type complex"),
        (_cycle(), "contains itself"),
    ],
)
def test_results_that_json_cannot_hold(value: Any, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        to_result(value)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_json_values_pass_unchanged(value: Any) -> None:
    assert to_result(value) == value


# -- Programs for Pie -------------------------------------------------------------------------------------------------


def test_a_program_for_pie_takes_any_arguments_as_its_input() -> None:
    source = """
import inferlet
async def main(input: dict) -> str:
    text = input.get("prompt", "hi") + input["tail"]
    return text * int(input.get("count", 2))
"""
    interface = describe_source(source, "p.py")
    known = {one.name: (one.schema, one.default, one.required) for one in interface.parameters}
    assert known == {
        "prompt": ({"type": "string"}, "hi", False), "tail": ({}, None, False), "count": ({"type": "integer"}, 2, False)
    }  # fmt: skip
    assert interface.arguments_schema["additionalProperties"] is True
    for other in (source.replace("import inferlet", "import inferd"), source.replace("input: dict", "input: str")):
        assert not describe_source(other, "p.py").takes_any


@pytest.mark.parametrize(
    ("given", "taken"), [({}, {}), ({"a": 1}, {"a": 1}), ({"input": {"a": 1}}, {"a": 1}), ({"input": 1}, {"input": 1})]
)
def test_the_input_is_all_that_was_given(given: dict[str, Any], taken: dict[str, Any]) -> None:
    assert input_of(given) == {"input": taken}


def test_a_pie_toml_is_read() -> None:
    text = """
[package]
name = "p"
version = "1.0.0"
[parameters]
prompt = { type = "string", optional = true, description = "What is asked." }
count = "int"
"""
    found = read_pie_file(text, "Pie.toml")
    assert (found.name, found.version) == ("p", "1.0.0")
    assert found.parameters == {
        "prompt": {"type": "string", "description": "What is asked."}, "count": {"type": "integer"}
    }  # fmt: skip
    for bad in (
        "[tool.inferd.limits]\nwall_s = 5",
        '[package]\nname = "a b"',
        "[package]\nname = 1",
        "package = 1",
        "x =",
    ):
        with pytest.raises(InvalidRequest, match=r"Pie\.toml"):
            read_pie_file(bad, "Pie.toml")
