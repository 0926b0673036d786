"""Types as JSON Schema, and JSON back as those types."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import (  # noqa: UP035
    Annotated,
    Any,
    ClassVar,
    Dict,
    FrozenSet,
    List,
    Literal,
    NewType,
    NotRequired,
    Optional,
    Required,
    Set,
    Tuple,
    TypedDict,
    Union,
)
from uuid import UUID

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import AnyJson, Choice, ConstraintError, InvalidRequest, JsonSchema, ProgramError, Regex
from inferd.program.json_types import schema_of, structure
from inferd.program.json_values import to_json_value
from inferd.schema import is_complete_json

UserId = NewType("UserId", int)


OPTIONAL: Any = Optional[int]  # noqa: UP045


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"
    NONE = None


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Address(TypedDict):
    street: Annotated[str, "with the number"]
    zip: NotRequired[str]


class Loose(TypedDict, total=False):
    must: Required[int]
    may: str


@dataclass
class Person:
    name: str
    age: int
    email: Optional[str]  # noqa: UP045
    color: Color = Color.RED
    tags: list[str] = field(default_factory=list)
    kind: Literal["a", 1, True, None] = "a"
    address: Address | None = None
    scores: dict[str, float] = field(default_factory=dict)
    either: Union[int, str] = 0  # noqa: UP007
    level: Level = Level.LOW
    user: UserId = UserId(1)
    shared: ClassVar[int] = 5
    derived: int = field(default=0, init=False)


@dataclass
class Visit:
    day: date
    at: datetime
    opens: time
    guest: UUID | None


@dataclass
class Receipt:
    total: Decimal
    place: tuple[float, float]
    parts: tuple[tuple[str, Decimal], ...]
    tags: set[str]
    levels: frozenset[Level | None] = frozenset()


@dataclass
class Tree:
    value: int
    children: list[Tree]
    other: Branch | None = None


@dataclass
class Branch:
    tree: Tree


@dataclass
class Twice:
    one: Address
    two: list[Address]


class Item(pydantic.BaseModel):
    name: str
    parts: list[Item] = []


class Order(pydantic.BaseModel):
    items: list[Item]
    count: int = pydantic.Field(ge=1)
    free: dict[str, Any] = {}


class OpenOrder(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    properties: dict[str, int]


TYPES: list[Any] = [
    None, bool, int, float, str, Any, list, dict, list[int], List[int], Dict[str, int], List, Dict,  # noqa: UP006
    dict[str, list[bool]], OPTIONAL, int | str | None, Literal["x", 2, None], Color, Level, Address, Loose, Person,
    Tree, Branch, Twice, list[Tree], UserId, Annotated[int, "a number"], object, date, Visit, dict[str, UUID | None],
    Decimal, tuple[int, str], tuple[int, ...], tuple, Tuple, set[str], set, Set, FrozenSet[Decimal], Receipt,  # noqa: UP006
]  # fmt: skip


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_schema_is_valid_and_needs_nothing_else(kind: Any) -> None:
    schema = schema_of(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema
    assert JsonSchema(kind).schema == schema


def test_the_schema_of_a_dataclass() -> None:
    @dataclass
    class Local:
        a: int
        b: float = 0.5

    assert schema_of(Local) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "number"}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_recursion_goes_through_definitions() -> None:
    schema = schema_of(Tree)
    assert schema["$ref"] == "#/$defs/Tree"
    assert set(schema["$defs"]) == {"Tree", "Branch"}
    assert schema["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert schema["$defs"]["Tree"]["required"] == ["value", "children"]


def test_a_type_used_twice_is_defined_once_and_the_root_stands_on_top() -> None:
    schema = schema_of(Twice)
    assert schema["properties"]["one"] == {"$ref": "#/$defs/Address"}
    assert schema["properties"]["two"]["items"] == {"$ref": "#/$defs/Address"}
    assert list(schema["$defs"]) == ["Address"]
    assert schema["$defs"]["Address"]["required"] == ["street"]
    assert schema["$defs"]["Address"]["properties"]["street"]["description"] == "with the number"


def test_two_classes_of_one_name_are_kept_apart() -> None:
    def make(kind: Any) -> Any:
        return dataclass(type("Same", (), {"__annotations__": {"x": kind}}))

    @dataclass
    class Both:
        pass

    Both.__annotations__ = {"a": make(int), "b": make(str)}
    schema = schema_of(dataclass(Both))
    assert schema["$defs"]["Same"]["properties"]["x"] == {"type": "integer"}
    assert schema["$defs"]["Same2"]["properties"]["x"] == {"type": "string"}


def test_typed_dict_marks_count_even_when_written_as_strings() -> None:
    assert schema_of(Address)["required"] == ["street"]
    assert schema_of(Loose)["required"] == ["must"]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_values_of_a_type_are_valid_under_its_schema_and_come_back(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([Person, Tree, Twice, Color, list[Person], dict[str, Level], Visit, Receipt]))
    finite = st.floats(allow_nan=False, allow_infinity=False)
    st.register_type_strategy(float, finite)
    few_digits = st.decimals(-(10**30), 10**30, allow_nan=False).filter(lambda one: len(one.as_tuple().digits) <= 30)
    st.register_type_strategy(Decimal, few_digits)
    value = data.draw(st.from_type(kind))
    plain = to_json_value(value, "value")
    if isinstance(value, Person):
        del plain["derived"]  # not a parameter of the class
    if isinstance(value, list):
        for entry in plain:
            entry.pop("derived")
    jsonschema.validate(plain, schema_of(kind))
    assert JsonSchema(kind).parse(json.dumps(plain)) == value


@dataclass
class Seeded:
    """No value of JSON makes one: the model's was refused when it was whole."""

    seed: dataclasses.InitVar[int]
    scale: dataclasses.InitVar[int] = 1
    drawn: int = 0


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (bytes, "^bytes"),
        (complex, "^complex"),
        (set[list[int]], r"^set\[list\[int\]\].*cannot hold list\[int\]"),
        (frozenset[Address], "cannot hold Address"),
        (tuple[()], r"^tuple\[\(\)\]"),
        (tuple[int, bytes], r"^tuple\[int, bytes\]\[1\]: bytes"),
        (dict[int, str], "JSON keys are strings"),
        (list[list[bytes]], r"^list\[list\[bytes\]\]\[\]\[\]: bytes"),
        (Literal[b"x"], "not a JSON value"),
        (Annotated[int, pydantic.Field(ge=1)], "one description string"),
        (Annotated[int, "a", "b"], "one description string"),
        (print, "not supported"),
        (5, "not supported"),
        (list[Seeded], r"^Seeded\.seed: .*InitVar\[int\] is not supported"),
    ],
)
def test_unsupported_types_are_refused_by_path(kind: Any, path: str) -> None:
    with pytest.raises(InvalidRequest, match=path):
        JsonSchema(kind)


class Soon:
    def __await__(self) -> Iterator[None]:
        return iter(())


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (MappingProxyType({}), "make a dict"),
        ({}.keys(), "make a list"),
        (iter([]), "make a list"),
        (timedelta(1), "hold$"),
        (Fraction(1), r"str\(\)"),
        (Path("a"), r"str\(\)"),
        (b"x", "send_file"),
        (Soon(), "await it first"),
        (object(), "hold$"),
    ],
)
def test_a_value_that_json_cannot_hold_is_refused_with_what_to_do_instead(value: Any, instead: str) -> None:
    with pytest.raises(ProgramError, match=rf"^value\[0\] is of type .*, which JSON cannot.*{instead}"):
        to_json_value([value], "value")


def test_unsupported_fields_name_their_class() -> None:
    @dataclass
    class Inner:
        when: complex

    @dataclass
    class Outer:
        inner: list[Inner] | None

    Outer.__annotations__["inner"] = list[Inner] | None
    with pytest.raises(InvalidRequest, match=r"^Inner\.when: complex is not supported"):
        schema_of(Outer)

    @dataclass
    class Lost:
        x: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(
        InvalidRequest, match=r"Lost cannot be evaluated.*Nowhere.*; use types of its module's top level"
    ):
        schema_of(Lost)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "1", "^x: must be an integer, not '1'"),
        (int, True, "^x: must be an integer"),
        (int, 1.5, "^x: must be an integer"),
        (float, True, "^x: must be a number"),
        (float, 10**400, "too large"),
        (bool, 1, "^x: must be a boolean"),
        (str, None, "^x: must be a string"),
        (None, 0, "^x: must be null"),
        (list[int], [1, "a"], r"^x\[1\]: must be an integer"),
        (list[int], {}, "^x: must be an array"),
        (dict[str, int], {"a": None}, r"^x\['a'\]: must be an integer"),
        (OPTIONAL, "a", "^x: must be an integer"),
        (int | str, None, "^x: None fits none of int | str"),
        (Literal["a", 1], True, "^x: must be one of"),
        (Color, "green", "^x: must be one of"),
        (Level, True, "^x: must be one of"),
        (Address, {}, "^x: missing key 'street'"),
        (Address, {"street": "s", "more": 1}, "^x: unknown key 'more'"),
        (Address, {"street": 1}, r"^x\.street: must be a string"),
        (Tree, {"value": 1, "children": [{"value": "a", "children": []}]}, r"^x\.children\[0\]\.value"),
        (Person, {"name": "a", "age": 1, "email": None, "derived": 1}, "unknown key 'derived'"),
        (Order, {"items": [], "count": 0}, "^x: "),
        (date, "2024-02-30", "^x: day"),
        (date, 5, "^x: must be a string"),
        (list[UUID], ["a"], r"^x\[0\]: badly formed"),
        (Decimal, "NaN", "^x: must be a decimal number"),
        (Decimal, "1\n", "^x: must be a decimal number"),
        (Decimal, "0." + "3" * 41, "^x: must be a decimal number, with 40 digits"),
        (Decimal, "99E" + "9" * 18, "^x: .*too large"),
        (Decimal, 1.5, "^x: must be a string"),
        (tuple[int, str], [1], "^x: must be an array of 2, not of 1"),
        (tuple[int, str], [1, 2], r"^x\[1\]: must be a string"),
        (tuple[int, ...], [1, "a"], r"^x\[1\]: must be an integer"),
        (set[int], ["a"], r"^x\[0\]: must be an integer"),
        (set, [[1]], "^x: .*unhashable"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_path(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        structure(kind, value, "x")


def test_values_that_fit() -> None:
    assert structure(int, 3.0, "x") == 3
    assert type(structure(int, 3.0, "x")) is int
    assert type(structure(float, 3, "x")) is float
    assert structure(int | float, 1.5, "x") == 1.5
    assert structure(Loose, {"must": 1}, "x") == {"must": 1}
    assert structure(Any, [1, {"a": None}], "x") == [1, {"a": None}]
    assert structure(Order, {"items": [{"name": "a"}], "count": 1}, "x") == Order(items=[Item(name="a")], count=1)


def test_a_set_has_one_order_in_every_run_and_repeated_items_count_once() -> None:
    assert structure(set[int], [2, 1, 2.0], "x") == {1, 2}
    assert to_json_value({10, 9, -1}, "x") == [-1, 9, 10]
    assert to_json_value({"b", "a", None}, "x") == ["a", "b", None]
    assert to_json_value(frozenset({(2, "b"), (1, "a")}), "x") == [[1, "a"], [2, "b"]]


def test_a_decimal_keeps_every_digit_and_what_is_no_number_is_refused() -> None:
    for text in ("0.10", "-12345678901234567890.123456789", "1E+30"):
        assert to_json_value(structure(Decimal, text, "x"), "x") == text
    with pytest.raises(ProgramError, match="x is NaN"):
        to_json_value(Decimal("NaN"), "x")


def test_an_alias_that_contains_itself_is_refused() -> None:
    class TypeAliasType:  # as `type Loop = list[Loop]` makes it from Python 3.12 on
        __value__: Any

    loop = TypeAliasType()
    loop.__value__ = list[loop]  # type: ignore[valid-type]
    with pytest.raises(InvalidRequest, match="contains itself"):
        schema_of(loop)
    names = TypeAliasType()
    names.__value__ = list[str]
    assert schema_of(names) == {"type": "array", "items": {"type": "string"}}
    assert structure(names, ["a"], "x") == ["a"]


def test_a_class_may_check_its_own_fields() -> None:
    @dataclass
    class Positive:
        n: int

        def __post_init__(self) -> None:
            if self.n <= 0:
                raise ValueError("n must be positive")

    with pytest.raises(InvalidRequest, match=r"^x: n must be positive"):
        structure(Positive, {"n": 0}, "x")
    with pytest.raises(ConstraintError, match="n must be positive"):
        JsonSchema(Positive).parse('{"n":0}')


def test_endless_nesting_is_refused() -> None:
    value: dict[str, Any] = {"value": 0, "children": []}
    for _ in range(400):
        value = {"value": 0, "children": [value]}
    with pytest.raises(InvalidRequest, match="too deeply"):
        structure(Tree, value, "x")
    with pytest.raises(ConstraintError):
        AnyJson().parse("[" * 100_000)


def test_pydantic_models_do_their_own_work_but_stay_closed() -> None:
    schema = JsonSchema(Order).schema
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Item"]["additionalProperties"] is False
    assert schema["properties"]["free"]["additionalProperties"] is True
    assert schema["properties"]["count"]["minimum"] == 1
    assert JsonSchema(Order).parse('{"items":[{"name":"a"}],"count":2}') == Order(items=[Item(name="a")], count=2)
    with pytest.raises(ConstraintError, match="count"):
        JsonSchema(Order).parse('{"items":[],"count":0}')
    assert JsonSchema(OpenOrder).schema["additionalProperties"] is True
    assert JsonSchema(OpenOrder).schema["properties"]["properties"]["additionalProperties"] == {"type": "integer"}


def test_a_tag_with_a_default_is_written_all_the_same() -> None:
    """Pydantic's schema calls it optional, and its validation of a tagged union does not."""
    card = pydantic.create_model("Card", kind=(Literal["card"], "card"), last=(str, ""))
    bank = pydantic.create_model("Bank", kind=(Literal["bank"], "bank"), iban=(str, ...))
    paid = Annotated[card | bank, pydantic.Field(discriminator="kind")]
    order = pydantic.create_model("Order", paid=(list[paid], ...))  # type: ignore[valid-type]
    for schema in (JsonSchema(order).schema, JsonSchema(list[order]).schema):  # type: ignore[valid-type]
        union = schema.get("properties", schema["$defs"].get("Order", {}).get("properties"))["paid"]["items"]
        assert union["required"] == ["kind"]
    old = {"oneOf": [{"$ref": "#/definitions/Card"}], "discriminator": {"propertyName": "kind", "mapping": {}}}
    parts = {"Card": {"type": "object", "properties": {"kind": {"const": "card"}}}}
    model = type("Tagged", (OldModel,), {"schema": staticmethod(lambda: {**old, "definitions": parts})})
    assert JsonSchema(model).schema["required"] == ["kind"]
    assert "required" not in old, "pydantic 1 keeps its schemas"


def test_schemas_as_dict_and_as_text() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert JsonSchema(schema).constraint.value == json.dumps(schema)  # in the order that was given
    text = '{ "type" : "integer" }'
    assert JsonSchema(text).constraint.value == text
    assert JsonSchema(text).parse("5") == 5
    for bad in ("", "{", "[]", '"x"', '{"a":1,"a":2}', '{"a":NaN}'):
        with pytest.raises(InvalidRequest, match=r"^schema"):
            JsonSchema(bad)
    for worse in ({"a": float("nan")}, {"a": b""}):
        with pytest.raises(InvalidRequest, match=r"^schema"):
            JsonSchema(worse)


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":1}', '[{"x":{"a":1,"a":2}}]', "NaN", "-Infinity", "1e999", "", "{}x", "{"]
)
def test_json_that_is_refused(text: str) -> None:
    for constraint in (AnyJson(), JsonSchema({})):
        with pytest.raises(ConstraintError):
            constraint.parse(text)


def test_what_counts_as_complete() -> None:
    for text in ("{}", "[1]", '"a"', "true", "false", "null", ' {"a": 1} '):
        assert is_complete_json(text)
    for text in ("", "{", "1", "1.5", '"a', "tru", "-"):
        assert not is_complete_json(text)


def test_regex_and_choice() -> None:
    assert Regex("a+").parse("aa") == "aa"
    assert Choice(("a", "")).parse("") == ""
    with pytest.raises(ConstraintError, match="none of the options"):
        Choice(["a"]).parse("b")
    for options in ([], "ab", [1], None, 5):
        with pytest.raises(InvalidRequest, match=r"^options"):
            Choice(options)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"^pattern"):
        Regex(b"x")  # type: ignore[arg-type]


class OldModel:
    """What pydantic 1 gives its models, as far as it is used."""

    def __init__(self, name: str) -> None:
        self.name = name

    @staticmethod
    def schema() -> dict[str, Any]:
        return {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

    @staticmethod
    def schema_json() -> str: ...

    @classmethod
    def parse_obj(cls, value: Any) -> OldModel:
        if not isinstance(value.get("name"), str):
            raise ValueError("name: a string is required")
        return cls(value["name"])

    @classmethod
    def parse_raw(cls, text: str) -> OldModel:
        return cls.parse_obj(json.loads(text))

    def json(self) -> str:
        return json.dumps({"name": self.name})


def test_models_of_pydantic_1_are_read_and_written() -> None:
    schema = JsonSchema(OldModel)
    assert schema.parse('{"name": "Ann"}').name == "Ann"
    with pytest.raises(ConstraintError, match="a string is required"):
        schema.parse('{"name": 5}')
    assert to_json_value(OldModel("Ann"), "value") == {"name": "Ann"}
