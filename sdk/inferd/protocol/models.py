"""``model.*``: which models are served, and their tokenizers."""

from __future__ import annotations

from dataclasses import dataclass

from inferd.protocol.operations import operation
from inferd.protocol.tokens import check_ids


@dataclass(frozen=True)
class ModelInfo:
    """A model that is served. Sizes in tokens."""

    name: str
    vocab_size: int
    max_context: int
    page_size: int
    eos_tokens: list[int]
    fingerprint: str


@dataclass(frozen=True)
class Models:
    """The models that are served; the first is the default."""

    models: list[ModelInfo]


@dataclass(frozen=True)
class Tokens:
    """Token ids."""

    tokens: list[int]


@dataclass(frozen=True)
class Text:
    """Decoded text."""

    text: str


@operation("model.list", Models)
@dataclass(frozen=True)
class ListModels:
    """Ask for the served models."""


@operation("model.tokenize", Tokens)
@dataclass(frozen=True)
class Tokenize:
    """Text to token ids. Special tokens in the text are read as text unless ``special``; ``start``: with what begins a text."""

    text: str
    model: str = ""
    special: bool = False
    start: bool = False


@operation("model.detokenize", Text)
@dataclass(frozen=True)
class Detokenize:
    """Token ids to text; special tokens are left out unless ``special``."""

    tokens: list[int]
    model: str = ""
    special: bool = False


@dataclass(frozen=True)
class TokenPieces:
    """The bytes of tokens, each as base64: a token may hold part of a character."""

    pieces: list[str]


@operation("model.token_bytes", TokenPieces)
@dataclass(frozen=True)
class TokenBytes:
    """Ask what each of some tokens stands for; a special token stands for its name."""

    tokens: list[int]
    model: str = ""


@dataclass(frozen=True)
class PackedVocabulary:
    """The bytes of all tokens behind each other, in the order of their ids; ``lengths``: uint32, little-endian, one per token.

    ``special_names``, of the tokens ``special_tokens``, are what these stand for, here as in ``model.token_bytes``.
    """

    data: bytes
    lengths: bytes
    special_names: list[str]
    special_tokens: list[int]


@operation("model.vocabulary", PackedVocabulary)
@dataclass(frozen=True)
class GetVocabulary:
    """Ask what every token of a model stands for."""

    model: str = ""


@dataclass(frozen=True)
class TokenizerInfo:
    """What others need to use a tokenizer as the runtime does. ``special``: its special tokens by their roles (``bos_token``,
    ``eos_token``); ``chat_template``: its text, "" for none; ``start_tokens``: what is put before a text.
    """

    special: dict[str, str]
    chat_template: str
    start_tokens: list[int]


@operation("model.tokenizer", TokenizerInfo)
@dataclass(frozen=True)
class GetTokenizerInfo:
    """Ask about a model's tokenizer."""

    model: str = ""


def check_detokenize(request: Detokenize | TokenBytes) -> None:
    """Raises InvalidRequest for a negative token id."""
    check_ids("tokens", request.tokens)
