"""The document that the server sends of itself, held against the server: requests that it allows, and such that it does not."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from inferd_runtime.server.openapi.operations import OPERATIONS

from .conftest import TOKEN, LiveServer

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
ASK = [{"role": "user", "content": "Write a line about the sea."}]
PROGRAM = {"files": {"main.py": "async def main(x: int = 0) -> int:\n    return x"}, "name": "described"}
WAITING = """
import asyncio
from inferd import EndOfMessages, session

async def main() -> None:
    await session.send_file(b"x", "sent.txt")
    await session.send("sent")
    try:
        while True:
            await session.receive()
    except EndOfMessages:
        await asyncio.sleep(600)
"""
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
MODEL = {"enum": ["tiny"]}
FEW: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 3}
SAID: dict[str, Any] = {"type": "string", "minLength": 1}
SMALL: dict[str, dict[str, Any]] = {
    "MessageBody": {"message": {"enum": ["hi", 1]}, "end": {"enum": [False]}},
    "FilePieceBody": {"offset": {"enum": [0]}, "data": {"enum": ["eA=="]}},
    "FileBody": {"name": {"enum": ["a.txt"]}, "size": {"enum": [1]}, "media_type": {"enum": ["text/plain"]}},
    "ChatFields": {"model": MODEL, "max_completion_tokens": FEW, "n": FEW},
    "CompletionFields": {"model": MODEL, "max_tokens": FEW, "n": FEW},
    "MessagesBody": {"model": MODEL, "max_tokens": FEW},
    "CountTokensBody": {"model": MODEL},
    "ResponsesBody": {"model": MODEL, "max_output_tokens": FEW, "input": SAID},
    "InputTokensBody": {"model": MODEL, "input": SAID},
    "EmbeddingFields": {"model": MODEL},
    "UploadBody": {name: {"enum": [value]} for name, value in PROGRAM.items()},
    "LaunchBody": {
        "program": {"enum": [PROGRAM["name"]]},
        "arguments": {"enum": [{}, {"x": 1}]},
        "limits": {"enum": [{}, {"wall_s": 5}]},
    },
}
"""Fields that every request of these tests has, so that it reaches the engine, and does not keep it busy."""
ENDLESS = {"/v1/speculation/cycles"}
"""They end with their client, as what a WebSocket's handshake opens."""
SLOW = {"/v1/slow-step", "/v1/runs/{run}/events"}
"""What these take when a parameter is left out is more than there is time for."""
CALLED = sorted(
    (one for one in OPERATIONS if one.path not in ENDLESS and 101 not in one.answers),
    key=lambda one: (one.method == "DELETE", one.path.endswith("/cancel")),
)
"""What ends or removes something comes last."""
CHECKED = [
    not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_headers_conformance, checks.response_schema_conformance, checks.allow_header_conformance,
]  # fmt: skip
EXAMPLES = 12
FRAMING = ("transfer-encoding", "content-length", "expect", "upgrade")
TRIED = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of objects without other fields: the document leaves them open for later versions, but they are not there now."""
    is_open = "properties" in schema and "additionalProperties" not in schema
    return {**schema, "additionalProperties": False} if is_open else schema


def with_model(document: dict[str, Any]) -> dict[str, Any]:
    """The document as it is now, for requests of a model that is there."""
    value = copy.deepcopy(document)
    schemas = value["components"]["schemas"]
    for name in SMALL:
        if "model" in SMALL[name]:
            schemas[name]["properties"]["model"] = MODEL
    value["components"]["schemas"] = {name: closed(schema) for name, schema in schemas.items()}
    return value


def small(document: dict[str, Any], known: dict[str, list[Any]]) -> dict[str, Any]:
    """The document, for requests that are answered soon. ``known``: what a path's parameters may name beside anything else."""
    value = with_model(document)
    schemas = value["components"]["schemas"]
    for name, fields in SMALL.items():
        schemas[name]["properties"] |= fields
        schemas[name]["required"] = sorted({*schemas[name].get("required", ()), *fields})
    for name in ("ResponsesBody", "InputTokensBody"):
        del schemas[name]["properties"]["previous_response_id"]
    soon = {
        "seconds": {"type": "number", "minimum": 0, "maximum": 0.01},
        "follow": {"enum": ["false"]},
        "offset": {"enum": [0]},
    }
    for path, operations in value["paths"].items():
        numbered = "{number}" in path
        for parameter in [each for operation in operations.values() for each in operation["parameters"]]:
            if parameter["name"] in soon:
                parameter |= {"required": True, "schema": soon[parameter["name"]]}
            if parameter["name"] in known and parameter["in"] == "path":
                names = known[parameter["name"]]
                who = names[-1:] if numbered and parameter["name"] == "run" else names  # the run that has files
                parameter["schema"] = {"enum": who if numbered else [*who, "nobody"]}
    return value


@pytest.fixture(scope="module")
def document(server: LiveServer) -> dict[str, Any]:
    with server.http() as client:
        value: dict[str, Any] = client.get("/openapi.json").raise_for_status().json()
    return value


@pytest.fixture(scope="module")
def known(server: LiveServer) -> dict[str, list[Any]]:
    """Runs, responses, programs and a model that are there."""
    server.upload(WAITING, "waiting")
    asked = {"model": "tiny", "input": "Hello", "max_output_tokens": 2}
    with server.http() as client:
        client.post("/v1/programs", json=PROGRAM).raise_for_status()
        runs = [client.post("/v1/runs", json={"program": name}).json()["id"] for name in (PROGRAM["name"], "waiting")]
        client.get(f"/v1/runs/{runs[0]}/events").raise_for_status()
        with client.stream("GET", f"/v1/runs/{runs[1]}/events") as events:
            assert any('"sent"' in line for line in events.iter_lines())
        sent = client.get(f"/v1/runs/{runs[1]}/files").json()["files"]
        begun = client.post(f"/v1/runs/{runs[1]}/files", json={"name": "b.txt", "size": 1}).json()
        responses = [
            client.post("/v1/responses", json={**asked, "background": later}).json()["id"] for later in (False, True)
        ]
    numbers = [sent[0]["file"], begun["file"]]
    return {
        "run": runs,
        "response": responses,
        "model": ["tiny"],
        "reference": [str(PROGRAM["name"])],
        "number": numbers,
    }


def statuses(server: LiveServer, document: dict[str, Any], operation: Any, mode: GenerationMode) -> list[int]:
    """Send what the document allows or (negative) does not, check what is answered, and return its statuses."""
    found: list[int] = []
    api = schemathesis.openapi.from_dict(document)
    api.config.update(base_url=server.url)
    checked = CHECKED if mode is GenerationMode.POSITIVE else [*CHECKED, checks.negative_data_rejection]
    with requests.Session() as session:

        @TRIED
        @given(data=st.data())
        def check(data: st.DataObject) -> None:
            case = data.draw(api[operation.path][operation.method].as_strategy(generation_mode=mode))
            # How a request is framed is refused before anybody knows whose route it is for.
            for name in [one for one in case.headers or () if one.lower() in FRAMING]:
                del case.headers[name]
            response = case.call_and_validate(session=session, headers=AUTHORIZED, checks=checked, timeout=20)
            found.append(response.status_code)

        check()
    return found


def test_what_the_document_allows_is_answered_as_it_says(
    server: LiveServer, document: dict[str, Any], known: dict[str, list[Any]]
) -> None:
    described = small(document, known)
    for operation in CALLED:
        found = statuses(server, described, operation, GenerationMode.POSITIVE)
        assert set(found) & set(operation.answers), f"{operation.id} was never answered: {found}"


def test_what_the_document_does_not_allow_is_refused(server: LiveServer, document: dict[str, Any]) -> None:
    described = with_model(document)
    for operation in CALLED:
        if (operation.body or operation.parameters) and operation.path not in SLOW:
            found = statuses(server, described, operation, GenerationMode.NEGATIVE)
            assert any(400 <= status < 500 for status in found), operation.id


CHAT = {"model": "tiny", "messages": ASK, "max_tokens": 60, "seed": 3}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {**CHAT, "logprobs": True, "top_logprobs": 2, "n": 2, "return_token_ids": True, "max_tokens": 5},
        {**CHAT, "tools": [FUNCTION], "tool_choice": "required"},
    ],
    "/v1/completions": [
        {"model": "tiny", "prompt": "The sea", "logprobs": 2, "return_token_ids": True, "max_tokens": 5},
        {"model": "tiny", "prompt": ["The sea", "The sky"], "n": 2, "max_tokens": 5, "stop": ["e"]},
    ],
    "/v1/messages": [
        {**CHAT, "stop_sequences": ["e"]},
        {**CHAT, "tools": [{"name": "weather", "input_schema": WEATHER}], "tool_choice": {"type": "any"}},
    ],
    "/v1/responses": [
        {"model": "tiny", "input": "The sea", "top_logprobs": 2, "max_output_tokens": 5, "instructions": "Be short."},
        {"model": "tiny", "input": "Weather?", "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}],
         "tool_choice": "required", "max_output_tokens": 60, "seed": 3},
    ],
}  # fmt: skip


@pytest.mark.parametrize("path", REQUESTS)
def test_answers_and_events_are_as_the_document_says(server: LiveServer, document: dict[str, Any], path: str) -> None:
    described = with_model(document)
    content = described["paths"][path]["post"]["responses"]["200"]["content"]
    whole = {**content["application/json"]["schema"], "components": described["components"]}
    data_of_event = content["text/event-stream"]["schema"]["properties"]["data"]
    event = {**data_of_event["contentSchema"], "components": described["components"]}
    with server.http() as client:
        for body in REQUESTS[path]:
            jsonschema.validate(client.post(path, json=body).raise_for_status().json(), whole)
            streamed = client.post(path, json={**body, "stream": True}).raise_for_status().text
            data = [line.removeprefix("data: ") for line in streamed.splitlines() if line.startswith("data: ")]
            events = [json.loads(each) for each in data if each != "[DONE]"]
            assert len(events) > 2
            for each in events:
                jsonschema.validate(each, event)
