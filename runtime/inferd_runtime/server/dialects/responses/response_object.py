"""The response as OpenAI's clients see it: what was asked, what was answered, and what that used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from inferd.chat import TokenScore, UsageReport
from inferd.protocol import InferdError
from inferd_runtime.server.dialects.responses.fields import ResponsesBody, asked_format
from inferd_runtime.server.dialects.responses.ids import new_id
from inferd_runtime.server.dialects.responses.items import Item
from inferd_runtime.server.dialects.responses.namespaces import NAMESPACE
from inferd_runtime.server.dialects.statuses import status_of
from inferd_runtime.server.dialects.written_scores import WrittenScores

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseObject:
    """Makes the object in each of its states."""

    def __init__(self, body: ResponsesBody) -> None:
        self.id = new_id("resp")
        self.created_at = int(time.time())
        self.stores = body.store is not False
        self._asked = _asked(body)

    def state(
        self,
        status: ResponseStatus,
        output: Sequence[Item] = (),
        usage: UsageReport | None = None,
        error: InferdError | None = None,
    ) -> dict[str, Any]:
        """Return the object."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None if error is None else error_json(error),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": list(output),
            "usage": None if usage is None else usage_json(usage),
            **self._asked,
        }


def _asked(body: ResponsesBody) -> dict[str, Any]:
    """Return the fields that say what was asked, with the values that hold."""
    reasoning = body.reasoning
    return {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": dict(body.metadata or {}),
        "model": body.model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None if reasoning is None else reasoning.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": msgspec.to_builtins(asked_format(body)), "verbosity": "medium"},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": [_tool_json(tool) for tool in body.tools or []],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _tool_json(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as it was asked for, with what it leaves out."""
    if tool.get("type") == NAMESPACE:
        return {"description": None, **tool}
    if tool.get("type") == "custom":
        return {"description": None, "format": {"type": "text"}, **{k: v for k, v in tool.items() if v is not None}}
    return {"type": "function", "description": None, "parameters": None, "strict": None, **tool}


def usage_json(usage: UsageReport) -> dict[str, Any]:
    """Return what was used, in tokens."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "accepted_prediction_tokens": usage.accepted_prediction,
            "rejected_prediction_tokens": usage.rejected_prediction,
        },
        "total_tokens": usage.prompt + usage.completion,
    }


def error_json(error: InferdError) -> dict[str, Any]:
    """Return why a response failed, with the nearest of OpenAI's codes."""
    status = status_of(error)
    code = "rate_limit_exceeded" if status == 429 else "invalid_prompt" if status < 500 else "server_error"
    return {"code": code, "message": error.to_wire().message}


def text_part(text: str, scores: WrittenScores) -> dict[str, Any]:
    """Return a text that the model wrote."""
    return {"type": "output_text", "text": text, "annotations": [], **scores.json()}


def logprob_columns(scores: Sequence[TokenScore], text: str = "") -> dict[str, list[Any]]:
    """Return tokens with their log-probabilities, and the most likely ones at their places."""
    return {"logprobs": [{**_score(score), "top_logprobs": [_score(one) for one in score.top]} for score in scores]}


def _score(score: TokenScore) -> dict[str, Any]:
    return {"token": score.text, "bytes": score.data, "logprob": score.logprob}


def said_item(item_id: str, status: str, content: Sequence[dict[str, Any]]) -> Item:
    """Return a message that the model wrote."""
    return {"id": item_id, "type": "message", "status": status, "role": "assistant", "content": list(content)}


def thought_item(item_id: str, status: str, content: Sequence[dict[str, Any]]) -> Item:
    """Return what the model thought."""
    return {"id": item_id, "type": "reasoning", "status": status, "summary": [], "content": list(content)}


def thought_part(text: str) -> dict[str, Any]:
    """Return a piece of what the model thought."""
    return {"type": "reasoning_text", "text": text}
