"""The models that a runtime serves, and their tokenizers."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass

from inferd.protocol import Detokenize, InvalidRequest, ListModels, ModelInfo, NotFound, Tokenize
from inferd.tokens import checked_tokens
from inferd.transport import Transport, current_transport


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, as one model does it. Made by :attr:`Model.tokenizer`; the work is done in the
    runtime.
    """

    model: str
    transport: Transport

    async def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of ``text``; nothing is added around it.

        The names of special tokens in the text are read as plain text, unless ``special``: never pass that with text
        that you did not write yourself.
        """
        if not isinstance(text, str):
            raise InvalidRequest(f"text must be a string, not {type(text).__name__}")
        reply = await self.transport.call(Tokenize(text, self.model, special))
        return list(reply.tokens)

    async def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of ``tokens``. Special tokens are left out unless ``special``."""
        reply = await self.transport.call(Detokenize(checked_tokens("tokens", tokens), self.model, special))
        text: str = reply.text
        return text


@dataclass(frozen=True)
class Model:
    """A model that the runtime serves. Sizes in tokens.

    ``max_context`` is the longest context, ``page_size`` the tokens per page of the KV cache, ``eos_tokens`` the
    ids that end a text, ``fingerprint`` a hash of the weights.
    """

    info: ModelInfo
    tokenizer: Tokenizer

    @classmethod
    async def list(cls) -> builtins.list[Model]:
        """All models that are served, the default one first. Raises Unavailable when not connected."""
        transport = current_transport()
        reply = await transport.call(ListModels())
        return [cls(info, Tokenizer(info.name, transport)) for info in reply.models]

    @classmethod
    async def load(cls, name: str = "") -> Model:
        """The model of that name; "" is the default one. Raises NotFound, which names the models that are served."""
        models = await cls.list()
        for model in models:
            if not name or model.name == name:
                return model
        served = ", ".join(model.name for model in models)
        raise NotFound(f"no model {name!r}; served: {served or 'none'}")

    @property
    def name(self) -> str:
        """Its name, as ``Context(model)`` takes it."""
        return self.info.name

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""
        return self.info.vocab_size

    @property
    def max_context(self) -> int:
        """The longest context."""
        return self.info.max_context

    @property
    def page_size(self) -> int:
        """Tokens per page of the KV cache."""
        return self.info.page_size

    @property
    def eos_tokens(self) -> tuple[int, ...]:
        """The ids that end a text."""
        return tuple(self.info.eos_tokens)

    @property
    def fingerprint(self) -> str:
        """A hash of the weights and the tokenizer."""
        return self.info.fingerprint
