"""Speculators: drafts that a program makes itself."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class DraftTree:
    """Several guesses at once: ``parents[i]`` is the index of the token that ``tokens[i]`` follows, -1 for one that follows
    the context itself. A parent stands before its children.

    All of them are verified in one step, and at most one path is accepted.
    """

    tokens: Sequence[int]
    parents: Sequence[int]


Guess: TypeAlias = tuple[list[int], list[int]] | DraftTree


class Speculator:
    """A program's own guess at what comes next; pass an instance as ``generate(speculator=...)`` and override what
    you need.

    A speculator changes how fast text comes, never which text. All four methods are called by the generator, in the
    task that iterates it; each may be an ordinary function or an ``async`` one, which is awaited. One generation
    calls, in this order:

    1. ``reset()`` once, when the generation starts, so that one object can serve several generations in turn.
    2. ``accept(prompt)`` once, with every token that the context holds.
    3. Then for every step: ``draft()``; the runtime verifies the draft; ``rollback(n)`` if ``n`` tokens of that draft
       were not accepted (n >= 1): of a chain the last ``n``, of a tree all that are not on the accepted path;
       ``accept(tokens)`` with what the step really added, if it added anything: the accepted part of the draft, then the
       token that the model chose itself. End-of-text is not among them.

    ``draft`` returns ``(tokens, positions)``: two lists of equal length. ``positions`` are absolute: the first is
    the number of tokens in the context so far (the sum of the lengths given to ``accept`` since ``reset``), each
    next one is one higher. Two empty lists mean "no guess", which is a plain step. Or it returns a
    :class:`DraftTree`, whose positions follow from its parents. What a draft holds beyond ``max_tokens``, or beyond
    64 tokens, is not sent; every other draft is verified as far as the step has room for it, however wrong the last
    ones were. Tokens that were not verified are "not accepted".

    If a method raises, or ``draft`` returns something else or a token that the model does not have, the traceback
    is written once to stderr, the speculator is not called again in this generation, and the generation goes on
    without it.
    """

    def reset(self) -> Awaitable[None] | None:
        """Forget the last generation."""

    def draft(self) -> Awaitable[Guess] | Guess:
        """The guess for the next step. By default none."""
        return [], []

    def accept(self, tokens: list[int]) -> Awaitable[None] | None:
        """``tokens`` are now part of the context."""

    def rollback(self, n: int) -> Awaitable[None] | None:
        """``n`` tokens of the last draft were not accepted."""
