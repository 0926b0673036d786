"""A served model: everything a session needs to turn operations into engine calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from inferd.protocol import ModelInfo
from inferd_grammar import GrammarCompiler
from inferd_runtime.drafting.models import DraftModels
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.text import TextTokenizer
from inferd_runtime.models.chat import ChatTemplate


class ChatTokenizer(TextTokenizer, ChatTemplate, Protocol):
    """A tokenizer with a chat template."""


@dataclass(frozen=True)
class ServedModel:
    """One model with its engine, tokenizer, grammar compiler and LoRA adapters.

    ``auto_speculation``: whether requests that leave it to the operator are drafted for. ``drafts``: its draft models.
    """

    info: ModelInfo
    engine: Engine
    tokenizer: ChatTokenizer
    grammars: GrammarCompiler
    adapters: AdapterSet
    auto_speculation: bool = True
    drafts: DraftModels | None = None
