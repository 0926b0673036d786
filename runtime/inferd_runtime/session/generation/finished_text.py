"""The end of a generation whose constraint is best_effort: its whole text is checked before the end is reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from inferd import protocol as p
from inferd.schema import is_complete_json
from inferd_grammar import Compiled

ENDS = ("stop", "length")
RunLater = Callable[[Callable[[], Any], Callable[[Any], None]], None]
"""Calls the first function now or later, then the second with its result or an InferdError."""


def at_once(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
    """Call both at once: the :data:`RunLater` of sessions without threads."""
    done(work())


class BestEffortCheck:
    """Collects the text of a generation's steps, and validates it behind the last of them, where ``run`` does that."""

    def __init__(self, compiled: Compiled, run: RunLater = at_once) -> None:
        self._compiled = compiled
        self._run = run
        self._text: list[str] = []
        self._asked = False
        self._known = False
        self._error: p.InferdError | None = None
        self._waiting: Callable[[], None] | None = None

    def reply(self, done: p.Steps, changed: Callable[[], None]) -> p.Steps | p.InferdError | None:
        """Return the steps that are ``done``, with the end and its checked keywords if the text is valid; for one that is not,
        the error behind the last steps.

        None while the text is being checked: ``changed`` is called when that is done.
        """
        self._text += [step.text for step in done.steps]
        if done.finish not in ENDS:
            return done
        if not self._asked:
            self._asked = True
            self._run(lambda: self._check("".join(self._text), done.finish), self._learn)
        if self._known and self._error is None:
            return replace(done, checked=checked_keywords(self._compiled))
        if done.steps:
            return p.Steps(done.steps, cached=done.cached)
        self._waiting = None if self._known else changed
        return self._error

    def _learn(self, outcome: p.InferdError | None) -> None:
        self._known, self._error = True, outcome
        if self._waiting is not None:
            self._waiting()

    def _check(self, text: str, finish: str) -> p.ConstraintViolated | None:
        if finish == "length" and not is_complete_json(text):
            return None  # cut short, which the finish says
        problem = self._compiled.validate(text)
        if problem is None:
            return None
        return p.ConstraintViolated(
            f"the output is not valid: {problem.message}",
            problem=problem.message, pointer=problem.pointer,
            keyword=problem.keyword, schema_pointer=problem.schema_pointer,
        )  # fmt: skip


def checked_keywords(compiled: Compiled) -> list[p.CheckedKeyword]:
    """Return the keywords of a grammar that its masks do not enforce."""
    checked: Sequence[tuple[str, str]] = compiled.checked
    return [p.CheckedKeyword(keyword, pointer) for keyword, pointer in checked]
