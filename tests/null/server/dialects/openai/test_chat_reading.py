"""``/v1/chat/completions``: what requests become, and what is refused by the name of its field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferd.chat import ChatMessage, ChatRequest, CustomInput, OutputFormat, Tool, ToolCall, ToolChoice
from inferd.chat.tool_calls import checked_parameters
from inferd.protocol import InvalidRequest, RenderChat, check_render_chat
from inferd.protocol.chat import MAX_CHAT_DEPTH
from inferd_runtime.carriable import check_carriable
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.openai.chat import read_chat
from inferd_runtime.server.dialects.openai.errors import error_body

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "weather"}}
OTHER = {"type": "function", "function": {"name": "time", "description": "now", "parameters": {"properties": {}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}


def read(headers: ClientHeaders | None = None, **fields: Any) -> ChatRequest:
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    return read_chat(body, headers or ClientHeaders()).request


def test_what_is_left_out_is_openais_default() -> None:
    assert read() == ChatRequest(model="m", messages=[ChatMessage("user", "hello")])


def test_null_means_left_out() -> None:
    names = (
        "temperature", "top_p", "n", "stop", "tools", "tool_choice", "response_format", "seed", "stream", "logit_bias",
    )  # fmt: skip
    assert read(**dict.fromkeys(names)) == read()


def test_sampling_fields_become_sampling_options() -> None:
    sampling = read(
        temperature=0, top_p=0.5, top_k=7, min_p=0.1, seed=9, presence_penalty=1, frequency_penalty=-1,
        repetition_penalty=1.5, logit_bias={"12": -100},
    ).sampling  # fmt: skip
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0, 0.5, 7, 0.1, 9)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.5)
    assert sampling.logit_bias == {"12": -100}


def test_no_share_is_the_likeliest_token_and_not_refused() -> None:
    sampling = read(temperature=0.7, top_p=0).sampling
    assert (sampling.temperature, sampling.top_p) == (0, 1)


def test_what_litellm_keeps_in_messages_is_not_refused() -> None:
    kept = {"provider_specific_fields": {"refusal": None}}
    called = {**CALL, **kept, "function": {"name": "weather", "arguments": "{}", **kept}}
    part = {"type": "text", "text": "sunny", "cache_control": {"type": "ephemeral"}}
    answered = {"role": "tool", "tool_call_id": "c1", "content": [part]}
    plain = [USER, CALLS, {**answered, "content": "sunny"}]
    assert read(messages=[USER, {**CALLS, **kept, "tool_calls": [called]}, answered]) == read(messages=plain)


@pytest.mark.parametrize(
    ("sent", "rendered"),
    [
        ('{"city": "Ro', '{"city": "Ro'),
        ("[]", "[]"),
        ('"Rome"', '"Rome"'),
        ("Rome", "Rome"),
        (' {"city": "Rome"}', {"city": "Rome"}),
        ("", {}),
    ],
)
def test_a_call_that_was_cut_comes_back_as_the_text_that_it_is(sent: str, rendered: object) -> None:
    """OpenAI takes any text: what a client got from an answer without room for more it sends back with the conversation."""
    (message,) = read(messages=[calling(function={"name": "a", "arguments": sent})]).template_messages()
    assert message["tool_calls"][0]["function"]["arguments"] == rendered


NESTED = '{"x": ' * 3000 + "1" + "}" * 3000
LIMIT = '{"x": ' * MAX_CHAT_DEPTH + "1" + "}" * MAX_CHAT_DEPTH


@pytest.mark.parametrize(
    ("sent", "rendered"),
    [
        ('{"x": 123456789012345678901}', {"x": 123456789012345678901.0}),
        ('{"x": 18446744073709551615}', {"x": 18446744073709551615}),
        *(
            (each, each)
            for each in ('{"x": 1e999}', '{"x": NaN}', '{"x": "\\ud800"}', "[" * 5000, NESTED, f'{{"x": {LIMIT}}}')
        ),
        (f'{{"x": 1{"0" * 400}}}', f'{{"x": 1{"0" * 400}}}'),
        (LIMIT, json.loads(LIMIT)),
    ],
)
def test_whatever_a_model_wrote_for_arguments_can_be_sent_back(sent: str, rendered: object) -> None:
    """A schema allows any whole number: a call that this runtime answered with must not make the conversation end."""
    request = read(messages=[USER, calling(function={"name": "a", "arguments": sent}), tool_answer()])
    messages = request.template_messages()
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == rendered
    check_render_chat(RenderChat(messages))
    check_carriable(messages, "messages")


@pytest.mark.parametrize("top_k", [-1, 0])
def test_vllms_two_ways_to_switch_top_k_off(top_k: int) -> None:
    assert read(top_k=top_k).sampling.top_k == 0


def test_a_negative_seed_is_a_seed_like_any_other() -> None:
    seeds = [read(seed=seed).sampling.seed for seed in (-1, -2, 2**63 - 1, -(2**63))]
    assert seeds == [2**63 - 1, 2**63 - 2, 2**63 - 1, 0]
    for seed in (-1, -(2**63)):
        read(seed=seed).sampler()


def test_a_lower_priority_number_is_served_earlier_as_in_vllm() -> None:
    assert read(priority=-3).priority == 3
    assert read(priority=2).priority == -2


def test_other_fields_reach_the_neutral_request() -> None:
    request = read(
        n=3, stop="END", stream=True, user="u", metadata={"a": "b"}, session_id="s", cache_salt="salt",
        return_token_ids=True, speculation=False, max_completion_tokens=5,
    )  # fmt: skip
    assert (request.n, request.stop, request.stream, request.user, request.metadata) == (
        3,
        ["END"],
        True,
        "u",
        {"a": "b"},
    )
    assert (request.session, request.cache_salt, request.return_tokens) == ("s", "salt", True)
    assert (request.speculation, request.max_tokens) == (False, 5)


def test_the_session_of_the_header_counts_where_the_body_names_none() -> None:
    headers = ClientHeaders(session="from-header")
    assert read(headers).session == "from-header"
    assert read(headers, session_id="from-body").session == "from-body"


def test_where_a_text_ends() -> None:
    request = read(stop_token_ids=[7], ignore_eos=True, min_tokens=3, tools=[TOOL], tool_choice="none")
    assert (request.stop_token_ids, request.ignore_eos, request.min_tokens) == ([7], True, 3)


def test_both_names_of_max_tokens_may_say_the_same() -> None:
    assert read(max_tokens=5).max_tokens == 5
    assert read(max_tokens=5, max_completion_tokens=5).max_tokens == 5


def test_contents_are_texts_or_lists_of_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    refused = [{"type": "refusal", "refusal": "no"}]
    messages = [
        {"role": "system", "content": parts}, {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "ann"}, {"role": "assistant", "content": refused},
        {"role": "assistant", "refusal": "never"}, {"role": "assistant", "content": "x", "reasoning_content": "hm"},
    ]  # fmt: skip
    assert read(messages=messages).messages == [
        ChatMessage("system", "one\ntwo"), ChatMessage("developer", "be brief"), ChatMessage("user", "hi", name="ann"),
        ChatMessage("assistant", "no"), ChatMessage("assistant", "never"), ChatMessage("assistant", "x", "hm"),
    ]  # fmt: skip


def test_thoughts_are_read_in_the_shape_of_another_vendor() -> None:
    """A conversation that LiteLLM began with one vendor's model goes on with another's."""
    blocks = [{"type": "thinking", "thinking": "a", "signature": "x"}, {"type": "thinking", "thinking": "b"}]
    said = {"role": "assistant", "content": "x", "thinking_blocks": blocks, "images": []}
    both = {**said, "reasoning_content": "hm"}
    assert [each.reasoning for each in read(messages=[USER, said, both]).messages] == ["", "a\nb", "hm"]


def test_null_in_a_message_means_left_out() -> None:
    message = {**USER, "name": None, "tool_calls": None, "tool_call_id": None, "refusal": None}
    assert read(messages=[message]) == read()


def test_mistrals_prefix_is_no_more_than_false() -> None:
    """Its clients send it with each message of the assistant's, so that a conversation ended with its second turn."""
    assert read(messages=[USER, {**CALLS, "prefix": False}]) == read(messages=[USER, CALLS])
    with pytest.raises(InvalidRequest, match="continue_final_message") as caught:
        read(messages=[USER, {"role": "assistant", "content": "x", "prefix": True}])
    assert caught.value.detail["param"] == "messages[1].prefix"


def test_a_call_that_a_client_says_twice_is_one_call() -> None:
    """So do OpenAI's agents for JavaScript, 0.3 to 0.5: what answers a tool's result was refused."""
    twice = {**CALLS, "type": "function", "function": CALL["function"]}
    assert read(messages=[USER, twice]) == read(messages=[USER, CALLS])


def test_tool_calls_and_their_answers() -> None:
    messages = [USER, CALLS, {"role": "tool", "content": [{"type": "text", "text": "sun"}], "tool_call_id": "c1"}]
    _, assistant, tool = read(messages=messages).messages
    assert assistant.tool_calls == [ToolCall("c1", "weather", "{}")]
    assert tool == ChatMessage("tool", "sun", tool_call_id="c1")


def test_an_answer_that_was_only_thought_is_sent_back_without_text() -> None:
    """Servers that cut an answer in its reasoning tell its content as null."""
    messages = [USER, {"role": "assistant", "content": None, "reasoning_content": "Well"}, USER]
    assert read(messages=messages).messages[1] == ChatMessage("assistant", "", "Well")


@pytest.mark.parametrize("parameters", [{}, {"parameters": None}, {"parameters": {}}])
def test_a_function_without_parameters_is_called_with_none(parameters: dict[str, Any]) -> None:
    """Calls of it had arguments of a model's own invention, with which nothing can be called."""
    (tool,) = read(tools=[{"type": "function", "function": {"name": "now", **parameters}}]).tools
    assert checked_parameters(tool) == {"type": "object", "properties": {}, "additionalProperties": False}


def custom_of(name: str, syntax: str = "regex", definition: str = "a+") -> dict[str, Any]:
    grammar = {"syntax": syntax, "definition": definition}
    return {"type": "custom", "custom": {"name": name, "format": {"type": "grammar", "grammar": grammar}}}


def test_custom_tools_are_functions_of_one_text() -> None:
    plain = {"type": "custom", "custom": {"name": "note", "description": "Notes.", "format": {"type": "text"}}}
    request = read(tools=[TOOL, plain, custom_of("run", "lark", "start: A")])
    assert [tool.custom for tool in request.tools] == [
        None,
        CustomInput(),
        CustomInput(OutputFormat("lark", "start: A")),
    ]
    _, note, run = request.template_tools()
    text = note["function"]["parameters"]["properties"]["input"]
    assert (note["function"]["description"], text["type"]) == ("Notes.", "string")
    assert "this Lark grammar:\nstart: A" in run["function"]["parameters"]["properties"]["input"]["description"]
    named = {"type": "custom", "custom": {"name": "run"}}
    assert read(tools=[custom_of("run")], tool_choice=named).tool_choice == ToolChoice("required", ["run"], False)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert read(tools=[TOOL, custom_of("run")], tool_choice=allowed).tool_choice == ToolChoice("auto", ["run"])


def test_calls_of_custom_tools_come_back_with_their_texts() -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "run", "input": 'say "é"\n'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call, {**CALL, "id": "c2"}]}
    _, assistant, answer = read(messages=[USER, said, tool_answer()]).messages
    assert assistant.tool_calls == [
        ToolCall("c1", "run", '{"input": "say \\"é\\"\\n"}'),
        ToolCall("c2", "weather", "{}"),
    ]
    assert answer.tool_call_id == "c1"


def test_what_does_not_say_that_it_is_a_function_is_one() -> None:
    call = {name: value for name, value in CALL.items() if name != "type"}
    request = read(
        messages=[USER, {"role": "assistant", "tool_calls": [call]}, tool_answer()],
        tools=[{"function": {"name": "weather"}}],
    )
    assert request.messages[1].tool_calls == [ToolCall("c1", "weather", "{}")]
    assert request.tools == [Tool("weather")]


def test_tools_and_the_choice_among_them() -> None:
    request = read(tools=[TOOL, OTHER])
    assert request.tools == [Tool("weather"), Tool("time", "now", {"type": "object", "properties": {}})]
    assert request.tool_choice == ToolChoice("auto")
    assert read(tools=[TOOL], tool_choice="required", parallel_tool_calls=False).tool_choice == ToolChoice(
        "required", parallel=False
    )
    assert read(tools=[TOOL], tool_choice="any").tool_choice == ToolChoice("required")
    named = {"type": "function", "function": {"name": "time"}}
    assert read(tools=[TOOL, OTHER], tool_choice=named).tool_choice == ToolChoice("required", ["time"], False)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert read(tools=[TOOL, OTHER], tool_choice=allowed).tool_choice == ToolChoice("auto", ["time"])
    assert read(tools=[TOOL], tool_choice="none").callable_tools() == []


def test_what_arguments_are_required_may_be_said_twice_as_guardrails_says_it() -> None:
    parameters = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "required": ["a"]}}
    assert read(tools=[tool]).tools == [Tool("f", "", parameters)]


def test_log_probabilities_are_asked_for_in_two_fields() -> None:
    assert read(logprobs=True).logprobs == 0
    assert read(logprobs=True, top_logprobs=20).logprobs == 20
    assert read(logprobs=False, top_logprobs=0).logprobs is None
    assert read(logprobs=True, logprob_token_ids=[7, 3, 7]).logprob_tokens == [7, 3]
    assert read(logprob_token_ids=[]).logprob_tokens == []


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, OutputFormat("json_object")),
        ({"response_format": JSON_SCHEMA}, OutputFormat("json_schema", json.dumps(SCHEMA))),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "Page[Item]", "schema": SCHEMA}}},  # of pydantic
         OutputFormat("json_schema", json.dumps(SCHEMA))),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},  # Perplexity's clients name none
         OutputFormat("json_schema", json.dumps(SCHEMA))),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, OutputFormat("json_schema", json.dumps(SCHEMA))),
        ({"response_format": {"type": "json_object", "value": SCHEMA}}, OutputFormat("json_schema", json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": SCHEMA}}, OutputFormat("json_schema", json.dumps(SCHEMA))),
        ({"structured_outputs": {"json": "{}"}}, OutputFormat("json_schema", "{}")),
        ({"structured_outputs": {"regex": "a+"}}, OutputFormat("regex", "a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, OutputFormat("choice", options=["a", "b"])),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, OutputFormat("lark", 'start: "a"')),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, OutputFormat("gbnf", 'root ::= "a"')),
        (
            {"structured_outputs": {"grammar": '# a list\n\nroot  ::=\n  "a"'}},
            OutputFormat("gbnf", '# a list\n\nroot  ::=\n  "a"'),
        ),
        (
            {"structured_outputs": {"grammar": 'start: NAME "::=" NAME\nNAME: /[a-z]+/'}},
            OutputFormat("lark", 'start: NAME "::=" NAME\nNAME: /[a-z]+/'),
        ),
        ({"structured_outputs": {"json_object": True}}, OutputFormat("json_object")),
        ({"guided_json": SCHEMA}, OutputFormat("json_schema", json.dumps(SCHEMA))),
        ({"guided_regex": "a+", "guided_decoding_backend": "guidance"}, OutputFormat("regex", "a+")),
        ({"guided_choice": ["a"], "structured_outputs": {"choice": ["a"]}}, OutputFormat("choice", options=["a"])),
        ({"guided_grammar": 'start: "a"', "guided_json_object": False}, OutputFormat("lark", 'start: "a"')),
        ({"guided_json_object": True}, OutputFormat("json_object")),
    ],
)  # fmt: skip
def test_what_the_answer_is_held_to(fields: dict[str, Any], output: OutputFormat | None) -> None:
    assert read(**fields).output == output


def test_a_prediction_is_text_or_parts_of_it() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert read(prediction={"type": "content", "content": "ab"}).prediction == "ab"
    assert read(prediction={"type": "content", "content": parts}).prediction == "ab"


def test_what_goes_to_the_chat_template() -> None:
    assert read(chat_template_kwargs={"a": [1]}).template_arguments == {"a": [1]}
    assert read(reasoning_effort="none").template_arguments == {"reasoning_effort": "none", "enable_thinking": False}
    kept = read(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}).template_arguments
    assert kept == {"reasoning_effort": "low", "enable_thinking": False}


def test_the_last_message_may_be_gone_on_with() -> None:
    messages = [USER, {"role": "assistant", "content": "I"}]
    assert read(messages=messages, continue_final_message=True, add_generation_prompt=False).continue_final
    assert not read(messages=messages).continue_final


def test_functions_are_tools_of_which_one_is_called_at_most() -> None:
    older = {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": '{"a": 1}'}}
    messages = [USER, older, {"role": "function", "name": "weather", "content": "sun"}]
    asked = read(messages=messages, functions=[{"name": "weather"}], function_call={"name": "weather"})
    assert asked.tools == [Tool("weather")]
    assert asked.tool_choice == ToolChoice("required", ["weather"], parallel=False)
    (call,) = asked.messages[1].tool_calls
    assert (call.name, call.arguments) == ("weather", '{"a": 1}')
    assert asked.messages[2] == ChatMessage("tool", "sun", tool_call_id=call.id, name="weather")
    assert read(functions=[{"name": "weather"}]).tool_choice == ToolChoice("auto", [], parallel=False)
    assert read(functions=[{"name": "weather"}], function_call="none").tool_choice.mode == "none"


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("regex", "[ab]", "regex"), ("ebnf", 'root ::= "a"', "gbnf"), ("json_schema", "{}", "json_schema")],
)
def test_the_names_of_sglang(name: str, value: str, kind: str) -> None:
    assert read(**{name: value}).output == OutputFormat(kind, value)  # type: ignore[arg-type]


def test_documents_are_the_templates() -> None:
    given = [{"title": "a", "text": "b"}]
    asked = read(documents=given, chat_template_kwargs={"documents_first": True})
    assert asked.template_arguments == {"documents": given, "documents_first": True}


HARMLESS = {
    "store": False, "service_tier": "auto", "modalities": ["text"], "verbosity": "medium", "length_penalty": 1,
    "ignore_eos": False, "skip_special_tokens": True, "prompt_cache_key": "k", "functions": [], "echo": False,
    "stop_token_ids": [], "min_tokens": 0, "parallel_tool_calls": True, "documents": [], "guided_json": None,
    "safe_prompt": False,
    "search_parameters": {"mode": "off"},
}  # fmt: skip


@pytest.mark.parametrize("name", HARMLESS)
def test_a_value_that_asks_for_nothing_is_accepted(name: str) -> None:
    assert read(**{name: HARMLESS[name]}) == read()


def tool_answer(call: str = "c1") -> dict[str, Any]:
    return {"role": "tool", "content": "x", "tool_call_id": call}


def calling(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{**CALL, **changes}]}


IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"model": ""}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [3]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].name"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [USER, {"role": "assistant"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": IMAGE}]}, "messages[0].content[0].type"),
    ({"messages": [{**USER, "mood": 1}]}, "messages[0].mood"),
    ({"messages": [{"role": "assistant", "content": "", "audio": {"id": "a"}}]}, "messages[0].audio"),
    ({"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]},
     "messages[0].function_call.arguments"),
    ({"messages": [tool_answer()]}, "messages[0].tool_call_id"),
    ({"messages": [CALLS, tool_answer("c2")]}, "messages[1].tool_call_id"),
    ({"messages": [CALLS, tool_answer(), tool_answer()]}, "messages[2].tool_call_id"),
    ({"messages": [calling(function={"name": "a b", "arguments": "{}"})]}, "messages[0].tool_calls[0].function.name"),
    ({"messages": [calling(function={"name": "a", "arguments": "[" * 200_000})]},
     "messages[0].tool_calls[0].function.arguments"),
    ({"messages": [{"role": "assistant", "tool_calls": [CALL, CALL]}]}, "messages[0].tool_calls[1].id"),
    ({"messages": [calling(type="custom")]}, "messages[0].tool_calls[0].function"),
    ({"messages": [calling(type="mcp")]}, "messages[0].tool_calls[0].type"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "a"}}]}]},
     "messages[0].tool_calls[0].custom.input"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"seed": 2**63}, "seed"),
    ({"seed": "1"}, "seed"),
    ({"seed": 10**30}, "seed"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x"),
    ({"logit_bias": {"01": 1}}, "logit_bias.01"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1"),
    ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"stop": ["x" * 16_385]}, "stop"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"stream": True, "stream_options": {"x": True}}, "stream_options.x"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a" * 65}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a\n"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "mcp", "server_label": "c"}]}, "tools[0].type"),
    ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].custom.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "json"}}}]}, "tools[0].custom.format.type"),
    ({"tools": [custom_of("c", syntax="gbnf")]}, "tools[0].custom.format.grammar.syntax"),
    ({"tools": [{"type": "custom", "custom": {"name": "c", "format": {"type": "grammar"}}}]},
     "tools[0].custom.format.grammar"),
    ({"tools": [TOOL, {"type": "custom", "custom": {"name": "weather"}}]}, "tools[1].custom.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "custom", "custom": {"name": "weather"}}}, "tool_choice.custom.name"),
    ({"tools": [custom_of("c")], "tool_choice": {"type": "function", "function": {"name": "c"}}},
     "tool_choice.function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]},
     "tools[0].function.parameters.type"),
    ({"tools": [{"type": "function", "function": {"name": "a", "required": ["x"]}}]}, "tools[0].function.required"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}}},
     "tool_choice.allowed_tools.tools[0].function.description"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object", "schema": "{}"}}, "response_format.schema"),
    ({"response_format": {"type": "json_object", "schema": {}, "value": {}}}, "response_format.value"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a" * 257}}}, "response_format.json_schema.name"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {"regex": "a"}, "response_format": JSON_SCHEMA}, "structured_outputs"),
    ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ({"prediction": {"type": "contents", "content": ""}}, "prediction.type"),
    ({"prediction": {"type": "content"}}, "prediction.content"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"messages": [CALLS], "continue_final_message": True}, "continue_final_message"),
    ({"messages": [{"role": "assistant", "content": "a"}], "continue_final_message": True,
      "add_generation_prompt": True}, "add_generation_prompt"),
    ({"priority": 4}, "priority"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"metadata": {str(key): "" for key in range(17)}}, "metadata"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"request_id": "a b"}, "request_id"),
    ({"speculation": "often"}, "speculation"),
    ({"store": True}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "v", "format": "mp3"}}, "audio"),
    ({"functions": [{"name": "f"}], "tools": [TOOL]}, "functions"),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
    ({"functions": [{"name": "f"}], "function_call": "required"}, "function_call"),
    ({"function_call": {"name": "f"}}, "function_call"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ({"truncation_side": "right"}, "truncation_side"),
    ({"regex": "a", "ebnf": "b"}, "ebnf"),
    ({"json_schema": "["}, "json_schema"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"search_parameters": {"mode": "auto"}}, "search_parameters"),
    ({"guided_json": "["}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    ({"guided_regex": "a", "structured_outputs": {"regex": "b"}}, "guided_regex"),
    ({"guided_regex": "a", "response_format": JSON_SCHEMA}, "guided_regex"),
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend"),
    ({"ignore_eos": 0}, "ignore_eos"),
    ({"ignore_eos": True, "response_format": {"type": "json_object"}}, "ignore_eos"),
    ({"ignore_eos": True, "tools": [TOOL]}, "ignore_eos"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [1] * 257}, "stop_token_ids"),
    ({"logprob_token_ids": [1]}, "logprob_token_ids"),
    ({"logprob_token_ids": [-1], "logprobs": True}, "logprob_token_ids[0]"),
    ({"logprob_token_ids": [1] * 65, "logprobs": True}, "logprob_token_ids"),
    ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
    ({"tempreature": 1}, "tempreature"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[f"{at}-{param}" for at, (_, param) in enumerate(REFUSED)])
def test_what_does_not_work_is_refused_by_its_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(**fields)
    assert raised.value.detail["param"] == param
    assert raised.value.message.startswith(param)


@pytest.mark.parametrize("value", ["1e999", "NaN", '"\\ud800"', '{"b": ["\\udfff"]}', "1" + "0" * 400])
def test_a_value_that_json_cannot_hold_is_refused_by_its_field(value: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_chat(b'{"model": "m", "a": ' + value.encode() + b"}", ClientHeaders())
    assert raised.value.detail["param"] == "a"
    assert raised.value.message.startswith("a: ")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 10_000, b"NaN", b'{"a": x}'])
def test_a_body_that_is_no_object_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_chat(body, ClientHeaders())
    assert raised.value.detail["param"] == ""
    assert error_body(raised.value)["error"]["param"] is None


def test_other_kinds_of_content_say_what_is_not_supported() -> None:
    with pytest.raises(InvalidRequest, match="images are not supported"):
        read(messages=[{"role": "user", "content": IMAGE}])


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "response_format"),
        ({"response_format": JSON_SCHEMA}, "response_format"),
        ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs"),
        ({"guided_json": SCHEMA}, "guided_json"),
    ],
)
def test_a_format_that_the_engine_refuses_is_named_as_the_client_named_it(fields: dict[str, Any], named: str) -> None:
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    assert read_chat(body, ClientHeaders()).output_field == named
