"""Reading what clients send: every refusal is an InvalidRequest with the field's path in ``detail["param"]``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from inferd.chat import OutputFormat, Tool, ToolChoice
from inferd.program.tagged_unions import with_tags
from inferd.protocol import InferdError, InvalidRequest, cut
from inferd_runtime.carriable import check_carriable, members, read_json
from inferd_runtime.json_cost import containers, refuse_many_strings, refuse_slow_text, without_strings

T = TypeVar("T")
MAX_SHOWN = 200
"""Characters of a client's own text in an error's message."""
MAX_PARAM = 200
MAX_BODY_CONTAINERS = 16_384
"""Lists and objects in a request: reading so many messages takes the gateway about 70 ms."""
MAX_BODY_STRINGS = 100_000
"""Texts and names in a request, six for each of its lists and objects: reading so many takes the gateway about 30 ms."""
MAX_ARGUMENT_VALUES = 65_536
"""Lists, objects and members in the arguments of all calls of a conversation, which are JSON in texts of the body."""
MAX_BODY_VALUES = 1 << 20
"""Lists, objects, and what is in them, in a request: reading so many token ids takes the gateway about 60 ms."""
MAX_BODY_DEPTH = 128
"""Levels of lists and objects in a body: what looks through schemas calls itself a few times for each."""
MAX_FIELDS = 256
"""More than any dialect has."""
MAX_SCHEMA_BYTES = 512 << 10
"""Of tools, and of a format: reading half a MiB of schemas takes the gateway about 40 ms."""
SCHEMA_FIELDS = frozenset(
    {
        *("tools", "response_format", "structured_outputs", "output_format", "output_config", "text"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "regex", "ebnf"),
        "functions",
    }
)
"""Fields of all dialects that hold schemas."""
CONVERSATION = frozenset({"messages", "input"})
"""Fields with conversations: only the texts in them are passed on, so integers of any size may be in them."""
MAX_WHOLE = (1 << 53) - 1
"""The highest whole number of a field without a limit of its own: what every JSON reader keeps exactly."""
WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
FIELD = re.compile(r"^Object (?:contains unknown|missing required) field `(?P<name>.*)`$", re.DOTALL)
VALUE = re.compile(r"^Invalid (?:enum )?value '(?P<value>[^']*)'$")
MAX_LOOKED_THROUGH = 64 << 10
"""Bytes of a body that is no JSON in which the field at fault is looked for."""
BODY = "the body"
FLOAT = "got `float`"
UNKNOWN = "Object contains unknown field"
NOTHING = "Expected `null`, got"
"""How msgspec's message begins for a field that has to be null, as only other servers support it."""
ANY_KEY = "[...]"
"""The key of a mapping in a path of msgspec's."""


def invalid(param: str, message: str, code: str = "invalid_value") -> InvalidRequest:
    """Return the error of a field. ``param``: its path, as in ``messages[0].content``; "" for the body as a whole. ``code``: what
    OpenAI calls the problem.
    """
    return InvalidRequest(cut(message, 2 * MAX_SHOWN), param=cut(param, MAX_PARAM), code=code)


def not_supported(param: str, what: str) -> InvalidRequest:
    """Return the error of something that is known, but not supported here."""
    return invalid(param, f"{param}: {what} not supported here")


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises InvalidRequest."""
    try:
        refuse_many_strings(body, BODY, MAX_BODY_STRINGS)
        value = read_json(body, BODY, most=MAX_BODY_CONTAINERS, carried=_carried)
    except InvalidRequest as error:
        at = _uncarriable_field(body)
        what = error.message.removeprefix(f"{BODY}: ")
        raise invalid(at, f"{at}: {what}" if at else error.message) from None
    if not isinstance(value, dict):
        raise invalid("", "the body must be a JSON object")
    if len(value) > MAX_FIELDS:
        raise invalid("", f"the body has {len(value)} fields; {MAX_FIELDS} are allowed")
    if (values := values_of([body])) > MAX_BODY_VALUES:
        raise invalid("", f"the body has {values} values; {MAX_BODY_VALUES} are allowed")
    if containers(body) > MAX_BODY_DEPTH:
        _check_depth(value)
    _check_schemas(value)
    return value


def _check_depth(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        level = [value]
        for _ in range(MAX_BODY_DEPTH):
            level = [part for each in level for part in members(each) if isinstance(part, (dict, list))]
        if level:
            raise invalid(name, f"{name}: nested in more than {MAX_BODY_DEPTH} levels")


def _check_schemas(value: Mapping[str, Any]) -> None:
    """Refuse schemas that would keep the gateway from everybody else's requests while they are read."""
    for name in SCHEMA_FIELDS & value.keys():
        size = len(msgspec.json.encode(value[name]))
        if size > MAX_SCHEMA_BYTES:
            raise invalid(name, f"{name}: {size} bytes of JSON; {MAX_SCHEMA_BYTES} are allowed")


def _uncarriable_field(body: bytes) -> str:
    """Return the first field of a JSON object that cannot be sent on; "" if the body is not JSON at all, or long.

    Python's reader takes infinities, numbers of any size and lone surrogates, so that the field can be named.
    """
    try:
        value = _carried(json.loads(body)) if len(body) <= MAX_LOOKED_THROUGH else None
    except (ValueError, RecursionError):
        return ""
    at = next((name for name in value if not _is_carriable(value[name])), "") if isinstance(value, dict) else ""
    return at if _is_carriable(at) else ""


def _carried(value: Any) -> Any:
    """Return a body without the integers in its conversation; unchanged if it is nested too deeply."""
    if not isinstance(value, dict):
        return value
    try:
        return {name: _without_integers(part) if name in CONVERSATION else part for name, part in value.items()}
    except RecursionError:
        return value


def _without_integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_integers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_integers(part) for part in value]
    return None if isinstance(value, int) else value


def _is_carriable(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
        check_carriable(value, "the field")
    except (InvalidRequest, ValueError, RecursionError):
        return False
    return True


def as_kind(value: Any, kind: type[T] | Any, at: str = "", hints: Mapping[str, str] | None = None) -> T:
    """Return a JSON value as a type that msgspec knows. Raises InvalidRequest that names the field.

    ``at``: the value's path. ``hints``: what to say about values that are known, but not among those that a field may have.
    """
    try:
        converted: T = _converted(value, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error), at, hints or {}) from None
    except RecursionError:
        raise invalid(at, f"{at}: nested too deeply") from None
    return converted


def _converted(value: Any, kind: Any) -> Any:
    """Return a JSON value as a type. Whole numbers may be written ``3.0``, as some clients do, except in a value with very many
    parts, where looking for them takes long.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        is_float, is_unknown = FLOAT in str(error), str(error).startswith(UNKNOWN)
        if not (is_float or is_unknown) or values_of([msgspec.json.encode(value)]) > MAX_ARGUMENT_VALUES:
            raise
        return msgspec.convert(_with_whole_numbers(value) if is_float else _with_types_first(value), kind)


def _with_types_first(value: Any) -> Any:
    """Return a JSON value with ``type`` as the first key of objects: an unknown type is then reported before unknown fields."""
    if isinstance(value, dict):
        return {name: _with_types_first(value[name]) for name in sorted(value, key=lambda name: name != "type")}
    return [_with_types_first(one) for one in value] if isinstance(value, list) else value


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= MAX_WHOLE
    return int(value) if is_whole else value


def _named(text: str, at: str, hints: Mapping[str, str]) -> InvalidRequest:
    """Return the error for what msgspec says, which ends with a path where it knows one."""
    found = WHERE.match(text)
    what, path = (found["what"], found["path"] or "") if found else (text, "")
    field = FIELD.match(what)
    param = f"{at}{path.replace(ANY_KEY, '')}" + (f".{field['name']}" if field else "")
    param = param.removeprefix(".")
    if field and what.startswith(UNKNOWN):
        return invalid(param, f"{param}: there is no such field", "unknown_parameter")
    if field:
        return invalid(param, f"{param}: this field is required", "missing_required_parameter")
    if what.startswith(NOTHING):
        return invalid(param, f"{param}: a value other than null is not supported", "unsupported_value")
    value = VALUE.match(what)
    what = hints.get(value["value"], what) if value else what
    code = "invalid_type" if ", got `" in what else "invalid_value"
    return invalid(param, f"{param}: {what}" if param else what, code)


def check_means_nothing(given: object, accepted: Mapping[str, Sequence[Any]], at: str = "") -> None:
    """Refuse fields that are not supported, unless they have one of the values that change nothing. Raises InvalidRequest."""
    for name, values in accepted.items():
        value = getattr(given, name)
        if not any(value == one and type(value) is type(one) for one in values):
            shown = ", ".join(json.dumps(one) for one in values)
            field = name.removesuffix("_")  # of fields whose names are Python keywords
            raise not_supported(at + field, f"a value other than {shown} is")


def schema_format(schema: Mapping[str, Any], at: str) -> OutputFormat:
    """Return the format of JSON of a schema. Raises InvalidRequest that names the field for one that is none."""
    wanted = OutputFormat("json_schema", json.dumps(with_tags(schema), ensure_ascii=False))
    try:
        wanted.constraint()
    except InferdError as error:
        raise invalid(at, f"{at}: {error.message}") from None
    return wanted


def read_tool(value: Any, kind: str, struct: type[T], means_nothing: Mapping[str, Sequence[Any]], at: str) -> T:
    """Return a tool of the client's own, which its dialect calls ``kind``. Raises InvalidRequest that names the field."""
    given = value.get("type") if isinstance(value, dict) else None
    if isinstance(given, str) and given != kind:
        raise not_supported(f"{at}.type", f"tools of type {cut(given, MAX_SHOWN)!r} are")
    tool: T = as_kind(value, struct, at)
    check_means_nothing(tool, means_nothing, f"{at}.")
    return tool


def check_object_schema(schema: Mapping[str, Any], at: str) -> None:
    """Raises InvalidRequest for a schema of arguments whose type is not object. Without a type it passes."""
    if schema.get("type", "object") != "object":
        raise invalid(at, f'{at}: its type must be "object"')


def read_arguments(text: str, at: str) -> str:
    """Return the arguments of a call that comes back in a conversation: "" means none. What is no JSON object, or none that the
    runtime carries, is let through as text: a call may have been cut, and whatever a model wrote may be sent back.

    Raises InvalidRequest, which names the field, for what takes long to read.
    """
    arguments = text.strip() or "{}"
    _check_arguments(arguments, at)
    return arguments


def check_all_arguments(arguments: Iterable[Any], *, read: bool = False) -> None:
    """Raises InvalidRequest if the arguments of all calls of a conversation together take too long to parse, as rendering does.

    Entries that are no text are skipped. ``read``: an entry that is too large alone is left to :func:`read_arguments`.
    """
    texts = [each.encode("utf-8", "surrogatepass") for each in arguments if isinstance(each, str)]
    values = values_of(texts)
    if values > MAX_ARGUMENT_VALUES and not (read and max(values_of([text]) for text in texts) > MAX_ARGUMENT_VALUES):
        raise invalid("", f"the arguments of calls have {values} values; {MAX_ARGUMENT_VALUES} are allowed")


def _check_arguments(arguments: str, at: str) -> None:
    text = arguments.encode("utf-8", "surrogatepass")
    try:
        refuse_slow_text(text, at)
    except InvalidRequest as error:
        raise invalid(at, error.message) from None
    if (values := values_of([text])) > MAX_ARGUMENT_VALUES:
        raise invalid(at, f"{at}: {values} values; {MAX_ARGUMENT_VALUES} are allowed")


def values_of(texts: Sequence[bytes]) -> int:
    """Return how many lists, objects and members JSON texts have together; with few, marks inside strings count, too."""
    values = sum(containers(text) + text.count(b",") for text in texts)
    if values <= MAX_ARGUMENT_VALUES:
        return values
    bare = [without_strings(text) for text in texts]
    return sum(containers(text) + text.count(b",") for text in bare)


def thinking_budget(asked: int | None) -> int | None:
    """Return how many tokens may be thought; None, as for vLLM's -1: any number."""
    return None if asked is None or asked < 0 else asked


def check_tools(tools: Sequence[Tool], choice: ToolChoice) -> None:
    """Raises InvalidRequest for two tools of one name, and for a choice that the tools do not leave."""
    names: set[str] = set()
    for number, tool in enumerate(tools):
        if tool.name in names:
            raise invalid(f"tools[{number}].name", f"tools[{number}].name: there are two tools of this name")
        names.add(tool.name)
    if choice.mode == "required" and not names:
        raise invalid("tool_choice", "tool_choice: there are no tools to call")
    for name in choice.names:
        if name not in names:
            raise invalid("tool_choice", f"tool_choice: there is no tool {cut(name, MAX_SHOWN)!r}")
