"""A model's tokenizer behind the few calls that the runtime makes. Of transformers only the chat templates are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers.utils.chat_template_utils import render_jinja_template

from inferd.protocol import InvalidRequest


class HubTokenizer:
    """Encodes, decodes and streams with a tokenizer's own Rust backend, and renders its chat template.

    ``json``: its tokenizer.json. ``chat_template`` "" is none; ``special``: the tokens that the template can name.
    """

    def __init__(self, json: str, eos_tokens: Sequence[int], chat_template: str, special: Mapping[str, str]) -> None:
        self.json = json
        self.eos_tokens = tuple(eos_tokens)
        self.chat_template = chat_template
        self.special = dict(special)
        self._special = Tokenizer.from_str(json)
        self._special.no_truncation()
        self._special.no_padding()
        self._plain = Tokenizer.from_str(self._special.to_str())
        self._plain.encode_special_tokens = True

    @classmethod
    def of(cls, tokenizer: Any, eos_tokens: Sequence[int]) -> HubTokenizer:
        """Return the tokenizer behind transformers'. Raises InvalidRequest for a slow one."""
        if not getattr(tokenizer, "is_fast", False):
            raise InvalidRequest("this model has no fast tokenizer (tokenizer.json)")
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        return cls(tokenizer.backend_tokenizer.to_str(), eos_tokens, template, tokenizer.special_tokens_map)

    @property
    def template(self) -> bool:
        """True if the model has a chat template."""
        return bool(self.chat_template)

    def render(self, messages: Sequence[dict[str, str]], *, cue: bool) -> str:
        """Return the chat template's text for the messages, with the assistant's cue if asked for."""
        if not self.template:
            raise InvalidRequest("this model has no chat template: use append() with text or tokens")
        render: Any = render_jinja_template
        try:
            texts, _ = render(
                [list(messages)], chat_template=self.chat_template, add_generation_prompt=cue, **self.special
            )
        except TemplateError as error:
            raise InvalidRequest(f"this model's chat template refuses the messages: {error}") from error
        return str(texts[0])

    def encode(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """Return the ids of a text. ``special``: read special tokens as such. ``start``: add the tokens that begin a text."""
        backend = self._special if special else self._plain
        # In a batch, even of one, tokenizers lets other threads run meanwhile; its `encode` does not.
        return list(backend.encode_batch_fast([text], add_special_tokens=start)[0].ids)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids."""
        return str(self._special.decode(list(tokens), skip_special_tokens=not special))

    def stream(self) -> Callable[[int], str]:
        """Return a decoder for one id at a time; "" while a character is incomplete."""
        decoder = DecodeStream(skip_special_tokens=True)
        return lambda token: decoder.step(self._special, token) or ""
