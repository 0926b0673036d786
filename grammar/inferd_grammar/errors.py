"""Errors of the grammar package: the caller's (invalid, too large) apart from failures of a matcher."""

from __future__ import annotations

import re

LIBRARY_LIMIT = re.compile(r"[Tt]oo (many (items|states|expressions)|big|large)|fuel exhausted")
"""What a library says that gives up on a grammar. It has no other mark."""
TOO_DEEP = "the constraint nests too deeply"


class GrammarError(Exception):
    """The constraint (or the tokenizer it is compiled for) is invalid or not supported. The caller's fault.

    `reason` is one line for a person; `pointer` is the JSON pointer (RFC 6901) of the offending keyword inside a JSON
    schema, or None where there is no schema or the place is not known.
    """

    def __init__(self, reason: str, pointer: str | None = None) -> None:
        super().__init__(reason, pointer)
        self.reason = reason
        self.pointer = pointer

    def fresh(self) -> GrammarError:
        """Return the same error to raise once more: tracebacks grow on raise."""
        return GrammarError(self.reason, self.pointer)

    def __str__(self) -> str:
        return self.reason if self.pointer is None else f"{self.reason} (at {self.pointer or 'the root'})"


class GrammarLimit(GrammarError):
    """Compiling the constraint took more than it may. `limit` names what (a field of `TrialLimits`), `value` how much."""

    def __init__(self, reason: str, limit: str, value: float) -> None:
        super().__init__(f"{reason}; {limit} is {value:g}")
        self.limit = limit
        self.value = value
        self._why = reason

    def fresh(self) -> GrammarLimit:
        return GrammarLimit(self._why, self.limit, self.value)


class GrammarInterrupted(GrammarError):
    """What compiled the constraint was ended by the kernel for want of memory, or got too little of the processors: it may go
    well the next time.
    """

    def fresh(self) -> GrammarInterrupted:
        return GrammarInterrupted(self.reason, self.pointer)


class GrammarFailure(Exception):
    """A matcher broke at run time: a resource limit inside the library, a dead end, or a bug.

    Not caused by the program, and never reported as a mask: a mask that only allows the end of the text would cut the
    answer short without anyone noticing.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def is_limit(self) -> bool:
        """True if the library has reached a limit of its own: the constraint is too much for it."""
        return LIBRARY_LIMIT.search(self.reason) is not None


class DeadEnd(GrammarFailure):
    """No token continues the text, and it may not end: parts of the constraint contradict each other, or the vocabulary
    lacks what it demands. A rollback leads out of it.
    """


class RuleBroken(Exception):
    """A text goes on in a way that a rule forbids. It does not leave the rules' core."""
