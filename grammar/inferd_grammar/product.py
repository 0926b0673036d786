"""Several recognisers over one text: a token is legal if all of them allow it (intersection)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inferd_grammar.errors import GrammarFailure
from inferd_grammar.matcher import Core, GuardedMatcher, Matcher
from inferd_grammar.tokens import TokenTable
from inferd_grammar.validation import Checked


class ProductCore:
    """`Core` whose mask is the AND of its members' masks.

    Members must have exact masks. One that allows only the canonical split of forced text could rule out the split
    that another one insists on, and leave nothing.
    """

    def __init__(self, members: Sequence[Core]) -> None:
        self._members = tuple(members)
        self.checked: tuple[Checked, ...] = tuple(found for member in members for found in member.checked)

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

    def forced(self) -> bytes:
        """The longest that a member forces: what one of them needs, all of them need."""
        return max((member.forced() for member in self._members if not member.may_end()), key=len, default=b"")

    def forced_tokens(self) -> list[int]:
        """Always empty: what one member forces another may refuse further on."""
        return []

    def copy(self) -> ProductCore:
        return ProductCore([member.copy() for member in self._members])


class MatcherCore:
    """`Core` over a matcher of any make, so that it can be one member of several."""

    checked: tuple[Checked, ...] = ()

    def __init__(self, inner: Matcher) -> None:
        self._inner = inner

    def fill(self, row: NDArray[np.int32], address: int) -> None:
        self._inner.fill(row)

    def push(self, token: int) -> None:
        if self._inner.accept([token]) != 1:
            raise GrammarFailure(f"a matcher refused token {token} that its mask allows")

    def pop(self, count: int) -> None:
        self._inner.rollback(count)

    def may_end(self) -> bool:
        return self._inner.may_end()

    def forced(self) -> bytes:
        return self._inner.forced()

    def forced_tokens(self) -> list[int]:
        return self._inner.forced_tokens()

    def copy(self) -> MatcherCore:
        return MatcherCore(self._inner.fork())


def intersect(matchers: Sequence[Matcher], table: TokenTable) -> Matcher:
    """A matcher of the texts that continue all `matchers`, which are forked and must not be ended.

    For constraints alone `AllOf` is the better choice; this also takes matchers of programs (`source_matcher`). Those
    of constraints should be compiled `Exact`. Raises ValueError for no matchers, or an ended one.
    """
    if not matchers or any(matcher.ended() for matcher in matchers):
        raise ValueError("intersect needs at least one matcher, none of them ended")
    return GuardedMatcher(ProductCore([MatcherCore(matcher.fork()) for matcher in matchers]), table)
