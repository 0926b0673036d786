"""Messages in Anthropic's shape, whose content is text or blocks, as neutral ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from inferd.chat import ChatMessage, ToolCall
from inferd.protocol import cut
from inferd_runtime.server.dialects.reading import (
    MAX_SHOWN,
    as_kind,
    check_all_arguments,
    check_means_nothing,
    invalid,
    not_supported,
)

B = TypeVar("B")
BETWEEN_BLOCKS = "\n"
ERROR_PREFIX = "Error: "
"""What a tool's result begins with that is an error: chat templates have no other place for that."""
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]


class CacheControl(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a prefix ends that should be cached. All prefixes are cached here, so that it says nothing new."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = "5m"


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text."""

    text: str
    type: Literal["text"] = "text"
    cache_control: CacheControl | None = None
    citations: Any = None


class ThinkingBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model thought. The signature is not checked: nothing depends on it."""

    thinking: str
    type: Literal["thinking"] = "thinking"
    signature: str | None = ""


class ToolUseBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that the model made."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    name: Name
    input: dict[str, Any]
    type: Literal["tool_use"] = "tool_use"
    cache_control: CacheControl | None = None
    caller: Any = None
    toolset_name: Any = None


class ToolResultBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a tool answered."""

    tool_use_id: str
    type: Literal["tool_result"] = "tool_result"
    content: str | list[Any] | None = None
    is_error: bool | None = False
    cache_control: CacheControl | None = None
    toolset_name: Any = None


class AnthropicMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Any]
    clear_at: None = None
    output_config: None = None


Block = TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock
KINDS: Mapping[str, Mapping[str, type[Any]]] = {
    "user": {"text": TextBlock, "tool_result": ToolResultBlock},
    "assistant": {"text": TextBlock, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
    "system": {"text": TextBlock},
    "tool_result": {"text": TextBlock},
}
"""The blocks that the content of each role, and of a tool's result, may have."""
MEANS_NOTHING: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "text": {"citations": (None, [])},
    "tool_use": {"caller": (None, {"type": "direct"}), "toolset_name": (None,)},
    "tool_result": {"toolset_name": (None,)},
}


def read_text(content: str | Sequence[Any], role: str, at: str) -> str:
    """Return the text of content that may have text blocks alone. Raises InvalidRequest that names the block."""
    return _joined([block for block in read_blocks(content, role, at) if isinstance(block, TextBlock)])


def read_blocks(content: str | Sequence[Any], role: str, at: str) -> list[Block]:
    """Return the blocks of a role's content. Raises InvalidRequest that names the block or its field."""
    if isinstance(content, str):
        return [TextBlock(content)]
    return [_block(value, role, f"{at}[{number}]") for number, value in enumerate(content)]


def _block(value: Any, role: str, at: str) -> Block:
    if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str):
        raise invalid(f"{at}.type", f"{at}.type: a block is an object with a type")
    if kind not in KINDS[role]:
        raise not_supported(f"{at}.type", f"blocks of type {cut(kind, MAX_SHOWN)!r} in content of {role} are")
    block: Block = as_kind(value, KINDS[role][kind], at)
    check_means_nothing(block, MEANS_NOTHING.get(kind, {}), f"{at}.")
    return block


def read_messages(values: Sequence[Any]) -> list[ChatMessage]:
    """Return a conversation; messages of one role in a row are one. Raises InvalidRequest that names a field."""
    turns: list[list[ChatMessage]] = []
    called: dict[str, str] = {}
    for number, value in enumerate(values):
        at = f"messages[{number}]"
        message: AnthropicMessage = as_kind(value, AnthropicMessage, at)
        for one in _read_message(message, called, f"{at}.content"):
            if turns and _goes_on(turns[-1][-1], one):
                turns[-1].append(one)
            else:
                turns.append([one])
    messages = [_merged(turn) for turn in turns]
    check_all_arguments(call.arguments for message in messages for call in message.tool_calls)
    return messages


def _read_message(message: AnthropicMessage, called: dict[str, str], at: str) -> Iterator[ChatMessage]:
    """Yield what a message becomes: results of tools are messages of their own. ``called``: tools by their calls."""
    blocks = read_blocks(message.content, message.role, at)
    if message.role != "user":
        called.update({block.id: block.name for block in blocks if isinstance(block, ToolUseBlock)})
        yield _message(message.role, blocks)
        return
    texts: list[Block] = []
    for number, block in enumerate(blocks):
        if isinstance(block, ToolResultBlock):
            if texts:
                yield _message("user", texts)
                texts = []
            yield _result(block, called, f"{at}[{number}]")
        else:
            texts.append(block)
    if texts or not blocks:
        yield _message("user", texts)


def _message(role: Literal["user", "assistant", "system"], blocks: Sequence[Block]) -> ChatMessage:
    return ChatMessage(
        role,
        _joined([block for block in blocks if isinstance(block, TextBlock)]),
        BETWEEN_BLOCKS.join(block.thinking for block in blocks if isinstance(block, ThinkingBlock) and block.thinking),
        [
            ToolCall(block.id, block.name, json.dumps(block.input, ensure_ascii=False))
            for block in blocks
            if isinstance(block, ToolUseBlock)
        ],
    )


def _result(block: ToolResultBlock, called: Mapping[str, str], at: str) -> ChatMessage:
    if block.tool_use_id not in called:
        raise invalid(
            f"{at}.tool_use_id",
            f"{at}.tool_use_id: no tool_use block before it has the id {cut(block.tool_use_id, MAX_SHOWN)!r}",
        )
    text = read_text(block.content or "", "tool_result", f"{at}.content")
    content = ERROR_PREFIX + text if block.is_error else text
    return ChatMessage("tool", content, tool_call_id=block.tool_use_id, name=called[block.tool_use_id])


def _goes_on(last: ChatMessage, message: ChatMessage) -> bool:
    return last.role == message.role and last.role != "tool"


def _merged(turn: Sequence[ChatMessage]) -> ChatMessage:
    """Return the messages of one role as one: joined at once, for there may be many, and long ones."""
    if len(turn) == 1:
        return turn[0]
    return ChatMessage(
        turn[0].role,
        BETWEEN_BLOCKS.join(message.content for message in turn if message.content),
        BETWEEN_BLOCKS.join(message.reasoning for message in turn if message.reasoning),
        [call for message in turn for call in message.tool_calls],
    )


def _joined(blocks: Sequence[TextBlock]) -> str:
    return BETWEEN_BLOCKS.join(block.text for block in blocks)
