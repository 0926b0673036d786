"""What vLLM adds to OpenAI's routes, as tools that were made for vLLM send it, each with what it changes."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "temperature": 0}
CHAT: dict[str, Any] = {**ASKED, "messages": [{"role": "user", "content": "Hello there"}]}
TEXT: dict[str, Any] = {**ASKED, "prompt": "Hello there"}


def post(http: httpx.Client, path: str, **fields: Any) -> Any:
    response = http.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def refused(http: httpx.Client, path: str, **fields: Any) -> str:
    response = http.post(path, json=fields)
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["param"])


def tokens_of(http: httpx.Client, prompt: str) -> list[int]:
    return list(post(http, "/tokenize", model="tiny", prompt=prompt, add_special_tokens=False)["tokens"])


def test_a_harness_finds_what_it_needs_of_the_tokenizer(http: httpx.Client) -> None:
    """lm-evaluation-harness with tokenizer_backend=remote: special tokens by name, one id each, and the chat template."""
    told = http.get("/tokenizer_info").json()
    (end,) = tokens_of(http, told["eos_token"])
    assert end in http.get("/v1/models").json()["models"][0]["eos_tokens"]
    assert "messages" in told["chat_template"]
    assert http.get("/tokenizer_info", params={"model": "tiny"}).json() == told
    unknown = http.get("/tokenizer_info", params={"model": "nothing"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


def test_a_prompt_that_the_client_has_rendered_is_what_the_template_renders(http: httpx.Client) -> None:
    rendered = post(http, "/v1/chat/completions/render", **CHAT)
    whole = post(http, "/v1/completions", **{**TEXT, "prompt": rendered["prompt_text"]}, return_token_ids=True)
    assert whole["choices"][0]["prompt_token_ids"] == rendered["token_ids"]
    assert whole["choices"][0]["text"] == post(http, "/v1/chat/completions", **CHAT)["choices"][0]["message"]["content"]


def test_the_name_of_a_special_token_in_a_message_is_text(http: httpx.Client) -> None:
    end = http.get("/tokenizer_info").json()["eos_token"]
    said = {**CHAT, "messages": [{"role": "user", "content": f"a{end}b"}]}
    plain = {**CHAT, "messages": [{"role": "user", "content": "ab"}]}
    (token,) = tokens_of(http, end)
    counts = [post(http, "/v1/chat/completions/render", **each)["token_ids"].count(token) for each in (said, plain)]
    assert counts[0] == counts[1]


def test_a_prompt_without_what_begins_a_text(http: httpx.Client) -> None:
    bare = post(http, "/v1/completions", **TEXT, add_special_tokens=False, return_token_ids=True)
    assert bare["choices"][0]["prompt_token_ids"] == tokens_of(http, TEXT["prompt"])


@pytest.mark.parametrize(("path", "asked"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_log_probabilities_of_the_prompt(http: httpx.Client, path: str, asked: dict[str, Any]) -> None:
    told = post(http, path, **asked, n=2, prompt_logprobs=3, return_token_ids=True)
    for place in told["choices"] if path == "/v1/completions" else [told]:
        first, *others = place["prompt_logprobs"]
        assert first is None
        for token, score in zip(place["prompt_token_ids"][1:], others, strict=True):
            assert score[str(token)]["logprob"] <= 0
            assert 3 <= len(score) <= 4
            ranked = sorted(score.values(), key=lambda each: each["rank"])
            assert [each["rank"] for each in ranked[:3]] == [1, 2, 3]
            assert [each["logprob"] for each in ranked] == sorted((each["logprob"] for each in ranked), reverse=True)
    plain = post(http, path, **asked)
    assert answers(told)[0] == answers(plain)[0]
    assert refused(http, path, **asked, prompt_logprobs=1, stream=True) == "prompt_logprobs"


def answers(body: dict[str, Any]) -> list[str]:
    return [each["text"] if "text" in each else each["message"]["content"] for each in body["choices"]]


def test_an_echo_has_as_many_alternatives_as_logprobs_says(http: httpx.Client) -> None:
    both = post(http, "/v1/completions", **TEXT, echo=True, logprobs=1, prompt_logprobs=4)["choices"][0]
    alone = post(http, "/v1/completions", **TEXT, echo=True, logprobs=1)["choices"][0]
    assert both["logprobs"]["tokens"] == alone["logprobs"]["tokens"]
    assert [set(each or ()) for each in both["logprobs"]["top_logprobs"]] == [
        set(each or ()) for each in alone["logprobs"]["top_logprobs"]
    ]
    assert len(both["prompt_logprobs"][1]) >= 4


def test_tokens_are_named_by_their_ids(http: httpx.Client) -> None:
    asked = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    chat = post(http, "/v1/chat/completions", **CHAT, **asked, logprobs=True, top_logprobs=1)["choices"][0]
    names = [f"token_id:{token}" for token in chat["token_ids"]]
    assert [each["token"] for each in chat["logprobs"]["content"]] == names
    assert [each["top_logprobs"][0]["token"] for each in chat["logprobs"]["content"]] == names
    text = post(http, "/v1/completions", **TEXT, **asked, logprobs=1)["choices"][0]
    assert text["logprobs"]["tokens"] == [f"token_id:{token}" for token in text["token_ids"]]
    plain = post(http, "/v1/completions", **TEXT, logprobs=1)["choices"][0]
    assert text["logprobs"]["text_offset"] == plain["logprobs"]["text_offset"]


def test_tokens_that_are_named_are_told_of_at_each_place(http: httpx.Client) -> None:
    asked = {"logprob_token_ids": [9, 5, 11], "return_tokens_as_token_ids": True}
    chat = post(http, "/v1/chat/completions", **CHAT, **asked, logprobs=True, top_logprobs=1)["choices"][0]
    told = [[each["token"] for each in one["top_logprobs"]] for one in chat["logprobs"]["content"]]
    assert told == [["token_id:9", "token_id:5", "token_id:11"]] * len(told) != []
    text = post(http, "/v1/completions", **TEXT, **asked, logprobs=0)["choices"][0]["logprobs"]
    likely = post(http, "/v1/completions", **TEXT, return_tokens_as_token_ids=True, logprobs=20)["choices"][0][
        "logprobs"
    ]
    assert text["tokens"] == likely["tokens"]
    for named, best in zip(text["top_logprobs"], likely["top_logprobs"], strict=True):
        assert {"token_id:9", "token_id:5", "token_id:11"} <= named.keys()
        assert {key: named[key] for key in named.keys() & best.keys()} == pytest.approx(
            {key: best[key] for key in named.keys() & best.keys()}, abs=1e-4
        )
    for path, fields in (
        ("/v1/chat/completions", {**CHAT, "logprobs": True}),
        ("/v1/completions", {**TEXT, "logprobs": 0}),
    ):
        assert refused(http, path, **fields, logprob_token_ids=[10**8]) == "logprob_token_ids"
    assert refused(http, "/v1/completions", **{**TEXT, "max_tokens": 0}, echo=True, logprobs=1, logprob_token_ids=[9])


@pytest.mark.parametrize(("path", "asked"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_bad_words_are_no_part_of_the_answer(http: httpx.Client, path: str, asked: dict[str, Any]) -> None:
    (text,) = answers(post(http, path, **asked))
    words = [text[1:4], text[5:8], '"/\\\n(']
    (without,) = answers(post(http, path, **asked, bad_words=words))
    assert without
    assert without[0] == text[0]
    assert not any(word in without for word in words)
    assert refused(http, path, **asked, bad_words=["a"], structured_outputs={"regex": "b"}) == "bad_words"
    assert refused(http, path, **asked, bad_words=["a"], ignore_eos=True) == "ignore_eos"


@pytest.mark.parametrize(("path", "asked"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_an_answer_has_the_allowed_tokens_alone(http: httpx.Client, path: str, asked: dict[str, Any]) -> None:
    allowed = [*tokens_of(http, "a"), *tokens_of(http, "b")]
    told = post(http, path, **asked, allowed_token_ids=allowed, return_token_ids=True)["choices"][0]
    assert set(told["token_ids"]) <= set(allowed)
    assert (len(told["token_ids"]), told["finish_reason"]) == (asked["max_tokens"], "length")
    form = {"structured_outputs": {"regex": "[a-z]{2}"}}
    (text,) = answers(post(http, path, **asked, allowed_token_ids=allowed, **form))
    assert set(text) <= set("ab")
    none = {"structured_outputs": {"regex": "[c-d]+"}}
    assert refused(http, path, **asked, allowed_token_ids=allowed, **none) == "allowed_token_ids"
    assert refused(http, path, **asked, allowed_token_ids=[]) == "allowed_token_ids"
    assert refused(http, path, **asked, allowed_token_ids=[99_999_999]) == "allowed_token_ids"


def test_documents_are_refused_where_the_template_reads_none(http: httpx.Client) -> None:
    given = [{"title": "a", "text": "b"}]
    assert refused(http, "/v1/chat/completions", **CHAT, documents=given) == "documents"
    assert refused(http, "/tokenize", messages=CHAT["messages"], documents=given) == "documents"
    assert post(http, "/v1/chat/completions", **CHAT, documents=[])["choices"]


def test_special_tokens_show_where_that_is_asked_for(http: httpx.Client) -> None:
    """As with skip_special_tokens=false in vLLM: tools that parse what a model writes read its marks."""
    end = http.get("/tokenizer_info").json()["eos_token"]
    (token,) = tokens_of(http, end)
    asked = {**CHAT, "ignore_eos": True, "logit_bias": {str(token): 100}}
    hidden = post(http, "/v1/chat/completions", **asked)
    shown = post(http, "/v1/chat/completions", **asked, skip_special_tokens=False)
    assert answers(hidden) == [""]
    assert answers(shown) == [end * asked["max_tokens"]]


def test_what_vllm_adds_to_responses(http: httpx.Client) -> None:
    asked: dict[str, Any] = {"model": "tiny", "input": "Hello there", "max_output_tokens": 12, "temperature": 0}
    text = said(post(http, "/v1/responses", **asked))
    assert said(post(http, "/v1/responses", **asked, stop=text[3:6])) == text[:3]
    assert said(post(http, "/v1/responses", **asked, stop=[text[3:6]], include_stop_str_in_output=True)) == text[:6]
    assert said(post(http, "/v1/responses", **asked, structured_outputs={"choice": ["yes", "no"]})) in ("yes", "no")
    biased = post(http, "/v1/responses", **asked, logit_bias={str(tokens_of(http, text)[0]): -100})
    assert said(biased) != text
    drawn = {**asked, "presence_penalty": 2, "frequency_penalty": 2, "repetition_penalty": 5, "priority": 1}
    assert said(post(http, "/v1/responses", **drawn)) != text
    long = post(http, "/v1/responses", **{**asked, "max_output_tokens": 80, "ignore_eos": True})
    assert long["usage"]["output_tokens"] == 80
    both = {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}
    assert refused(http, "/v1/responses", **asked, **both) == "structured_outputs"
    assert refused(http, "/v1/responses", **asked, chat_template_kwargs={"tools": []}) == "chat_template_kwargs.tools"
    assert post(http, "/v1/responses", **asked, chat_template_kwargs={"enable_thinking": False})["status"]


def said(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def test_a_response_to_an_input_that_is_too_long(http: httpx.Client) -> None:
    """truncation: auto, as the Agents SDK sends it where its settings say so."""
    asked: dict[str, Any] = {"model": "tiny", "input": "x y z " * 5000, "max_output_tokens": 8}
    assert http.post("/v1/responses", json={**asked, "truncation": "disabled"}).status_code == 400
    cut = post(http, "/v1/responses", **asked, truncation="auto")
    size = http.get("/v1/models").json()["data"][0]["max_model_len"]
    assert cut["usage"]["input_tokens"] == size - 8
    assert cut["truncation"] == "auto"


@pytest.mark.parametrize(
    ("grammar", "allowed"),
    [
        ('%llguidance {}\n\nstart: START\nSTART: SELECT\n\nSELECT: "yes"\n     | "no"\n\n', {"yes", "no"}),
        ('%llguidance {}\n\nstart: a\na[capture]: A\n\nA: "yes"\n     | "no"\n\n', {"yes", "no"}),
        ('%llguidance {}\n\nstart: j\n\nj[capture="v"]: %json {\n  "const": 7\n}\n\n', {"7"}),
    ],
)
def test_a_grammar_as_guidance_writes_it(http: httpx.Client, grammar: str, allowed: set[str]) -> None:
    """Its vLLM model sends each grammar under both of vLLM's names, with its choice of backend."""
    fields = {
        "guided_decoding_backend": "guidance",
        "guided_grammar": grammar,
        "structured_outputs": {"grammar": grammar},
    }
    (text,) = answers(post(http, "/v1/chat/completions", **CHAT, **fields))
    assert text in allowed
