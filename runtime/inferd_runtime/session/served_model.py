"""A served model: everything a session needs to turn operations into engine calls."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from inferd.protocol import ChatFormat, ModelInfo, PackedVocabulary
from inferd_grammar import GrammarCompiler
from inferd_grammar.healing import Healer
from inferd_runtime.draft_models.models import DraftModels
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.reasoning import ReasoningMarkTokens
from inferd_runtime.engine.jobs.text import TextTokenizer
from inferd_runtime.engine.jobs.timeline import GenerationClock
from inferd_runtime.models.chat import ChatTemplate
from inferd_runtime.models.chat_formats import reasoning_of
from inferd_runtime.models.written_calls import written_format
from inferd_runtime.session.generation.program_turns import ProgramTurns
from inferd_runtime.speculation.corpus import Corpora
from inferd_runtime.speculation.words import WordIndex


class ChatTokenizer(TextTokenizer, ChatTemplate, Protocol):
    """A tokenizer with a chat template. ``chat_template``: its text, "" without. ``special``: special tokens by their roles."""

    chat_template: str
    special: dict[str, str]

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template asks for."""

    def encode_rendered(self, text: str) -> list[int]:
        """Return the ids of what ``render`` returned: unbroken names of control tokens are these tokens, all else is text."""


@dataclass(frozen=True)
class Lookups:
    """Shared by the sources that look tokens up: the thread that builds large indices (None: they are built at once), and the
    outputs of each tenant's generations that use the corpus.
    """

    builder: Executor | None = None
    corpora: Corpora = field(default_factory=Corpora)


@dataclass(frozen=True)
class ServedModel:
    """One model with its engine, tokenizer, grammar compiler and LoRA adapters.

    ``auto_speculation``: whether requests that leave it to the operator are drafted for. ``drafts``: its draft models.
    ``turns``: its generations that wait for their programs. ``reasoning_marks``: those that were used last, as tokens.
    ``trees``: whether the server's own sources may draft trees. ``tool_format``: how it writes calls of tools; "auto": as its
    chat template says.
    """

    info: ModelInfo
    engine: Engine
    tokenizer: ChatTokenizer
    grammars: GrammarCompiler
    adapters: AdapterSet
    auto_speculation: bool = True
    drafts: DraftModels | None = None
    trees: bool = True
    lookups: Lookups = field(default_factory=Lookups)
    generations: GenerationClock = field(default_factory=GenerationClock)
    turns: ProgramTurns = field(default_factory=ProgramTurns)
    tool_format: str = "auto"
    reasoning_marks: dict[tuple[str, str], ReasoningMarkTokens] = field(default_factory=dict)

    @cached_property
    def longest_token(self) -> int:
        """Return the bytes of the longest token, which are at least as many as its characters."""
        return max(map(len, self.grammars.table.tokens), default=1)

    @cached_property
    def chat_format(self) -> ChatFormat:
        """Return what the chat template says about tools and reasoning. Raises InvalidRequest for an invalid template."""
        template = self.tokenizer.chat_template
        marks = reasoning_of(template)
        written = written_format(self.tokenizer) if self.tool_format == "auto" else self.tool_format
        read = self.tokenizer.template_variables if template else frozenset()
        begin, end = (self.tokenizer.encode(mark, special=True) for mark in marks[:2])
        return ChatFormat(
            "tools" in read, written, marks.begin, marks.end, bool(template), begin, end, "documents" in read
        )

    @cached_property
    def _special_texts(self) -> dict[int, bytes]:
        return {token: name.encode() for name, token in self.grammars.table.special_names.items()}

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes of a token of the vocabulary: a special token's are its name."""
        return self.grammars.table.tokens[token] or self._special_texts.get(token, b"")

    @cached_property
    def vocabulary(self) -> PackedVocabulary:
        """Return the bytes of all tokens."""
        pieces = [self.bytes_of(token) for token in range(self.info.vocab_size)]
        lengths = np.fromiter(map(len, pieces), np.dtype("<u4"), len(pieces)).tobytes()
        special = self.grammars.table.special_names
        return PackedVocabulary(b"".join(pieces), lengths, list(special), list(special.values()))

    @cached_property
    def words(self) -> WordIndex:
        """Return what finds words in texts."""
        return WordIndex(self.grammars.table.tokens, self.tokenizer.encode)

    @cached_property
    def healer(self) -> Healer:
        """Return what cuts prompts back that end inside a token."""
        return Healer(self.grammars.table)
