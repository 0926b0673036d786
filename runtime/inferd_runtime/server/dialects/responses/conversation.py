"""Items as the messages of a conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inferd.chat import ChatMessage, ToolCall, custom_arguments
from inferd_runtime.server.dialects.reading import check_all_arguments, invalid, read_arguments
from inferd_runtime.server.dialects.responses.items import Item
from inferd_runtime.server.dialects.responses.namespaces import NAMESPACE, shown_name

BETWEEN_PARTS = "\n"


def messages_of(earlier: Sequence[Item], items: Sequence[Item]) -> list[ChatMessage]:
    """Return the messages that items make behind ``earlier`` ones.

    What the model thought, said and called in a row is one message. Raises InvalidRequest, which names the field, for the output
    of a call that nobody made.
    """
    check_all_arguments(item.get("arguments") for item in (*earlier, *items))
    conversation = _Conversation()
    for item in earlier:
        conversation.add(item, "previous_response_id")
    for number, item in enumerate(items):
        conversation.add(item, f"input[{number}]")
    return conversation.messages


class _Conversation:
    """Takes items one by one."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._called: dict[str, str] = {}

    def add(self, item: Item, at: str) -> None:
        match item["type"]:
            case "message" if item["role"] == "assistant":
                self._say(text_of(item["content"]))
            case "message":
                self.messages.append(ChatMessage(item["role"], text_of(item["content"])))
            case "reasoning":
                self.messages.append(ChatMessage("assistant", reasoning=text_of(item["content"] or item["summary"])))
            case "function_call":
                place = at if at == "previous_response_id" else f"{at}.arguments"
                self._call(item, read_arguments(item["arguments"], place))
            case "custom_tool_call":
                self._call(item, custom_arguments(item["input"]))
            case "function_call_output" | "custom_tool_call_output":
                self._answer(item, at)

    def _say(self, text: str) -> None:
        last = self._assistant()
        if last is not None and not last.content and not last.tool_calls:
            self.messages[-1] = replace(last, content=text)
        else:
            self.messages.append(ChatMessage("assistant", text))

    def _call(self, item: Item, arguments: str) -> None:
        name = shown_name(item.get(NAMESPACE), item["name"])
        self._called[item["call_id"]] = name
        call = ToolCall(item["call_id"], name, arguments)
        last = self._assistant()
        if last is None:
            self.messages.append(ChatMessage("assistant", tool_calls=[call]))
        else:
            last.tool_calls.append(call)  # not a new message for each: there may be thousands

    def _answer(self, item: Item, at: str) -> None:
        call_id = item["call_id"]
        if call_id not in self._called:
            raise invalid(f"{at}.call_id", f"{at}.call_id: no call before it has this call_id")
        output = item["output"] if isinstance(item["output"], str) else text_of(item["output"])
        self.messages.append(ChatMessage("tool", output, tool_call_id=call_id, name=self._called[call_id]))

    def _assistant(self) -> ChatMessage | None:
        """Return the last message if it is the assistant's."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == "assistant" else None


def text_of(parts: Sequence[dict[str, Any]]) -> str:
    """Return the text of an item's content."""
    return BETWEEN_PARTS.join(part["text"] if "text" in part else part["refusal"] for part in parts)
