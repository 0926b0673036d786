"""What is taken from a server of tools, which may lie: names, descriptions, schemas and results within limits. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema
import msgspec

from inferd.program.json_values import is_carried
from inferd.protocol import LimitExceeded, Unavailable, cut, shown
from inferd.protocol.mcp import McpTool, McpTools
from inferd_runtime.carriable import is_deeper, members
from inferd_runtime.server.egress.check_time import CheckTooLong, processor_seconds

MAX_TOOLS = 256
MAX_PAGES = 16
MAX_DESCRIPTION = 4096
"""Characters of what a server says about a tool or itself: more is cut, because a model has to read it."""
MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
MAX_SCHEMA_PARTS = 8192
"""Lists, objects and booleans in the schemas of all tools together: finding out whether one is valid takes 0.25 ms for each."""
CHECK_SECONDS = 4.0
"""Processor time of finding out whether the schemas of all tools are valid: twice what honest ones of that size take."""
MAX_REPLY_BYTES = 512 << 10
"""Of a result, or of a list of tools, resources or prompts, as JSON."""
MAX_LEFT_OUT = 32
TOOL_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}")
CUT = " [cut]"


def kept_tools(offered: Iterable[Mapping[str, Any]]) -> McpTools:
    """Return the tools that can be used, and why the others cannot.

    Raises LimitExceeded for too many or too large ones, before it finds out whether their schemas are valid, which takes long.
    """
    found = list(offered)
    if len(found) > MAX_TOOLS:
        raise LimitExceeded(f"the server has more than {MAX_TOOLS} tools", limit="mcp_tools", value=MAX_TOOLS)
    _check_schemas([tool.get(name) for tool in found for name in ("inputSchema", "outputSchema")])
    try:
        with processor_seconds(CHECK_SECONDS):
            kept = _valid_tools(found)
    except CheckTooLong as error:
        text = f"whether the schemas of the server's tools are valid takes {error} to find out"
        raise LimitExceeded(
            text, limit="mcp_check_s", value=CHECK_SECONDS, raise_with="fewer tools on a server"
        ) from None
    check_size([[tool.name, tool.description, tool.parameters, tool.result] for tool in kept.tools])
    return kept


def _valid_tools(found: list[Mapping[str, Any]]) -> McpTools:
    tools: dict[str, McpTool] = {}
    left_out: list[str] = []
    for one in found:
        reason = problem_of(one, tools)
        if reason:
            left_out.append(f"{shown(str(one.get('name')))}: {reason}")
        else:
            about = one.get("description") or ""
            tools[one["name"]] = McpTool(one["name"], cut_text(about), one["inputSchema"], one.get("outputSchema"))
    return McpTools(list(tools.values()), left_out[:MAX_LEFT_OUT])


def _check_schemas(schemas: Iterable[Any]) -> None:
    """Raise LimitExceeded if those that will be looked at are too large together."""
    looked_at = [schema for schema in schemas if isinstance(schema, dict) and not form_problem(schema)]
    check_size(looked_at)
    parts = sum(map(parts_of, looked_at))
    if parts > MAX_SCHEMA_PARTS:
        text = f"the schemas of the server's tools have {parts} lists, objects and booleans; {MAX_SCHEMA_PARTS} are allowed"
        raise LimitExceeded(
            text, limit="mcp_schema_parts", value=MAX_SCHEMA_PARTS, raise_with="fewer tools on a server"
        )


def problem_of(tool: Mapping[str, Any], known: Mapping[str, McpTool]) -> str:
    """Return why a tool cannot be used; "" if it can."""
    name = tool.get("name")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        return "that is no name of a tool"
    if name in known:
        return "there are two of that name"
    problem = schema_problem(tool.get("inputSchema"))
    if problem:
        return f"the schema of its arguments {problem}"
    if tool.get("outputSchema") is not None and (problem := schema_problem(tool["outputSchema"])):
        return f"the schema of its results {problem}"
    return ""


def schema_problem(schema: Any) -> str:
    """Return what is wrong with a JSON Schema of an object; "" if nothing is."""
    problem = form_problem(schema)
    if problem:
        return problem
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError, OverflowError) as error:  # the last for a pattern's large numbers
        return f"is no JSON Schema: {cut(str(error), 200)}"
    return ""


def form_problem(schema: Any) -> str:
    """Return what can be said at once to be wrong with a JSON Schema of an object."""
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return "is not one of an object"
    if not is_carried(schema):
        return "cannot be sent"
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        return f"has more than {MAX_SCHEMA_BYTES} bytes"
    if is_deeper(schema, MAX_SCHEMA_DEPTH):
        return f"is nested more than {MAX_SCHEMA_DEPTH} deep"
    return ""


def parts_of(value: Any) -> int:
    """Return how many lists, objects and booleans there are in a JSON value."""
    level, parts = [value], 0
    while level:
        level = [part for each in level for part in members(each) if isinstance(part, (dict, list, bool))]
        parts += len(level)
    return parts


def checked_objects(values: Iterable[Any], what: str) -> list[dict[str, Any]]:
    """Return JSON objects that can be carried on. Raises Unavailable, and LimitExceeded for too much."""
    found = list(values)
    if not all(isinstance(one, dict) for one in found) or not is_carried(found):
        raise Unavailable(f"the server of tools answered {what} that cannot be sent")
    check_size(found)
    return found


def check_size(value: Any) -> None:
    """Raise LimitExceeded for an answer that is too large, Unavailable for one that is no JSON value."""
    try:
        size = len(msgspec.json.encode(value))
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise Unavailable(f"the server of tools answered what cannot be sent: {error}") from None
    if size > MAX_REPLY_BYTES:
        text = f"the server of tools answered {size} bytes; {MAX_REPLY_BYTES} are allowed"
        raise LimitExceeded(text, limit="mcp_reply_bytes", value=MAX_REPLY_BYTES, raise_with="a smaller question")


def cut_text(text: Any) -> str:
    """Return a text that a server says about something, of bounded length."""
    whole = text if isinstance(text, str) else ""
    whole = whole.encode(errors="replace").decode()
    return whole if len(whole) <= MAX_DESCRIPTION else whole[: MAX_DESCRIPTION - len(CUT)] + CUT
