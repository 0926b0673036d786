"""Constraints that are made of others, one behind the other: what calls of tools are held with."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.protocol import ConstraintSpec
from inferd.schema import OutputConstraint


class _Composed(OutputConstraint):
    """Base of constraints whose text means nothing by itself."""

    def parse(self, text: str) -> str:
        """Return the text itself."""
        return text


class Text(_Composed):
    """Exactly ``text``. The names of special tokens in it stand for these tokens, where the model has them."""

    def __init__(self, text: str) -> None:
        self.constraint = ConstraintSpec("text", value=text)


class Until(_Composed):
    """Any text up to the first ``end``, and that; with ``constraint`` a text of it."""

    def __init__(self, end: str, constraint: OutputConstraint | None = None) -> None:
        members = [] if constraint is None else [constraint.constraint]
        self.constraint = ConstraintSpec("until", value=end, members=members)


class InSequence(_Composed):
    """Text of each of ``members``, one behind the other."""

    def __init__(self, members: Sequence[OutputConstraint]) -> None:
        self.constraint = ConstraintSpec("sequence", members=[member.constraint for member in members])


class AnyOf(_Composed):
    """Text of one of ``members``."""

    def __init__(self, members: Sequence[OutputConstraint]) -> None:
        self.constraint = ConstraintSpec("any_of", members=[member.constraint for member in members])


class Repeated(_Composed):
    """Texts of ``constraint``, one behind the other: at least ``least``, at most ``most`` (0: any number)."""

    def __init__(self, constraint: OutputConstraint, least: int = 0, most: int = 0) -> None:
        self.constraint = ConstraintSpec("repeated", members=[constraint.constraint], least=least, most=most)


class Prefixed(_Composed):
    """``prefix``, then text of ``constraint``."""

    def __init__(self, prefix: str, constraint: OutputConstraint) -> None:
        self.constraint = ConstraintSpec("prefixed", value=prefix, members=[constraint.constraint])
