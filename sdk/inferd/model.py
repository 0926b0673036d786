"""``Model`` and ``Tokenizer``: the models that a runtime serves."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, overload

from inferd.protocol import (
    Detokenize,
    Embed,
    Embeddings,
    GetVocabulary,
    InvalidRequest,
    ListModels,
    ModelInfo,
    NotFound,
    Tokenize,
)
from inferd.protocol.floats import unpack_floats
from inferd.protocol.passes import check_embed
from inferd.protocol.texts import checked_text
from inferd.protocol.tokens import checked_tokens
from inferd.transport import Transport, current_port
from inferd.vocabulary import TokenVocabulary

Vector: TypeAlias = list[float]


@dataclass(frozen=True)
class Tokenizer:
    """Text to token ids and back, as one model does it. Made by :attr:`Model.tokenizer`; the work is done in the
    runtime.
    """

    model: str
    transport: Transport
    vocabularies: dict[str, TokenVocabulary] = field(default_factory=dict, repr=False, compare=False)

    async def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of ``text``; nothing is added around it.

        The names of special tokens in the text are read as plain text, unless ``special``: never pass that with text
        that you did not write yourself.
        """
        reply = await self.transport.call(Tokenize(checked_text("text", text), self.model, special))
        return list(reply.tokens)

    async def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ``tokens``. Special tokens are left out unless ``special``."""
        request = Detokenize(checked_tokens("tokens", tokens), self.model, special)
        reply = await self.transport.call(request)
        text: str = reply.text
        return text

    async def vocabulary(self) -> TokenVocabulary:
        """Return the bytes of every token, as one value. It is fetched once per connection."""
        known = self.vocabularies.get(self.model)
        if known is None:
            known = self.vocabularies[self.model] = TokenVocabulary(
                await self.transport.call(GetVocabulary(self.model))
            )
        return known


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
        """Return all models that are served, the default one first. Raises Unavailable when not connected."""
        port = current_port()
        reply = await port.transport.call(ListModels())
        return [cls(info, Tokenizer(info.name, port.transport, port.vocabularies)) for info in reply.models]

    @classmethod
    async def load(cls, name: str = "") -> Model:
        """Return the model of that name; "" is the default one. Raises NotFound, which names the models that are served."""
        models = await cls.list()
        for model in models:
            if not name or model.name == name:
                return model
        served = ", ".join(model.name for model in models)
        raise NotFound(f"no model {name!r}; served: {served or 'none'}")

    @overload
    async def embed(
        self,
        inputs: Sequence[str] | Sequence[Sequence[int]],
        *,
        pooling: Literal["none"],
        normalize: bool = ...,
        adapter: str = ...,
    ) -> builtins.list[builtins.list[Vector]]: ...

    @overload
    async def embed(
        self,
        inputs: Sequence[str] | Sequence[Sequence[int]],
        *,
        pooling: Literal["mean", "last", "cls"] = ...,
        normalize: bool = ...,
        adapter: str = ...,
    ) -> builtins.list[Vector]: ...

    async def embed(
        self,
        inputs: Sequence[str] | Sequence[Sequence[int]],
        *,
        pooling: Literal["mean", "last", "cls", "none"] = "mean",
        normalize: bool = True,
        adapter: str = "",
    ) -> builtins.list[Vector] | builtins.list[builtins.list[Vector]]:
        """Return a vector per text, or per list of token ids: the model's hidden states after its final norm.

        ``pooling``: the ``mean`` over all tokens, the ``last`` token's, the first one's (``cls``), or ``none``: a list
        with every token's. ``normalize`` scales each vector to length 1. The attention stays causal, as the model was
        trained: a token's state knows what stands before it only, and so ``cls`` knows the first token alone. Texts
        begin as a context does, with the token that opens a text where the model has one. ``adapter`` is the name of a
        loaded LoRA adapter to compute with.

        Raises InvalidRequest, which names the argument, for empty or mixed inputs, and LimitExceeded for inputs longer
        than the model's context or more numbers than one reply carries.
        """
        if not isinstance(normalize, bool):
            raise InvalidRequest(f"normalize must be True or False, not {normalize!r}")
        if not isinstance(adapter, str):
            raise InvalidRequest(f"adapter must be the name of an adapter, not {adapter!r}")
        texts, tokens = _inputs(inputs)
        request = Embed(texts, tokens, pooling, normalize, self.name, adapter)
        check_embed(request)
        reply: Embeddings = await self.tokenizer.transport.call(request)
        vectors = [_vectors(unpack_floats(packed), reply.size) for packed in reply.packed]
        return vectors if pooling == "none" else [each[0] for each in vectors]

    @property
    def name(self) -> str:
        """Its name, as ``Context(model)`` takes it."""
        return self.info.name

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
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


def _inputs(inputs: Sequence[Any]) -> tuple[list[str], list[list[int]]]:
    """Return the inputs as texts, or as lists of token ids. Raises InvalidRequest for anything else, and for both at once."""
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Sequence) or not inputs:
        raise InvalidRequest("inputs must be a list of texts, or a list of lists of token ids, and hold at least one")
    texts: list[str] = []
    tokens: list[list[int]] = []
    for at, each in enumerate(inputs):
        if isinstance(each, str):
            texts.append(each)
        else:
            tokens.append(checked_tokens(f"inputs[{at}]", each))
    if texts and tokens:
        raise InvalidRequest("inputs must be all texts or all lists of token ids")
    return texts, tokens


def _vectors(values: Vector, size: int) -> list[Vector]:
    return [values[at : at + size] for at in range(0, len(values), size)]
