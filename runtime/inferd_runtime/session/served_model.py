"""A served model: everything a session needs to turn operations into engine calls."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from inferd.protocol import ModelInfo
from inferd_grammar import GrammarCompiler
from inferd_grammar.healing import Healer
from inferd_runtime.draft_models.models import DraftModels
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.text import TextTokenizer
from inferd_runtime.models.chat import ChatTemplate
from inferd_runtime.speculation.corpus import Corpora


class ChatTokenizer(TextTokenizer, ChatTemplate, Protocol):
    """A tokenizer with a chat template."""


@dataclass(frozen=True)
class Lookups:
    """What the sources share that look things up: the thread that builds large indices (None: nobody waits, they are built at
    once), and what each tenant's generations wrote, for those that ask for it.
    """

    builder: Executor | None = None
    corpora: Corpora = field(default_factory=Corpora)


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
    lookups: Lookups = field(default_factory=Lookups)

    @cached_property
    def healer(self) -> Healer:
        """Cuts prompts back that end inside a token."""
        return Healer(self.grammars.table)
