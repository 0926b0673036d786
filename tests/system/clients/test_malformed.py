"""Three hundred requests that are wrong, made from the tables of fields: each is refused in its dialect's shape, by its field."""

from __future__ import annotations

import json
import re
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from inferd_runtime.server.dialects.anthropic.fields import COUNT_TOKENS_FIELDS, MESSAGES_FIELDS
from inferd_runtime.server.dialects.field_table import FieldTable
from inferd_runtime.server.dialects.openai.chat_fields import CHAT_FIELDS
from inferd_runtime.server.dialects.openai.completion_fields import COMPLETION_FIELDS
from inferd_runtime.server.dialects.openai.embeddings import EMBEDDING_FIELDS
from inferd_runtime.server.dialects.openai.tokens import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from inferd_runtime.server.dialects.responses.fields import INPUT_TOKENS_FIELDS, RESPONSES_FIELDS
from inferd_runtime.server.openapi.document import document

from .conftest import LiveServer

HELD = ("inferd_engine_sessions", "inferd_engine_jobs", "inferd_runs_running", "inferd_runs_waiting")
"""Figures of what requests hold."""
ASK = [{"role": "user", "content": "Write a line about the sea."}]
DOCUMENT = document()


@dataclass(frozen=True)
class WrongRequest:
    """A request, and the beginning of what its error names; None: it is about no field."""

    method: str
    path: str
    body: bytes
    param: str | None = None
    content_type: str = "application/json"


@dataclass(frozen=True)
class RouteOfFields:
    """A route, a body that it takes, and its fields."""

    path: str
    good: dict[str, Any]
    table: FieldTable
    kind: str

    def refuses(self, name: str, value: Any) -> bool:
        """True if the document does not allow this value."""
        schemas = DOCUMENT["components"]
        schema = {**schemas["schemas"][self.kind]["properties"][name], "components": schemas}
        return not jsonschema.Draft202012Validator(schema).is_valid(value)


ROUTES = (
    RouteOfFields(
        "/v1/chat/completions", {"model": "tiny", "messages": ASK, "max_tokens": 2}, CHAT_FIELDS, "ChatFields"
    ),
    RouteOfFields(
        "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2}, COMPLETION_FIELDS, "CompletionFields"
    ),
    RouteOfFields("/v1/messages", {"model": "tiny", "messages": ASK, "max_tokens": 2}, MESSAGES_FIELDS, "MessagesBody"),
    RouteOfFields(
        "/v1/messages/count_tokens", {"model": "tiny", "messages": ASK}, COUNT_TOKENS_FIELDS, "CountTokensBody"
    ),
    RouteOfFields(
        "/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": 2}, RESPONSES_FIELDS, "ResponsesBody"
    ),
    RouteOfFields("/v1/embeddings", {"model": "tiny", "input": "a"}, EMBEDDING_FIELDS, "EmbeddingFields"),
    RouteOfFields("/tokenize", {"model": "tiny", "prompt": "a"}, TOKENIZE_FIELDS, "TokenizeFields"),
    RouteOfFields("/detokenize", {"model": "tiny", "tokens": [1]}, DETOKENIZE_FIELDS, "DetokenizeFields"),
    RouteOfFields(
        "/v1/responses/input_tokens", {"model": "tiny", "input": "a"}, INPUT_TOKENS_FIELDS, "InputTokensBody"
    ),
)
NUMBERS = st.sampled_from([-1, 0, 0.5, 3, 129, -(2**53), 2**53, 2**63 - 1, 1e300, -1e-300, True, False])
TEXTS = st.sampled_from(["", "auto", "none", "x", "{}", "[", "\0", "\u202e", "é" * 300, "a" * 2000, "<|im_start|>"])
ODD: Any = st.recursive(
    NUMBERS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "role", "content", "text", "name", ""]), inner)
    ),
    max_leaves=6,
)
UNCARRIABLE = (
    "1" + "0" * 400,
    "1e400",
    "-1e999",
    '"\\ud800"',
    '{"a": "\\udfff"}',
    "[100000000000000000000]",
    '{"\\udc00": 1}',
)
PYTHONS_WORDS = re.compile(r"\b(None|True|False)\b")
DEEP = "[" * 5000 + "]" * 5000
KINDS = ("text/plain", "multipart/form-data; boundary=x", "application/xml", "x", "*/*")
NAMES = st.text(string.ascii_letters + string.digits + "_-.[]é $", min_size=1, max_size=40)
NO_JSON = (
    b"", b"{", b"}", b"no", b"\xff\xfe", b"\xef\xbb\xbf{}", b"[]", b"null", b'"a"', b"1", b"[{}]", b"\x00", b"{}{}",
    b"{'a': 1}", DEEP.encode(), b"NaN", b'{"model": NaN}', b'{"model": "\xff"}', b'{"model": "tiny",}', b"=" * 9000,
)  # fmt: skip


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def with_raw(good: dict[str, Any], name: str, raw: str) -> bytes:
    """The good body with a field as it stands in ``raw``."""
    rest = {key: value for key, value in good.items() if key != name}
    return f"{{{json.dumps(name)}: {raw}, {json.dumps(rest)[1:]}".encode()


def wrong_value(draw: Any, route: RouteOfFields) -> WrongRequest:
    name = draw(st.sampled_from(sorted(route.table.by_name)))
    value = draw(ODD.filter(lambda value: route.refuses(name, value)))
    return WrongRequest("POST", route.path, encoded({**route.good, name: value}), name)


def unknown_field(draw: Any, route: RouteOfFields) -> WrongRequest:
    name = draw(NAMES.filter(lambda name: name not in route.table.by_name))
    return WrongRequest("POST", route.path, encoded({**route.good, name: draw(ODD)}), name)


def missing_field(draw: Any, route: RouteOfFields) -> WrongRequest:
    required = DOCUMENT["components"]["schemas"][route.kind].get("required") or ["input"]
    name = draw(st.sampled_from(sorted(required)))
    return WrongRequest("POST", route.path, encoded({key: route.good[key] for key in route.good if key != name}), name)


def no_json(draw: Any, route: RouteOfFields) -> WrongRequest:
    good = encoded(route.good)
    cut = st.integers(1, len(good) - 1).map(lambda at: good[:at])
    return WrongRequest("POST", route.path, draw(st.sampled_from(NO_JSON) | cut | st.just(good + b"x")))


def uncarriable(draw: Any, route: RouteOfFields) -> WrongRequest:
    name = draw(st.sampled_from(sorted(route.table.by_name)))
    return WrongRequest("POST", route.path, with_raw(route.good, name, draw(st.sampled_from(UNCARRIABLE))), name)


def deep_value(draw: Any, route: RouteOfFields) -> WrongRequest:
    name = draw(st.sampled_from(sorted(route.table.by_name)))
    deep = draw(st.sampled_from([DEEP, '{"a":' * 900 + "1" + "}" * 900, "[" * 600 + "]" * 600]))
    return WrongRequest("POST", route.path, with_raw(route.good, name, deep))


def no_json_by_its_type(draw: Any, route: RouteOfFields) -> WrongRequest:
    return WrongRequest("POST", route.path, encoded(route.good), None, draw(st.sampled_from(KINDS)))


def wrong_method(draw: Any, route: RouteOfFields) -> WrongRequest:
    return WrongRequest(
        draw(st.sampled_from(["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])), route.path, encoded(route.good)
    )


WAYS: tuple[Callable[[Any, RouteOfFields], WrongRequest], ...] = (
    wrong_value, wrong_value, wrong_value, unknown_field, missing_field, no_json, uncarriable, deep_value, no_json_by_its_type,
    wrong_method,
)  # fmt: skip


@st.composite
def wrong_requests(draw: Any) -> WrongRequest:
    return draw(st.sampled_from(WAYS))(draw, draw(st.sampled_from(ROUTES)))  # type: ignore[no-any-return]


def problem_of(request: WrongRequest, response: httpx.Response) -> dict[str, Any]:
    """The error's own object, after its shape was checked."""
    value: dict[str, Any] = response.json()
    if request.path.startswith("/v1/messages"):
        assert set(value) == {"type", "error", "request_id"}
        assert value["request_id"] == response.headers["request-id"]
        assert set(value["error"]) <= {"type", "message", "param"}
    else:
        assert set(value) == {"error"}
        assert set(value["error"]) == {"message", "type", "param", "code"}
    problem: dict[str, Any] = value["error"]
    assert problem["type"] == "invalid_request_error"
    assert 0 < len(problem["message"]) < 1000
    assert not PYTHONS_WORDS.search(problem["message"]), "a client that sent JSON reads JSON"
    return problem


def used(http: httpx.Client) -> list[float]:
    """What the tenant has in use."""
    tenants = http.get("/v1/tenants").raise_for_status().json()["tenants"]
    own = next(tenant for tenant in tenants if tenant["tenant"] == "default")
    return [own["use"][name] for name in ("runs", "waiting", "sockets")]


def state(server: LiveServer, http: httpx.Client) -> tuple[Any, ...]:
    """What must be the same afterwards: a text by its seed, what is in use, and which engine answers."""
    asked = {"model": "tiny", "messages": ASK, "max_tokens": 8, "seed": 11}
    text = http.post("/v1/chat/completions", json=asked).raise_for_status().json()["choices"][0]["message"]["content"]
    deadline = time.monotonic() + 20
    while any(in_use := used(http)) and time.monotonic() < deadline:
        time.sleep(0.02)  # an answer is complete before what it held has come back
    engine = [line for line in http.get("/metrics").text.splitlines() if line.startswith(HELD)]
    return text, in_use, engine, server.gateway.runtime.engine.pid, server.gateway.runtime.engine.restarts


def test_what_is_wrong_is_refused_by_its_field_and_harms_nobody(server: LiveServer, http: httpx.Client) -> None:
    before = state(server, http)

    @settings(
        max_examples=300, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(wrong_requests())
    def check(request: WrongRequest) -> None:
        headers = {"Content-Type": request.content_type}
        response = http.request(request.method, request.path, content=request.body, headers=headers)
        told = f"{request}: {response.status_code} {response.text[:300]}"
        assert 400 <= response.status_code < 500, told
        problem = problem_of(request, response)
        assert "bug" not in problem["message"], told
        if request.param is not None:
            assert (problem.get("param") or "").startswith(request.param), told

    check()
    assert state(server, http) == before


NO_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": 5}}
BAD_PATTERN: dict[str, Any] = {"type": "object", "properties": {"a": {"pattern": "("}}, "required": ["a"]}
NO_FUNCTION = {"name": "f", "parameters": NO_SCHEMA}
BAD_FORMAT = {"type": "json_schema", "name": "f", "schema": BAD_PATTERN}
CHAT = ROUTES[0].good
BELOW: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/v1/chat/completions", {**CHAT, "n": 2, "stop_token_ids": [99999]}, "stop_token_ids"),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {"99999": 1}}, "logit_bias"),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"$": 1}}, "chat_template_kwargs"),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": NO_FUNCTION}]}, "tools"),
    ("/v1/completions", {**ROUTES[1].good, "prompt": [[1], [99999]], "n": 2}, "prompt"),
    ("/v1/completions", {**ROUTES[1].good, "prompt": [[99999], [99999]]}, "prompt"),
    ("/v1/messages", {**ROUTES[2].good, "tools": [{"name": "f", "input_schema": NO_SCHEMA}]}, "tools"),
    ("/v1/messages/count_tokens", {**ROUTES[3].good, "tools": [{"name": "f", "input_schema": NO_SCHEMA}]}, ""),
    ("/v1/responses", {**ROUTES[4].good, "tools": [{"type": "function", "name": "f", "parameters": BAD_PATTERN}],
                       "tool_choice": "required"}, "tools"),
    ("/v1/responses", {**ROUTES[4].good, "text": {"format": BAD_FORMAT}}, "text"),
    ("/v1/embeddings", {**ROUTES[5].good, "input": [[99999]]}, "input"),
    ("/detokenize", {**ROUTES[7].good, "tokens": [99999]}, "tokens"),
)  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), BELOW, ids=str)
def test_what_only_the_engine_can_refuse_names_its_field_too(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    response = http.post(path, json=body)
    if not param:  # nothing is asked of the schema where nothing is generated
        assert response.status_code == 200
        return
    assert response.status_code == 400, response.text
    problem = problem_of(WrongRequest("POST", path, b""), response)
    assert str(problem.get("param")).startswith(param), problem
