"""``Grammar``, ``Matcher``, constraints, and the schemas that make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Protocol, runtime_checkable

from inferd import constraints, schema
from inferd.masks import unpack_bits
from inferd.protocol import (
    MAX_ACCEPT,
    AcceptTokens,
    CompileGrammar,
    ConstraintError,
    GetMask,
    OpenMatcher,
    ReleaseGrammar,
    check_constraint,
)
from inferd.schema import OutputConstraint
from inferlet.blocking import call, open_handle
from inferlet.model import Model, Tokenizer
from inferlet.run_lengths import runs_of

RULE = "::="
"""Grammars with this sign are llama.cpp's (GBNF), others Lark."""


class Grammar:
    """What a text has to be. Made by one of the constructors below; compiled when a matcher is made."""

    def __init__(self, constraint: OutputConstraint) -> None:
        self.constraint = constraint

    @classmethod
    def from_json_schema(cls, schema_text: str) -> Grammar:
        """Return the grammar of JSON that is valid under a schema, which is given as text."""
        return cls(schema.JsonSchema(schema_text))

    @classmethod
    def json(cls) -> Grammar:
        """Return the grammar of any JSON."""
        return cls(schema.AnyJson())

    @classmethod
    def from_regex(cls, pattern: str) -> Grammar:
        """Return the grammar of a regular expression."""
        return cls(schema.Regex(pattern))

    @classmethod
    def from_ebnf(cls, ebnf: str) -> Grammar:
        """Return a context-free grammar: GBNF (``root ::= ...``), or Lark (``start: ...``)."""
        return cls(constraints.Gbnf(ebnf) if RULE in ebnf else constraints.Lark(ebnf))


class Matcher:
    """A place in a text of a grammar."""

    def __init__(self, grammar: Grammar, tokenizer: Tokenizer | None = None) -> None:
        tokenizer = tokenizer or Model.load().tokenizer()
        self.constraint = grammar.constraint
        self.port = tokenizer.port
        self._size = tokenizer.info.vocab_size
        check_constraint(grammar.constraint.constraint)
        request = CompileGrammar(grammar.constraint.constraint, tokenizer.info.name)
        self._grammar: int = open_handle(self.port, request).grammar
        self._matcher: int = 0
        self._ended = False
        self.at_start = True
        self._open()

    def accept_tokens(self, token_ids: list[int]) -> None:
        """Take tokens. Raises ConstraintError for one that is not legal here; those before it are taken."""
        self.at_start = self.at_start and not token_ids
        for first in range(0, len(token_ids), MAX_ACCEPT):
            part = list(token_ids[first : first + MAX_ACCEPT])
            state = call(self.port, AcceptTokens(self._matcher, part))
            self._ended = state.ended
            if state.accepted < len(part):
                raise ConstraintError(f"the grammar does not allow the token {part[state.accepted]} here")

    def next_token_logit_mask(self) -> list[int]:
        """Return the tokens that may come next, as run lengths over the vocabulary."""
        reply = call(self.port, GetMask(self._matcher))
        allowed = int.from_bytes(unpack_bits(reply.bits), "little")
        for token in reply.tokens:
            allowed |= 1 << token
        return runs_of(allowed, self._size)

    @property
    def is_terminated(self) -> bool:
        """True if the text has ended: end-of-text was accepted."""
        return self._ended

    def reset(self) -> None:
        """Go back to the start of the text."""
        call(self.port, ReleaseGrammar(self._matcher))
        self._open()

    def _open(self) -> None:
        state = open_handle(self.port, OpenMatcher(self._grammar))
        self._matcher, self._ended, self.at_start = state.matcher, state.ended, True

    def __del__(self) -> None:
        if getattr(self, "_matcher", 0):
            self.port.abandon([ReleaseGrammar(self._matcher), ReleaseGrammar(self._grammar)])


@runtime_checkable
class Constraint(Protocol):
    """What says before each step which tokens may come: any object with this method."""

    def step(self, accepted: list[int]) -> list[int]:
        """Take note of the tokens that came, and return what may come next as run lengths; empty for all."""


class GrammarConstraint:
    """A constraint by a matcher."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    @classmethod
    def from_grammar(cls, grammar: Grammar, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint of a grammar."""
        return cls(Matcher(grammar, None if model is None else model.tokenizer()))

    @classmethod
    def from_json_schema(cls, schema_text: str, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint of a JSON Schema."""
        return cls.from_grammar(Grammar.from_json_schema(schema_text), model)

    @classmethod
    def json(cls, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint of any JSON."""
        return cls.from_grammar(Grammar.json(), model)

    @classmethod
    def from_regex(cls, pattern: str, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint of a regular expression."""
        return cls.from_grammar(Grammar.from_regex(pattern), model)

    @classmethod
    def from_ebnf(cls, ebnf: str, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint of a context-free grammar."""
        return cls.from_grammar(Grammar.from_ebnf(ebnf), model)

    @property
    def constraint(self) -> OutputConstraint:
        """What it holds a text to. (Not in Pie.)"""
        return self._matcher.constraint

    @property
    def at_start(self) -> bool:
        """True before the first token. (Not in Pie.)"""
        return self._matcher.at_start

    def step(self, accepted: list[int]) -> list[int]:
        """Take note of tokens, and return what may come next."""
        if accepted:
            self._matcher.accept_tokens(accepted)
        return self._matcher.next_token_logit_mask()


@runtime_checkable
class Schema(Protocol):
    """What makes a constraint: any object with this method, which may take a model."""

    def build_constraint(self, model: Model) -> Constraint:
        """Return a constraint at the start of a text."""


def built(schema: Schema, model: Model) -> Constraint:
    """Return a schema's constraint, whether its method takes the model or, as in Pie's later programs, nothing."""
    build: Callable[..., Constraint] = schema.build_constraint
    return build(model) if signature(build).parameters else build()


@dataclass(frozen=True)
class JsonSchema:
    """JSON that is valid under a schema, which is given as text."""

    schema: str

    def build_constraint(self, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint."""
        return GrammarConstraint.from_json_schema(self.schema, model)


@dataclass(frozen=True)
class AnyJson:
    """Any JSON."""

    def build_constraint(self, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint."""
        return GrammarConstraint.json(model)


@dataclass(frozen=True)
class Regex:
    """Text of a regular expression."""

    pattern: str

    def build_constraint(self, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint."""
        return GrammarConstraint.from_regex(self.pattern, model)


@dataclass(frozen=True)
class Ebnf:
    """Text of a context-free grammar: GBNF, or Lark."""

    source: str

    def build_constraint(self, model: Model | None = None) -> GrammarConstraint:
        """Return the constraint."""
        return GrammarConstraint.from_ebnf(self.source, model)
