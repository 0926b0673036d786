"""Embeddings, lists of models, tokens of texts and conversations: their shapes."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from recorded_answers import openai_client

from inferd.protocol import InvalidRequest
from inferd.protocol.floats import pack_floats
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.embeddings import EmbeddingQuery, embeddings_body, read_embeddings
from inferd_runtime.server.dialects.openai.model_list import ModelEntry, model_json, models_body
from inferd_runtime.server.dialects.openai.tokens import (
    detokenized_body,
    read_detokenize,
    read_tokenize,
    rendered_body,
    tokenized_body,
)

VECTORS = [[0.5, -1.25], [3.0, 2**-10]]
USER = {"role": "user", "content": "hi"}


def encoded(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def embed(request: httpx2.Request) -> httpx2.Response:
    query = read_embeddings(request.content, ClientHeaders("req-1"))
    return embeddings_reply(query, [pack_floats(each) for each in VECTORS[: len(query.inputs)]])


def embeddings_reply(query: EmbeddingQuery, packed: list[str]) -> httpx2.Response:
    return httpx2.Response(200, content=embeddings_body(query, packed, 5), headers={"content-type": "application/json"})


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_vectors_come_as_numbers_and_as_base64(encoding: Any) -> None:
    answer = openai_client(embed).embeddings.create(model="m", input=["a", "b"], encoding_format=encoding)
    if encoding == "base64":
        assert isinstance(answer.data[0].embedding, str)
    else:
        assert [each.embedding for each in answer.data] == VECTORS
    assert ([each.index for each in answer.data], answer.usage.prompt_tokens) == ([0, 1], 5)


def test_an_answer_has_the_id_that_mistrals_client_does_not_read_it_without() -> None:
    query = read_embeddings(encoded(model="m", input="a"), ClientHeaders("req-1"))
    assert embeddings_reply(query, [pack_floats(VECTORS[0])]).json()["id"] == "embd-req-1"


def test_the_client_decodes_what_it_asks_for_by_default() -> None:
    answer = openai_client(embed).embeddings.create(model="m", input="a")
    assert answer.data[0].embedding == pytest.approx(VECTORS[0])


def test_vectors_as_base64_are_passed_on_without_being_unpacked() -> None:
    packed = ["no base64, as whoever unpacks it would find out"]
    query = read_embeddings(encoded(model="m", input="a", encoding_format="base64"), ClientHeaders())
    assert json.loads(embeddings_body(query, packed, 5))["data"][0]["embedding"] == packed[0]


@pytest.mark.parametrize(("given", "inputs"), [("a", ["a"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])])
def test_inputs_are_texts_or_tokens(given: Any, inputs: list[Any]) -> None:
    assert read_embeddings(encoded(model="m", input=given), ClientHeaders()).inputs == inputs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": []}, "input"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "a", "truncation_side": "right"}, "truncation_side"),
        ({"input": "a", "size": 1}, "size"),
    ],
)
def test_bad_embedding_requests_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_embeddings(encoded(model="m", **fields), ClientHeaders())
    assert raised.value.detail["param"] == param


@pytest.mark.parametrize(("most", "kept"), [(None, [1, 2, 3]), (-1, [2, 3]), (1, [3]), (9, [1, 2, 3])])
def test_the_last_tokens_of_an_input_are_kept(most: int | None, kept: list[int]) -> None:
    query = read_embeddings(encoded(model="m", input="a", truncate_prompt_tokens=most), ClientHeaders())
    assert query.cut([1, 2, 3], 2 if most == -1 else 10) == kept


def test_vectors_are_not_cut() -> None:
    query = read_embeddings(encoded(model="m", input="a", dimensions=2), ClientHeaders())
    query.check_dimensions(2)
    with pytest.raises(InvalidRequest, match="dimensions") as raised:
        query.check_dimensions(3)
    assert raised.value.detail["param"] == "dimensions"


def test_models_adapters_and_programs_are_listed_alike() -> None:
    entries = [
        ModelEntry("m", 5.5, max_context=64),
        ModelEntry("lora", 6, root="m"),
        ModelEntry("best-of-n@1", 7, "ann"),
    ]

    def answer(request: httpx2.Request) -> httpx2.Response:
        one = request.url.path.removeprefix("/v1/models").removeprefix("/")
        return httpx2.Response(200, json=model_json(entries[0]) if one else models_body(entries))

    client = openai_client(answer)
    listed = client.models.list().data
    assert [(model.id, model.created, model.owned_by) for model in listed] == [
        ("m", 5, "inferd"), ("lora", 6, "inferd"), ("best-of-n@1", 7, "ann"),
    ]  # fmt: skip
    assert [model.parent for model in listed] == [None, "m", None]
    assert client.models.retrieve("m").max_model_len == 64


def test_texts_and_conversations_are_tokenized() -> None:
    text = read_tokenize(encoded(prompt="a", add_special_tokens=False, return_token_strs=True))
    assert (text.model, text.prompt, text.special_tokens, text.token_texts) == ("", "a", False, True)
    chat = read_tokenize(encoded(model="m", messages=[USER], return_token_strs=True)).chat
    assert chat is not None
    assert chat.messages[0].content == "hi"
    assert read_tokenize(encoded(messages=[USER])).model == ""
    assert tokenized_body([1, 2], 64, ["a", "b"]) == {
        "count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": ["a", "b"],
    }  # fmt: skip


def test_tokens_become_text() -> None:
    assert read_detokenize(encoded(tokens=[1, 2])).tokens == [1, 2]
    assert detokenized_body("ab") == {"prompt": "ab"}
    assert rendered_body("r", "m", "<hi>", [1])["prompt_text"] == "<hi>"


@pytest.mark.parametrize(
    ("read", "fields", "param"),
    [
        (read_tokenize, {}, "prompt"),
        (read_tokenize, {"prompt": 3}, "prompt"),
        (read_tokenize, {"prompt": "a", "messages": [USER]}, "prompt"),
        (read_tokenize, {"messages": [USER], "temperature": 1}, "temperature"),
        (read_tokenize, {"messages": [USER], "return_token_strs": 1}, "return_token_strs"),
        (read_tokenize, {"messages": [], "model": "m"}, "messages"),
        (read_detokenize, {}, "tokens"),
        (read_detokenize, {"tokens": [-1]}, "tokens[0]"),
        (read_detokenize, {"tokens": [1], "text": ""}, "text"),
    ],
)
def test_bad_token_requests_are_refused_by_name(read: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(encoded(**fields))
    assert raised.value.detail["param"] == param
