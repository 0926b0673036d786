"""Constraints beside JSON, regular expressions and choices: grammars, tagged text, several at once, and a program's own."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from inferd.protocol import ConstraintError, ConstraintSpec, InvalidRequest, TagConstraint, check_constraint_fields
from inferd.protocol.texts import checked_text
from inferd.schema import OutputConstraint, parse_json

StepMask: TypeAlias = Iterable[int] | None


class _Text(OutputConstraint):
    """Base of constraints whose output is read back as the text itself."""

    def parse(self, text: str) -> Any:
        """Return the text itself."""
        return text


class Lark(_Text):
    """Text of a context-free grammar in Lark, from its rule ``start`` on.

    What names special tokens, other grammars or options of llguidance is refused when the generation starts (ConstraintError).
    """

    def __init__(self, grammar: str, start: str = "start") -> None:
        own = "" if start == "start" else f"\nstart: {start}\n"
        self.constraint = ConstraintSpec("lark", value=checked_text("grammar", grammar) + own)


class Gbnf(_Text):
    """Text of a context-free grammar in llama.cpp's notation (an EBNF with ``::=``), rule ``root``."""

    def __init__(self, grammar: str) -> None:
        self.constraint = ConstraintSpec("gbnf", value=checked_text("grammar", grammar))


class JsonText(OutputConstraint):
    """A JSON string whose value is a text of ``constraint``: a :class:`Regex`, a :class:`Choice` or a :class:`Lark` grammar.

    What JSON has to escape in it is written in the shortest way, as in ``"a\\nb"``, and nothing else is. Other constraints, and
    grammars that the Lark library itself cannot read, are refused when the generation starts (ConstraintError).
    """

    def __init__(self, constraint: OutputConstraint) -> None:
        (self._inner,) = _checked_members("constraint", [constraint])
        self.constraint = ConstraintSpec("json_text", members=[self._inner.constraint])

    def json_parser(self) -> OutputConstraint:
        """Return the constraint itself."""
        return self

    def parse(self, text: str) -> Any:
        """Return what the constraint inside reads in the string's value. Raises ConstraintError for what is no JSON string."""
        value = parse_json(text)
        if not isinstance(value, str):
            raise ConstraintError(f"{text[:60]!r} is no JSON string")
        return self._inner.parse(value)


@dataclass(frozen=True)
class Tag:
    """One kind of tagged span: ``begin``, then text of ``content``, then ``end``.

    The names of special tokens in ``begin`` and ``end`` stand for these tokens, where the model has them.
    """

    begin: str
    content: OutputConstraint
    end: str


@dataclass(frozen=True)
class TaggedSpan:
    """A span that was found: its tag, and what the tag's content makes of its text."""

    tag: Tag
    value: Any


class Tagged(OutputConstraint):
    """Free text with tagged spans, e.g. tool calls: where a ``begin`` is complete, its content and ``end`` must follow.

    The text may end wherever it is free. Special tokens do not show in a step's text: give :meth:`parse` what
    ``tokenizer.decode(tokens, special=True)`` returns.
    """

    def __init__(self, tags: Sequence[Tag]) -> None:
        if not isinstance(tags, Sequence) or not all(isinstance(tag, Tag) for tag in tags):
            raise InvalidRequest(f"tags must be a list of Tags, not {tags!r}")
        for tag in tags:
            _check_types(tag)
        self.tags = tuple(tags)
        self.constraint = ConstraintSpec(
            "tagged", tags=[TagConstraint(tag.begin, tag.content.constraint, tag.end) for tag in tags]
        )
        check_constraint_fields(self.constraint)

    def parse(self, text: str) -> list[TaggedSpan]:
        """Return the spans in order; free text is left out. Raises ConstraintError for a span without an end."""
        spans, at = [], 0
        while (tag := self._next(text, at)) is not None:
            start = text.index(tag.begin, at) + len(tag.begin)
            value, at = _content(tag, text, start)
            spans.append(TaggedSpan(tag, value))
        return spans

    def _next(self, text: str, at: int) -> Tag | None:
        """Return the tag that begins first."""
        found = [(start, tag) for tag in self.tags if (start := text.find(tag.begin, at)) >= 0]
        return min(found, key=lambda each: each[0])[1] if found else None


class AllOf(OutputConstraint):
    """Text that satisfies all of ``constraints`` at once.

    Constraints that contradict each other are refused when the generation starts where that can be seen, and otherwise end
    it with an error where no token is left.
    """

    def __init__(self, constraints: Sequence[OutputConstraint]) -> None:
        self.members = _checked_members("constraints", constraints)
        self.constraint = ConstraintSpec("all_of", members=[member.constraint for member in self.members])
        check_constraint_fields(self.constraint)

    def json_parser(self) -> OutputConstraint | None:
        """Return the parser of the first member that is about JSON; None if there is none."""
        return next((parser for member in self.members if (parser := member.json_parser())), None)

    def parse(self, text: str) -> Any:
        """Return what the first member reads in the text; all have to read it. Raises ConstraintError."""
        values = [member.parse(text) for member in self.members]
        return values[0]


class Exact(OutputConstraint):
    """``constraint`` with exact masks: every token whose bytes go on with the text is legal.

    By default, text that the constraint leaves no choice about is masked to its usual split into tokens, which is what the
    model expects to see. With exact masks the model may split it otherwise. The language is the same.
    """

    def __init__(self, constraint: OutputConstraint) -> None:
        (self._inner,) = _checked_members("constraint", [constraint])
        self.constraint = ConstraintSpec("exact", members=[self._inner.constraint])

    def json_parser(self) -> OutputConstraint | None:
        """Return what the constraint inside returns."""
        return self._inner.json_parser()

    def parse(self, text: str) -> Any:
        """Return what the constraint inside returns."""
        return self._inner.parse(text)


@runtime_checkable
class StepConstraint(Protocol):
    """A program's own constraint: any object with this method, passed as ``generate(constrain=...)``.

    It is called before every step, in the task that iterates the generator; every step is then one round trip.
    """

    def step(self, accepted: list[int]) -> StepMask | Awaitable[StepMask]:
        """Return the token ids that may come next, end-of-text included where the text may end; None for all.

        ``accepted`` are the tokens that the last step added: none before the first one. It may be an ``async`` method,
        and so ask a :class:`~inferd.Matcher`. An exception ends the generation, and so does an empty mask
        (ConstraintError).
        """


def checked_constraint(constrain: OutputConstraint | StepConstraint | None) -> OutputConstraint | StepConstraint | None:
    """Return a constraint, or None. Raises InvalidRequest for anything else."""
    if constrain is None or isinstance(constrain, OutputConstraint):
        return constrain
    if isinstance(constrain, StepConstraint) and not isinstance(constrain, type):
        return constrain
    raise InvalidRequest(
        f"constrain must be a constraint, such as JsonSchema(type), Regex(pattern), Choice(options) or AnyJson(), or an object "
        f"with a method step(accepted), not {constrain!r}"
    )


def _checked_members(name: str, members: Sequence[OutputConstraint]) -> tuple[OutputConstraint, ...]:
    if not isinstance(members, Sequence):
        raise InvalidRequest(f"{name} must be a list of constraints, not {members!r}")
    for member in members:
        if not isinstance(member, OutputConstraint):
            raise InvalidRequest(f"{name} must hold constraints such as Regex(...), not {member!r}")
    return tuple(members)


def _check_types(tag: Tag) -> None:
    checked_text("begin", tag.begin)
    checked_text("end", tag.end)
    _checked_members("content", [tag.content])


def _content(tag: Tag, text: str, start: int) -> tuple[Any, int]:
    """Return the value behind a ``begin``, and where the span ends. The content itself may hold the text of ``end``."""
    end, problem = text.find(tag.end, start), f"nothing ends it with {tag.end!r}"
    while end >= 0:
        try:
            return tag.content.parse(text[start:end]), end + len(tag.end)
        except ConstraintError as error:
            problem = error.message
            end = text.find(tag.end, end + 1)
    raise ConstraintError(f"the span behind {tag.begin!r} cannot be read: {problem}")
