"""What a model may write where it may, must, or must not call tools: the constraints, by a tokenizer of bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from inferd import ConstraintError, Grammar, InvalidRequest, JsonSchema, LimitExceeded
from inferd.chat import ChatMessage, ChatRequest, OutputFormat, Tool, ToolCall, ToolChoice, open_context, rendered
from inferd.chat.tool_calls import call_or_json, checked_parameters, told_in_text, tool_constraint
from inferd.protocol import ConstraintSpec
from inferd.protocol.chat import MAX_TOOLS
from inferd_runtime.testing.served import null_model
from inferd_runtime.testing.transport import run_program

WEATHER = Tool(
    "weather", parameters={"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
)
LINKED = Tool(
    "link",
    parameters={
        "properties": {"next": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
        },
    },
)
AUTO, MUST, MUST_ONE = ToolChoice(), ToolChoice("required"), ToolChoice("required", parallel=False)
ROME = '{"name":"weather","arguments":{"city":"Rome"}}'
OSLO = '{"name":"weather","arguments":{"city":"Oslo"}}'
EXTRA = '{"name":"weather","arguments":{"city":"Rome","x":1}}'
OTHER = '{"name":"other","arguments":{}}'


def hermes(*calls: str) -> str:
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


def accepts(tool_format: str, choice: ToolChoice, text: str, tools: tuple[Tool, ...] = (WEATHER, LINKED)) -> bool:
    """Whether a whole text is one that the constraint allows."""

    async def main() -> bool:
        constraint = tool_constraint(tool_format, tools, choice)
        assert constraint is not None
        async with await Grammar.compile(constraint) as grammar, grammar.matcher() as matcher:
            try:
                return await matcher.accept(list(text.encode())) == len(text.encode()) and matcher.may_end
            except ConstraintError:
                return False  # nothing continues the text

    result: bool = run_program(main)
    return result


ADDRESS = {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://a.example/s"}


@pytest.mark.parametrize(
    ("about", "reference", "named"),
    [
        ({"$id": "https://a.example/s"}, "#/$defs/a~1b%25", {}),
        (ADDRESS, "https://a.example/s#/$defs/a~1b%25", {}),
        ({}, "#at", {"$anchor": "at"}),
        (ADDRESS, "#at", {"$id": "#at"}),
        (ADDRESS, "https://a.example/s#at", {"$anchor": "at"}),
        ({}, "/$defs/a~1b%25", {}),
    ],
)
@pytest.mark.parametrize("choice", [AUTO, MUST])
def test_references_of_a_tool_hold_however_they_are_written(
    about: dict[str, Any], reference: str, named: dict[str, Any], choice: ToolChoice
) -> None:
    """Tools with an address or anchors were refused; anchors of two tools may have one name."""
    tools = tuple(
        Tool(name, parameters={**about, "type": "object", "properties": {"x": {"$ref": reference}}, "required": ["x"],
                               "$defs": {"a/b%": {**named, "type": kind}}})
        for name, kind in (("f", "integer"), ("g", "boolean"))
    )  # fmt: skip
    for text, allowed in (
        ('"f","arguments":{"x":1}', True),
        ('"g","arguments":{"x":true}', True),
        ('"g","arguments":{"x":1}', False),
    ):
        assert accepts("hermes", choice, hermes(f'{{"name":{text}}}'), tools) == allowed, text


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("Only text, with {braces} and <tags>.", True),
        (f"Let me see. {hermes(ROME)}", True),
        (f"{hermes(ROME, ROME)} done", True),
        (hermes('{"name":"link","arguments":{"next":{"next":{}}}}'), True),
        (hermes(OSLO), False),
        (hermes(EXTRA), False),
        (hermes(OTHER), False),
        ("<tool_call> what", False),
        (f"<tool_call>\n{ROME}", False),
    ],
)
def test_from_its_opening_on_a_call_keeps_to_its_tool(text: str, allowed: bool) -> None:
    assert accepts("hermes", AUTO, text) is allowed


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        (hermes(ROME), True),
        (hermes(ROME, ROME), True),
        ("text", False),
        ("", False),
        (f"a {hermes(ROME)}", False),
        (hermes(OSLO), False),
    ],
)
def test_where_a_call_must_come_nothing_else_does(text: str, allowed: bool) -> None:
    assert accepts("hermes", MUST, text) is allowed


def test_one_call_is_one_call() -> None:
    assert accepts("hermes", MUST_ONE, f"<tool_call>\n{ROME}")
    assert not accepts("hermes", MUST_ONE, hermes(ROME, ROME))


@pytest.mark.parametrize("tool_format", ["llama3", "json"])
def test_calls_without_marks(tool_format: str) -> None:
    call = ROME if tool_format == "json" else ROME.replace("arguments", "parameters")
    assert accepts(tool_format, MUST, call)
    assert not accepts(tool_format, MUST, call.replace("Rome", "Oslo"))
    assert accepts(tool_format, AUTO, call)
    key = "parameters" if tool_format == "llama3" else "arguments"
    assert accepts(tool_format, AUTO, f'{{"name": "weather", "{key}": {{"city":"Rome"}}}}')
    assert accepts(tool_format, AUTO, "It is sunny.")
    assert not accepts(tool_format, AUTO, call.replace("Rome", "Oslo"))


CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TRIP = Tool("trip", parameters=CITY)


def named(*calls: str) -> str:
    return "".join(f"[TOOL_CALLS]{call}" for call in calls)


def xml(name: str, **arguments: str) -> str:
    written = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("choice", "text", "allowed"),
    [
        (AUTO, "No call.", True),
        (AUTO, "Wait." + named('weather[ARGS]{"city":"Rome"}', "link[ARGS]{}"), True),
        (AUTO, named('weather[ARGS]{"city":"Oslo"}'), False),
        (AUTO, named("other[ARGS]{}"), False),
        (MUST, named('weather[ARGS]{"city":"Rome"}', "link[ARGS]{}"), True),
        (MUST, "Wait." + named("link[ARGS]{}"), False),
        (MUST_ONE, named("link[ARGS]{}"), True),
        (MUST_ONE, named("link[ARGS]{}", "link[ARGS]{}"), False),
    ],
)
def test_calls_by_name(choice: ToolChoice, text: str, allowed: bool) -> None:
    assert accepts("mistral_args", choice, text) is allowed


@pytest.mark.parametrize(
    ("choice", "text", "allowed"),
    [
        (AUTO, "No call.", True),
        (AUTO, "Wait.\n" + xml("trip", city="New\nYork", days="3"), True),
        (AUTO, xml("trip", city="Rome"), True),
        (AUTO, xml("trip", days="3"), False),
        (AUTO, xml("trip", city="Rome", days="many"), False),
        (AUTO, xml("trip", city="Rome", other="x"), False),
        (AUTO, xml("other"), False),
        (MUST, "\n".join([xml("weather", city="Rome"), xml("trip", city="Oslo")]), True),
        (MUST, xml("weather", city="Oslo"), False),
        (MUST, "Wait.\n" + xml("trip", city="Rome"), False),
        (MUST_ONE, xml("trip", city="Rome").removesuffix("\n</tool_call>"), True),
    ],
)
def test_calls_whose_parameters_stand_alone(choice: ToolChoice, text: str, allowed: bool) -> None:
    assert accepts("qwen3_coder", choice, text, (WEATHER, TRIP)) is allowed


MIXED = Tool(
    "t",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "boolean"}},
        "required": ["b"],
    },
)


@pytest.mark.parametrize(
    ("choice", "calls", "allowed"),
    [
        (MUST, "[t(b=1)]", True),
        (MUST, '[t(a="x, b=2)", b=1, c=true)]', True),
        (MUST, "[t(b=1, c=true), t(b=2)]", True),
        (MUST, '[t(a="x")]', False),
        (MUST, "[t()]", False),
        (MUST, "[t(b=1.5)]", False),
        (MUST, "[t(c=true, b=1)]", False),
        (MUST, "[other(b=1)]", False),
        (MUST, "[]", False),
        (AUTO, "[t(b=1)]", True),
        (AUTO, "[t(b=many)]", False),
    ],
)
def test_calls_as_python_writes_them(choice: ToolChoice, calls: str, allowed: bool) -> None:
    before, behind = ("Well. ", " Bye.") if choice == AUTO else ("", "")
    text = f"{before}<|tool_call_start|>{calls}<|tool_call_end|>{behind}"
    assert accepts("lfm2", choice, text, (MIXED,)) is allowed


def test_a_tool_with_many_parameters_is_held() -> None:
    """Calls of ten parameters were more than a constraint may have: its key doubled with each level of its parts."""
    properties = {f"p{at}": {"type": "integer"} for at in range(60)}
    optional = Tool("t", parameters={"type": "object", "properties": properties})
    for calls in ("[t()]", "[t(p7=1)]", "[t(p1=1, p59=2)]", "[t(p59=1, p0=2)]"):
        assert accepts("lfm2", MUST, f"<|tool_call_start|>{calls}<|tool_call_end|>", (optional,))
    assert not accepts("lfm2", MUST, "<|tool_call_start|>[t(p7=x)]<|tool_call_end|>", (optional,))
    needed = Tool("t", parameters={"type": "object", "properties": properties, "required": ["p30", "p40"]})
    assert accepts("lfm2", MUST, "<|tool_call_start|>[t(p1=1, p30=2, p40=3)]<|tool_call_end|>", (needed,))
    assert not accepts("lfm2", MUST, "<|tool_call_start|>[t(p1=1, p30=2)]<|tool_call_end|>", (needed,))


@pytest.mark.parametrize(("tool_format", "number"), [("llama3", 128), ("mistral", 128), ("hermes", MAX_TOOLS)])
def test_very_many_tools_are_held(tool_format: str, number: int) -> None:
    """Models that write calls without marks took 64: each of these has two openings."""
    tools = tuple(replace(WEATHER, name=f"{at:03}weather" * 6) for at in range(number))
    assert accepts(tool_format, AUTO, "It is warm.", tools)


def test_calls_of_a_tool_say_which_of_its_alternatives_they_mean() -> None:
    """Ten models of pydantic with a tag that has a default were 170 KB of alternatives, and refused as too large."""
    kinds = [
        {"kind": {"const": "a", "default": "a"}},
        {"kind": {"const": "b", "default": "b"}, "size": {"type": "integer"}},
    ]
    union = {
        "oneOf": [{"type": "object", "properties": one} for one in kinds],
        "discriminator": {"propertyName": "kind"},
    }
    tool = Tool("t", parameters={"type": "object", "properties": {"x": union}, "required": ["x"]})
    for value, allowed in (
        ('{"kind":"a"}', True),
        ('{"kind":"b","size":1}', True),
        ("{}", False),
        ('{"size":1}', False),
    ):
        assert accepts("hermes", MUST, hermes(f'{{"name":"t","arguments":{{"x":{value}}}}}'), (tool,)) is allowed


def test_a_parameter_that_no_keyword_of_python_can_be_is_refused_where_a_call_is_required() -> None:
    tool = Tool("t", parameters={"type": "object", "properties": {"user-id": {"type": "string"}}})
    with pytest.raises(InvalidRequest, match="properties/user-id"):
        tool_constraint("lfm2", (tool,), MUST)
    assert accepts("lfm2", AUTO, "<|tool_call_start|>[t()]<|tool_call_end|>", (tool,))
    assert accepts("lfm2", MUST, "<|tool_call_start|>[t()]<|tool_call_end|>", (Tool("t"),))
    assert accepts("lfm2", MUST_ONE, "<|tool_call_start|>[t(b=1)", (MIXED,))


def glm(name: str, **arguments: str) -> str:
    written = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in arguments.items())
    return f"<tool_call>{name}\n{written}</tool_call>"


@pytest.mark.parametrize(
    ("choice", "text", "allowed"),
    [
        (AUTO, "Wait.\n" + glm("trip", city="New\nYork", days="3"), True),
        (AUTO, glm("trip", city="Rome", days="many"), False),
        (AUTO, glm("other"), False),
        (MUST, glm("weather", city="Rome") + glm("trip", city="Oslo"), True),
        (MUST, glm("weather", city="Oslo"), False),
        (MUST_ONE, glm("trip", city="Rome"), True),
    ],
)
def test_calls_of_glm(choice: ToolChoice, text: str, allowed: bool) -> None:
    assert accepts("glm", choice, text, (WEATHER, TRIP)) is allowed


@pytest.mark.parametrize(
    ("parameters", "keyword"),
    [
        ({"properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "integer"}}}, r"\$ref"),
        ({"anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "integer"}}}, "anyOf"),
    ],
)
def test_what_a_format_cannot_hold_is_refused_where_a_call_must_come_and_free_elsewhere(
    parameters: dict[str, object], keyword: str
) -> None:
    tool = Tool("free", parameters={"type": "object", **parameters})
    with pytest.raises(InvalidRequest, match=f"'free': '{keyword}'"):
        tool_constraint("qwen3_coder", (tool,), MUST)
    assert accepts("qwen3_coder", AUTO, xml("free", a="anything"), (tool,)) is ("properties" in parameters)


@pytest.mark.parametrize("tool_format", ["qwen3_coder", "glm"])
@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        ({"pattern": "^[A-Z]+-[0-9]+$"}, ["PROJ-12"], ["PROJ", "xPROJ-1", "PROJ-1x"]),
        ({"pattern": "[0-9]{2}"}, ["12", "a12b"], ["a1b2"]),
        ({"pattern": "a:[-a-z0-9]*:[0-9]{12}:b/[a-z0-9_-]{3,63}"}, [f"x a:-:{'1' * 12}:b/a-_!"], ["a::1:b/abc"]),
        ({"pattern": r"^1\$"}, ["1$", "1$2"], ["1", "21$"]),
        ({"minLength": 2, "maxLength": 3}, ["ab", "é€𝄞", "ab\n", "ab<"], ["", "a", "abcd"]),
        ({"minLength": 2}, ["ab\n</b", f"ab{'<' * 40}"], ["a"]),
        ({"maxLength": 128}, ["", "<", "abc<", "<" * 128], ["x" * 129]),
        ({"format": "email", "maxLength": 2048}, ["ada@b.example"], ["ada", "a@b.example "]),
        ({"format": "date"}, ["2024-02-29"], ["2023-02-29", "2024-2-9"]),
        ({"format": "uuid", "description": "An id."}, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567"]),
        ({"format": "made up", "maxLength": 1}, ["x"], ["xy"]),
    ],
)
def test_texts_without_quotes_are_held_to_their_keywords(
    tool_format: str, asked: dict[str, object], right: list[str], wrong: list[str]
) -> None:
    """The tools of eight of 38 MCP servers were refused for a length, pattern or format: one that fetches pages, among others."""
    tool = Tool("t", parameters={"type": "object", "properties": {"a": {"type": "string", **asked}}, "required": ["a"]})
    call = glm if tool_format == "glm" else xml
    for text in right:
        assert accepts(tool_format, MUST, call("t", a=text), (tool,)), text
        assert accepts(tool_format, AUTO, call("t", a=text), (tool,)), text
    for text in wrong:
        assert not accepts(tool_format, MUST, call("t", a=text), (tool,)), text


DEEPSEEK_MARKS = {
    "deepseek_v3": ("function<｜tool▁sep｜>", "\n```json\n", "\n```"),
    "deepseek_v31": ("", "<｜tool▁sep｜>", ""),
}


@pytest.mark.parametrize("tool_format", DEEPSEEK_MARKS)
@pytest.mark.parametrize(
    ("choice", "before", "cities", "allowed"),
    [
        (AUTO, "Wait.", ["Rome", "Rome"], True),
        (AUTO, "", ["Rome", "Oslo"], False),
        (MUST, "", ["Rome", "Rome"], True),
        (MUST, "Wait.", ["Rome"], False),
    ],
)
def test_calls_that_stand_between_two_marks(
    tool_format: str, choice: ToolChoice, before: str, cities: list[str], allowed: bool
) -> None:
    kind, head, tail = DEEPSEEK_MARKS[tool_format]
    calls = [f'<｜tool▁call▁begin｜>{kind}weather{head}{{"city":"{city}"}}{tail}<｜tool▁call▁end｜>' for city in cities]
    section = (
        f"<｜tool▁calls▁begin｜>{('' if tool_format == 'deepseek_v31' else chr(10)).join(calls)}<｜tool▁calls▁end｜>"
    )
    assert accepts(tool_format, choice, before + section) is allowed
    assert accepts(tool_format, MUST_ONE, f"<｜tool▁calls▁begin｜>{calls[0]}")
    assert not accepts(tool_format, MUST_ONE, section)


@pytest.mark.parametrize(
    ("tool_format", "begin"), [("granite", "<|tool_call|>"), ("nemotron", "<TOOLCALL>"), ("jamba", "<tool_calls>")]
)
def test_lists_behind_other_marks(tool_format: str, begin: str) -> None:
    assert accepts(tool_format, AUTO, f"Wait. {begin}[{ROME}]")
    assert not accepts(tool_format, AUTO, f"{begin}[{OSLO}]")
    assert accepts(tool_format, MUST, f"[{ROME},{ROME}]")


def test_one_of_several_texts_may_begin_like_another_and_name_a_token() -> None:
    unit = {"type": "object", "properties": {"a": {"enum": ["C", "CC", "<turn>"]}}, "required": ["a"]}
    for value in ("C", "CC", "<turn>"):
        assert accepts("qwen3_coder", MUST, xml("u", a=value), (Tool("u", parameters=unit),))


SETS = tuple(
    Tool(
        name,
        parameters={"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, **more}}},
    )
    for name, more in (("bag", {}), ("set", {"uniqueItems": True}))
)


@pytest.mark.parametrize("choice", [AUTO, MUST])
@pytest.mark.parametrize("tool_format", ["hermes", "llama3", "mistral", "mistral_args", "qwen3_coder"])
def test_a_set_among_the_parameters_of_a_tool_is_held(tool_format: str, choice: ToolChoice) -> None:
    """`set[str]` of a pydantic model is an array with `uniqueItems`: a tool that had one was refused."""
    key = "parameters" if tool_format == "llama3" else "arguments"
    call = f'{{"name":"%s","{key}":{{"tags":%s}}}}'
    mark = "[TOOL_CALLS]" if choice is AUTO else ""
    form = {
        "hermes": f"<tool_call>\n{call}\n</tool_call>",
        "llama3": call,
        "mistral": f"{mark}[{call}]",
        "mistral_args": '[TOOL_CALLS]%s[ARGS]{"tags":%s}',
        "qwen3_coder": xml("%s", tags="%s"),
    }[tool_format]
    for name, tags, allowed in (("bag", '["a","a"]', True), ("set", '["a","b"]', True), ("set", '["a","a"]', False)):
        assert accepts(tool_format, choice, form % (name, tags), SETS) is allowed, (name, tags)


def test_references_into_shared_definitions_hold_in_a_parameter() -> None:
    assert accepts("qwen3_coder", MUST, xml("link", next='{"next":{}}'), (LINKED,))
    assert not accepts("qwen3_coder", MUST, xml("link", next='{"x":{}}'), (LINKED,))


@pytest.mark.parametrize(("city", "allowed"), [("Rome", True), ("Oslo", False)])
def test_a_list_of_calls_behind_its_mark_is_held_wherever_it_comes(city: str, allowed: bool) -> None:
    call = ROME.replace("Rome", city)
    for text in (f"[TOOL_CALLS] [{call}]", f"Wait. [TOOL_CALLS][{call},{call}]"):
        assert accepts("mistral", AUTO, text) is allowed


def test_a_list_of_calls() -> None:
    assert accepts("mistral", MUST, f"[{ROME},{ROME}]")
    assert not accepts("mistral", MUST_ONE, f"[{ROME},{ROME}]")
    assert not accepts("mistral", MUST, "[]")


def test_tools_that_may_not_be_called_need_no_constraint() -> None:
    assert tool_constraint("hermes", (), AUTO) is None


def test_parameters_that_are_no_object_are_refused_by_the_tools_name() -> None:
    with pytest.raises(InvalidRequest, match="'w'"):
        tool_constraint("hermes", (Tool("w", parameters={"type": "array"}),), AUTO)


def test_a_template_without_tools_is_told_of_them_in_text() -> None:
    call = ToolCall("c", "weather", '{"city": "Rome"}')
    messages = [
        ChatMessage("user", "?"),
        ChatMessage("assistant", tool_calls=[call]),
        ChatMessage("tool", "sun", tool_call_id="c"),
    ]
    told = told_in_text(messages, [{"type": "function", "function": {"name": "weather"}}])
    assert [message.role for message in told] == ["system", "user", "assistant", "user"]
    assert '"name": "weather"' in told[0].content
    assert json.loads(told[2].content.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")) == json.loads(ROME)
    assert "sun" in told[3].content


@pytest.mark.parametrize(
    "parts", [5, "x", None, [], {"a": 5}, {"a": None}, {"a": ["b"]}, {"a": {"items": 5, "anyOf": [5]}}]
)
def test_a_schema_that_is_none_is_left_to_the_compiler(parts: object) -> None:
    schema = checked_parameters(Tool("any", parameters={"properties": parts, "$defs": parts, "items": parts}))
    assert schema["$defs"] == parts or isinstance(parts, dict)


@pytest.mark.parametrize("tool_format", ["qwen3_coder", "glm", "lfm2"])
@pytest.mark.parametrize("parameters", [{"properties": 5}, {"properties": ["a"]}, {"required": 5}, {"required": "a"}])
def test_parameters_that_are_no_schema_are_refused_where_they_stand_one_by_one(
    tool_format: str, parameters: dict[str, Any]
) -> None:
    """They ended in an error of the gateway's own, with a traceback in its log."""
    one = {"properties": {"a": {"type": "string"}}, **parameters}
    with pytest.raises(InvalidRequest, match=r"'any'.*of type"):
        tool_constraint(tool_format, [Tool("any", parameters=one)], ToolChoice())


@pytest.mark.parametrize("tool_format", ["qwen3_coder", "glm", "lfm2"])
def test_definitions_that_parameters_share_are_copied_up_to_a_size(tool_format: str) -> None:
    """Each parameter had a copy of all of them: a tool of 289 KB took 1.7 s of the gateway's loop, and 453 MB."""
    shared = {"n": {"type": "integer"}, "others": {"enum": ["x" * 100] * 1000}}

    def constraint(count: int, schema: dict[str, Any]) -> int:
        parameters = {"properties": {f"p{n}": schema for n in range(count)}, "$defs": shared}
        tools = [Tool(name, parameters=parameters) for name in ("one", "other")]
        made = tool_constraint(tool_format, tools, ToolChoice())
        assert made is not None
        return _written(made.constraint)

    assert constraint(500, {"type": "integer"}) < 500_000
    assert constraint(9, {"$ref": "#/$defs/n"}) > 1_800_000
    with pytest.raises(LimitExceeded, match=r"'other'.*definitions"):
        constraint(10, {"items": {"$ref": "#/$defs/n"}})


def _written(spec: ConstraintSpec) -> int:
    parts = [*spec.members, *(tag.content for tag in spec.tags)]
    return len(spec.value) + sum(map(_written, parts))


def test_an_answer_may_be_a_call_or_json_of_a_format() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"$ref": "#/$defs/n"}},
        "required": ["n"],
        "$defs": {"n": {"type": "integer"}},
    }

    async def main() -> list[bool]:
        async with await Grammar.compile(call_or_json((WEATHER,), JsonSchema(schema))) as grammar:
            found = []
            for text in (ROME, '{"n":3}', OSLO, '{"n":"3"}', "text"):
                async with grammar.matcher() as matcher:
                    found.append(await matcher.accept(list(text.encode())) == len(text) and matcher.may_end)
            return found

    assert run_program(main) == [True, True, False, False, False]


@pytest.mark.parametrize(
    "form", [OutputFormat("json_object"), OutputFormat("regex", "[a-z]+")], ids=lambda form: form.kind
)
def test_an_answer_that_has_to_be_a_call_has_no_text_for_a_format(form: OutputFormat) -> None:
    """Libraries ask for both: what the model has to call, and what its last answer will be."""
    asked = ChatRequest(messages=[ChatMessage("user", "x")], tools=[WEATHER], tool_choice=MUST, output=form)

    async def main() -> tuple[object, object]:
        held = (await rendered(asked)).constraint
        plain = (await rendered(replace(asked, output=None))).constraint
        assert held is not None
        assert plain is not None
        return held.constraint, plain.constraint

    held, plain = run_program(main)
    assert held == plain


def test_a_format_that_is_not_known_is_refused_where_tools_may_be_called() -> None:
    asked = ChatRequest(messages=[ChatMessage("user", "x")], tools=[WEATHER])
    model = replace(null_model(), tool_format="unknown")

    async def main() -> None:
        with pytest.raises(InvalidRequest, match="--tool-format") as refused:
            await rendered(asked)
        assert refused.value.detail["param"] == "tools"
        await rendered(replace(asked, tool_choice=ToolChoice("none")))

    run_program(main, model)


@pytest.mark.parametrize(("most", "kept"), [(1, 1), (5, 5), (10**6, None), (-1, None)])
def test_the_last_tokens_of_a_prompt_are_kept(most: int, kept: int | None) -> None:
    asked = ChatRequest(messages=[ChatMessage("user", "x" * 50)], max_tokens=4)

    async def main() -> tuple[list[int], list[int]]:
        return (await rendered(asked)).tokens, (await rendered(replace(asked, truncate=most))).tokens

    whole, cut = run_program(main)
    assert cut == (whole if kept is None else whole[-kept:])


def test_a_prompt_may_be_cut_to_what_the_context_has_room_for() -> None:
    asked = ChatRequest(prompt="x" * 5000, max_tokens=4, truncate=-1)
    model = null_model()
    room = 100
    small = replace(model, info=replace(model.info, max_context=room))

    async def main() -> int:
        ctx, _ = await open_context(asked)
        async with ctx:
            return len(await ctx.tokens())

    assert run_program(main, small) == room - asked.most_tokens
