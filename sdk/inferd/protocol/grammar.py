"""Grammars: the constraint of an output, and ``grammar.*`` for a program's own loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from inferd.protocol.operations import Done, operation

MAX_ACCEPT = 32
"""The most tokens that one ``grammar.accept`` takes, for every one may cost a mask; the SDK splits longer lists."""


@dataclass(frozen=True)
class ConstraintSpec:
    """A grammar for the output. ``kind`` says which, and what of the rest it uses:

    json_schema (``value``: the schema's text; ``mode``: strict | best_effort), any_json, regex, lark and gbnf (``value``),
    choice (``options``), tagged (``tags``), all_of (``members``: all of them), exact (``members``: one, whose masks allow
    every split of the text into tokens), prefixed (``value``, then text of ``members``: at most one).
    """

    kind: str
    value: str = ""
    options: list[str] = field(default_factory=list)
    mode: str = "strict"
    members: list[ConstraintSpec] = field(default_factory=list)
    tags: list[TagConstraint] = field(default_factory=list)

    @property
    def best_effort(self) -> bool:
        """True if a part of it is checked only when the text is finished."""
        return self.mode == "best_effort" or any(member.best_effort for member in self.members)


@dataclass(frozen=True)
class TagConstraint:
    """``begin``, then text of ``content``, then ``end``. The names of special tokens stand for these tokens."""

    begin: str
    content: ConstraintSpec
    end: str


@dataclass(frozen=True)
class CheckedKeyword:
    """A keyword that masks do not hold, and its JSON pointer in the schema: the finished text is checked for it."""

    keyword: str
    pointer: str


@dataclass(frozen=True)
class CompiledGrammar:
    """A grammar that is ready for matchers. ``may_end``: its text may be empty. ``checked``: what masks do not hold."""

    grammar: int
    may_end: bool
    checked: list[CheckedKeyword] = field(default_factory=list)


@dataclass(frozen=True)
class MatcherState:
    """``depth`` tokens are held, end-of-text included. ``accepted``: how many of those given were taken."""

    matcher: int
    depth: int
    may_end: bool
    ended: bool
    accepted: int = 0


@dataclass(frozen=True)
class AllowedTokens:
    """The tokens that may come next: their ids in ``tokens`` where they are few, else ``bits`` (see ``masks.py``)."""

    tokens: list[int] = field(default_factory=list)
    bits: str = ""


@dataclass(frozen=True)
class Forced:
    """What any continuation begins with: ``data`` (base64: it may end inside a character), and as ``tokens`` the part
    whose split into tokens is certain.
    """

    data: str
    tokens: list[int]


@operation("grammar.compile", CompiledGrammar)
@dataclass(frozen=True)
class CompileGrammar:
    """Compile a constraint for a model ("" is the default model)."""

    constraint: ConstraintSpec
    model: str = ""


@operation("grammar.matcher", MatcherState)
@dataclass(frozen=True)
class OpenMatcher:
    """A matcher at the start of the grammar's text."""

    grammar: int


@operation("grammar.accept", MatcherState)
@dataclass(frozen=True)
class AcceptTokens:
    """Take tokens up to the first one that is not legal, at most ``MAX_ACCEPT``."""

    matcher: int
    tokens: list[int]


@operation("grammar.mask", AllowedTokens)
@dataclass(frozen=True)
class GetMask:
    """Ask for the tokens that may come next."""

    matcher: int


@operation("grammar.rollback", MatcherState)
@dataclass(frozen=True)
class RollbackMatcher:
    """Undo the last ``count`` tokens."""

    matcher: int
    count: int


@operation("grammar.forced", Forced)
@dataclass(frozen=True)
class GetForced:
    """Ask for the text that must come next."""

    matcher: int


@operation("grammar.fork", MatcherState)
@dataclass(frozen=True)
class ForkMatcher:
    """An independent matcher in the same state."""

    matcher: int


@operation("grammar.release", Done)
@dataclass(frozen=True)
class ReleaseGrammar:
    """Give a grammar or a matcher back. Matchers of a released grammar go on."""

    handle: int
