"""Grammars: the constraint of an output, and ``grammar.*`` for a program's own loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from inferd.protocol.carrying import shown
from inferd.protocol.errors import ConstraintError, InvalidRequest, LimitExceeded
from inferd.protocol.operations import Done, operation
from inferd.protocol.ranges import check_whole
from inferd.protocol.tokens import check_ids

MAX_ACCEPT = 32
"""The most tokens that one ``grammar.accept`` takes, for every one may cost a mask; the SDK splits longer lists."""
MAX_FORCED = 4096
"""The most bytes that one ``grammar.forced`` tells of a text that must come next: behind them it is asked again."""
MAX_CHECKED = 500_000
"""Bytes of the keywords that masks do not hold, with their pointers, of one grammar, as JSON."""
MAX_PARTS = 16_384
"""Constraints in one, itself included: looking at so many takes about 50 ms."""
MAX_OPTIONS = 100_000
MAX_NESTING = 16
"""The deepest nesting of constraints."""
MAX_REPEATED = 1000
MODES = ("strict", "best_effort")
USED_FIELDS: Mapping[str, frozenset[str]] = {
    "json_schema": frozenset({"value", "mode", "soft_max_length", "soft_max_items"}),
    "any_json": frozenset(),
    "regex": frozenset({"value"}),
    "lark": frozenset({"value"}),
    "gbnf": frozenset({"value"}),
    "choice": frozenset({"options"}),
    "tagged": frozenset({"tags"}),
    "all_of": frozenset({"members"}),
    "exact": frozenset({"members"}),
    "prefixed": frozenset({"value", "members"}),
    "text": frozenset({"value"}),
    "until": frozenset({"value", "members"}),
    "json_text": frozenset({"members"}),
    "sequence": frozenset({"members"}),
    "any_of": frozenset({"members"}),
    "repeated": frozenset({"members", "least", "most"}),
}
"""By kind of constraint the fields that it uses; the others must keep their defaults."""
LISTS: Mapping[str, tuple[str, str]] = {
    "choice": ("options", "options must hold at least one string"),
    "tagged": ("tags", "tags must hold at least one tag"),
    "all_of": ("members", "constraints must hold at least one constraint"),
    "until": ("value", "the end of a text must not be empty"),
    "sequence": ("members", "constraints must hold at least one constraint"),
    "any_of": ("members", "constraints must hold at least one constraint"),
}
"""By kind of constraint the list that must not be empty, and what is said of one that is."""
MEMBERS: Mapping[str, tuple[int, int]] = {
    "exact": (1, 1),
    "prefixed": (0, 1),
    "repeated": (1, 1),
    "until": (0, 1),
    "json_text": (1, 1),
}
"""By kind of constraint how many members it has at least and at most, where that is bounded."""


@dataclass(frozen=True)
class ConstraintSpec:
    """A grammar for the output. ``kind`` says which, and what of the rest it uses:

    json_schema (``value``: the schema's text; ``mode``: strict | best_effort; ``soft_max_length`` and ``soft_max_items``: ends
    of strings and arrays for which the schema says none, 0 is none), any_json, regex, lark and gbnf (``value``),
    choice (``options``), tagged (``tags``), all_of (``members``: all of them), exact (``members``: one, whose masks allow
    every split of the text into tokens), prefixed (``value``, then text of ``members``: at most one), text (``value``, in which
    names of special tokens stand for these tokens), until (any text, or one of ``members``: at most one, up to the first
    ``value``, and that), json_text (a JSON string whose value is a text of ``members``: one), sequence and any_of
    (``members``: each, or one), repeated (``members``: one, ``least`` to ``most`` times; 0 is any number).
    """

    kind: str
    value: str = ""
    options: list[str] = field(default_factory=list)
    mode: str = "strict"
    members: list[ConstraintSpec] = field(default_factory=list)
    tags: list[TagConstraint] = field(default_factory=list)
    soft_max_length: int = 0
    soft_max_items: int = 0
    least: int = 0
    most: int = 0

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


EMPTY = ConstraintSpec("")
"""A constraint whose fields have their defaults."""
FIELDS = tuple(field.name for field in dataclasses.fields(ConstraintSpec) if field.name != "kind")


def check_constraint(constraint: ConstraintSpec) -> None:
    """Raises InvalidRequest for an unknown kind, a field that the kind does not use or needs, and too much nesting;
    ConstraintError for a best_effort schema inside another constraint, and for too many parts.
    """
    level, parts = [constraint], 0
    for _ in range(MAX_NESTING + 1):
        parts += len(level)
        if parts > MAX_PARTS:
            raise ConstraintError(f"the constraint has more than {MAX_PARTS} parts")
        for each in level:
            check_constraint_fields(each)
        level = [part for each in level for part in (*each.members, *(tag.content for tag in each.tags))]
        if not level:
            return _check_best_effort(constraint)
    raise InvalidRequest(f"constraints are nested more than {MAX_NESTING} deep")


def check_constraint_fields(constraint: ConstraintSpec) -> None:
    """Raises InvalidRequest for what is wrong with a constraint itself, whatever its members are."""
    kind = constraint.kind
    uses = USED_FIELDS.get(kind)
    if uses is None:
        raise InvalidRequest(f"constraint kind {shown(kind)} is not one of {', '.join(USED_FIELDS)}")
    if constraint.mode not in MODES:
        raise InvalidRequest(f"mode must be {' or '.join(map(repr, MODES))}, not {shown(constraint.mode)}")
    for name in FIELDS:
        if name not in uses and getattr(constraint, name) != getattr(EMPTY, name):
            raise InvalidRequest(f"a constraint of kind {kind} has no {name}")
    if len(constraint.options) > MAX_OPTIONS:
        raise ConstraintError(f"options: {len(constraint.options)} of them; {MAX_OPTIONS} are allowed")
    check_whole("soft_max_length", constraint.soft_max_length, 0)
    check_whole("soft_max_items", constraint.soft_max_items, 0)
    check_whole("least", constraint.least, 0, MAX_REPEATED)
    check_whole("most", constraint.most, 0, MAX_REPEATED)
    if constraint.best_effort and (constraint.soft_max_length or constraint.soft_max_items):
        raise InvalidRequest("soft_max_length and soft_max_items go with mode strict alone")
    needed, message = LISTS.get(kind, ("kind", ""))
    if not getattr(constraint, needed):
        raise InvalidRequest(message)
    low, high = MEMBERS.get(kind, (0, len(constraint.members)))
    if not low <= len(constraint.members) <= high:
        raise InvalidRequest(f"a constraint of kind {kind} has one member, not {len(constraint.members)}")
    if not all(tag.begin for tag in constraint.tags):
        raise InvalidRequest("begin must not be empty: every place would begin a span")


def _check_best_effort(constraint: ConstraintSpec) -> None:
    """Raises ConstraintError for best_effort where the finished text is not that of the schema alone."""
    inside = [*constraint.members, *(tag.content for tag in constraint.tags)]
    if constraint.kind != "exact" and any(part.best_effort for part in inside):
        raise ConstraintError("mode best_effort is for a whole output: not inside all_of, tagged or prefixed")
    for part in inside:
        _check_best_effort(part)


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
    """What any continuation begins with, at most MAX_FORCED bytes of it: ``data`` (base64: it may end inside a character), and as
    ``tokens`` the part whose split into tokens is certain.
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


def check_accept(request: AcceptTokens) -> None:
    """Raises LimitExceeded for too many tokens, InvalidRequest for a negative one."""
    if len(request.tokens) > MAX_ACCEPT:
        raise LimitExceeded(
            f"grammar.accept: {len(request.tokens)} tokens at once", limit="accept_tokens", value=MAX_ACCEPT,
            raise_with="several calls",
        )  # fmt: skip
    check_ids("tokens", request.tokens)


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


def check_rollback(request: RollbackMatcher) -> None:
    """Raises InvalidRequest for a negative number of tokens."""
    check_whole("n", request.count, 0)


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
