"""The part of the protocol that is about passes beside ``forward``: a prompt's log-probabilities, and embeddings."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.operations import operation
from inferd.probes import TokenLogprob


@dataclass(frozen=True)
class TokenLogprobs:
    """One entry per token, and the context's new length."""

    tokens: list[TokenLogprob]
    length: int


@dataclass(frozen=True)
class Embeddings:
    """One entry per input: vectors of ``size`` numbers, packed behind each other as in ``floats.py``."""

    size: int
    packed: list[str]


@operation("prompt_logprobs", TokenLogprobs)
@dataclass(frozen=True)
class PromptLogprobs:
    """Append ``tokens`` and tell each one's log-probability given all before it, with the ``top`` most likely ones.

    The last token stays pending. ``adapter``: as in ``generate.start``.
    """

    context: int
    tokens: list[int]
    top: int = 0
    adapter: str = ""


@operation("model.embed", Embeddings)
@dataclass(frozen=True)
class Embed:
    """Final hidden states of ``texts`` or of ``tokens`` (one of them). ``pooling``: mean | last | cls | none.

    ``adapter``: as in ``generate.start``.
    """

    texts: list[str] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    pooling: str = "mean"
    normalize: bool = True
    model: str = ""
    adapter: str = ""
