"""A transformers tokenizer behind the few calls that the runtime makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jinja2 import TemplateError
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from inferd.protocol import InvalidRequest


class HubTokenizer:
    """Encodes, decodes and streams with the tokenizer's own Rust backend. Raises InvalidRequest for a slow tokenizer."""

    def __init__(self, tokenizer: Any, eos_tokens: Sequence[int]) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise InvalidRequest("this model has no fast tokenizer (tokenizer.json)")
        self.eos_tokens = tuple(eos_tokens)
        self.json = tokenizer.backend_tokenizer.to_str()
        self._hub = tokenizer
        self._special = Tokenizer.from_str(self.json)
        self._special.no_truncation()
        self._special.no_padding()
        self._plain = Tokenizer.from_str(self._special.to_str())
        self._plain.encode_special_tokens = True

    @property
    def template(self) -> bool:
        """True if the model has a chat template."""
        return bool(self._hub.chat_template)

    def render(self, messages: Sequence[dict[str, str]], *, cue: bool) -> str:
        """Return the chat template's text for the messages, with the assistant's cue if asked for."""
        if not self.template:
            raise InvalidRequest("this model has no chat template: use append() with text or tokens")
        try:
            return str(self._hub.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=cue))
        except TemplateError as error:
            raise InvalidRequest(f"this model's chat template refuses the messages: {error}") from error

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
