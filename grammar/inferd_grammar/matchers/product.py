"""Several recognisers over one text: a token is legal if all of them allow it (intersection)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.constraints import (
    AllOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    JsonSchemaGrammar,
    PrefixedGrammar,
    RegexGrammar,
)
from inferd_grammar.errors import GrammarError, GrammarFailure
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.matcher import Core, GrammarMatcher, GuardedMatcher
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked


class ProductCore:
    """`Core` whose mask is the AND of its members' masks.

    Members must have exact masks. One that allows only the canonical split of forced text could rule out the split
    that another one insists on, and leave nothing.
    """

    def __init__(self, members: Sequence[Core]) -> None:
        self._members = tuple(members)
        self.checked: tuple[Checked, ...] = ()
        self.named = frozenset[int]().union(*(member.named for member in members))
        self.recipe = None

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        first, *others = self._members
        first.fill(row, address)
        other = np.empty_like(row)
        for member in others:
            member.fill(other, other.ctypes.data)
            np.bitwise_and(row, other, out=row)

    def push(self, token: int) -> None:
        for member in self._members:
            member.push(token)

    def pop(self, count: int) -> None:
        for member in self._members:
            member.pop(count)

    def may_end(self) -> bool:
        return all(member.may_end() for member in self._members)

    def forced(self, most: int) -> bytes:
        """Return the longest text that a member forces: what one of them needs, all of them need."""
        return max((member.forced(most) for member in self._members if not member.may_end()), key=len, default=b"")

    def forced_tokens(self) -> list[int]:
        """Return nothing: what one member forces another may refuse further on."""
        return []

    def copy(self) -> ProductCore:
        return ProductCore([member.copy() for member in self._members])


class MatcherCore:
    """`Core` over a matcher of any make, so that it can be one member of several."""

    checked: tuple[Checked, ...] = ()
    recipe = None

    def __init__(self, inner: GrammarMatcher, table: TokenTable) -> None:
        self._inner = inner
        self._table = table
        self.named = table.special_ids - set(table.eos_ids)  # its masks are settled already

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        self._inner.fill(row)

    def push(self, token: int) -> None:
        if self._inner.accept([token]) != 1:
            raise GrammarFailure(f"a matcher refused token {token} that its mask allows")

    def pop(self, count: int) -> None:
        self._inner.rollback(count)

    def may_end(self) -> bool:
        return self._inner.may_end()

    def forced(self, most: int) -> bytes:
        return self._inner.forced()

    def forced_tokens(self) -> list[int]:
        return self._inner.forced_tokens()

    def copy(self) -> MatcherCore:
        return MatcherCore(self._inner.fork(), self._table)


def product_members(
    constraint: Constraint, limits: CompileLimits, *, join_regular: bool = False
) -> list[Constraint] | None:
    """Return the constraints that run side by side for this one, each with exact masks; None for one that runs alone.

    `join_regular` leaves an intersection of regular expressions and choices to the backend. Raises GrammarError for
    no members, too many, and members that masks do not fully hold.
    """
    match constraint:
        case ExactGrammar(AllOfGrammar() | ExactGrammar() | PrefixedGrammar() as inner):
            return product_members(inner, limits, join_regular=join_regular)
        case PrefixedGrammar(prefix, AllOfGrammar(members)):
            made: list[Constraint] = [PrefixedGrammar(prefix, member) for member in members]
        case AllOfGrammar(members):
            made = [ExactGrammar(member) for member in members]
        case _:
            return None
    check_members(members, limits)
    return None if join_regular and is_regular(members) else made


def is_regular(members: Sequence[Constraint]) -> bool:
    """Return True if all members are regular expressions or choices, at least two of them."""
    return len(members) > 1 and all(isinstance(member, RegexGrammar | ChoiceGrammar) for member in members)


def check_members(members: Sequence[Constraint], limits: CompileLimits) -> None:
    """Raise GrammarError for no members of an intersection, too many, and members that masks do not fully hold."""
    if not members:
        raise GrammarError("an intersection needs at least one member")
    if len(members) > limits.max_all_of:
        raise GrammarError(f"intersection has {len(members)} members; max_all_of is {limits.max_all_of}")
    if any(isinstance(member, JsonSchemaGrammar) and member.mode != "strict" for member in members):
        raise GrammarError("a best_effort JSON schema stands alone: it cannot be a part of another constraint")


def intersect(matchers: Sequence[GrammarMatcher], table: TokenTable) -> GrammarMatcher:
    """Return a matcher of the texts that continue all `matchers`, which are forked and must not be ended.

    For constraints alone `AllOfGrammar` is the better choice; this also takes matchers of programs (`source_matcher`). Those
    of constraints should be compiled `ExactGrammar`. Raises ValueError for no matchers, or an ended one.
    """
    if not matchers or any(matcher.ended() for matcher in matchers):
        raise ValueError("intersect needs at least one matcher, none of them ended")
    core = ProductCore([MatcherCore(matcher.fork(), table) for matcher in matchers])
    return GuardedMatcher(core, table.allowing(core.named))
