"""A tokenizer without training: token i is byte i, behind them the end of text. For tests and tools."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import ClassVar

from inferd_runtime.models.control_names import ControlNames
from inferd_runtime.models.jinja_template import JinjaTemplate, RenderBudget
from inferd_runtime.models.template_input import BREAK, TemplateInput

END = 256
TURN = 257
VOCAB_SIZE = 258
TEMPLATE = (
    "{% if tools %}<turn>tools:{{ tools | tojson }}<end>{% endif %}"
    "{% for message in messages %}<turn>{{ message.role }}:{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant:{% endif %}"
)


class ByteTokenizer:
    """Bytes as tokens, ``<end>`` as end of text, ``<turn>`` before every chat message."""

    eos_tokens: tuple[int, ...] = (END,)
    chat_template = TEMPLATE
    names: ClassVar[dict[str, int]] = {"<end>": END, "<turn>": TURN}
    special: dict[str, str]

    def __init__(self) -> None:
        self.special = {"eos_token": "<end>"}

    def encode(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """Return the UTF-8 bytes; with ``special`` the two names are one token each."""
        if special:
            for name, token in self.names.items():
                before, found, after = text.partition(name)
                if found:
                    return [*self.encode(before, special=True), token, *self.encode(after, special=True)]
        return list(text.encode())

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of the bytes."""
        named = {token: name.encode() for name, token in self.names.items()} if special else {}
        return b"".join(named.get(token, bytes([token]) if token < END else b"") for token in tokens).decode(
            "utf-8", "replace"
        )

    def stream(self) -> Callable[[int], str]:
        """Return a decoder for one id at a time."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda token: decoder.decode(bytes([token]) if token < END else b"")

    @property
    def template_variables(self) -> frozenset[str]:
        """Return the variables that the chat template asks for."""
        return JINJA.variables

    def render(self, conversation: TemplateInput, budget: RenderBudget) -> str:
        """Return ``<turn>role:content<end>`` per message, with the names of the two tokens broken in contents."""
        return JINJA.render(NAMES.guarded(conversation), budget)

    def encode_rendered(self, text: str) -> list[int]:
        """Return the bytes of a rendered text, with one token for each name that the template wrote."""
        encoded: list[int] = []
        for part in NAMES.split(text):
            encoded += [self.names[part]] if part in self.names else part.replace(BREAK, "").encode()
        return encoded

    @staticmethod
    def tokenizer_json() -> str:
        """Return the vocabulary as a tokenizer.json text, for the grammar's token table."""
        shown = _byte_names()
        vocab = {shown[byte]: byte for byte in range(256)} | ByteTokenizer.names
        added = [
            {
                "id": token,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for name, token in ByteTokenizer.names.items()
        ]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return json.dumps(
            {
                "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
                "model": {
                    "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                    "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": [],
                },
            }
        )  # fmt: skip


NAMES = ControlNames(ByteTokenizer.names)
JINJA = JinjaTemplate(TEMPLATE, {})


def _byte_names() -> dict[int, str]:
    """Return GPT-2's printable characters for bytes (Radford et al. 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    names = {byte: chr(byte) for byte in printable}
    spare = (byte for byte in range(256) if byte not in names)
    names.update({byte: chr(256 + offset) for offset, byte in enumerate(spare)})
    return names
