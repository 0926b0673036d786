"""The end of a generation whose constraint is best_effort: its text is checked before anybody is told that it ended."""

from __future__ import annotations

from collections.abc import Sequence

from inferd import protocol as p
from inferd.schema import is_complete_json
from inferd_grammar import Compiled


class FinishedText:
    """Collects the text of a generation's steps, and validates it with the last of them."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._text: list[str] = []
        self._violation: p.ConstraintViolated | None = None

    def reply(self, steps: list[p.Step], finish: str) -> p.Steps | p.ConstraintViolated:
        """The steps; the end with what was only checked. Behind the last steps of a text that fails, why it does."""
        self._text += [step.text for step in steps]
        if not finish:
            return p.Steps(steps)
        if steps:
            self._violation = self._check("".join(self._text), finish)
        if self._violation is not None:
            return p.Steps(steps) if steps else self._violation
        return p.Steps(steps, finish, checked_keywords(self._compiled))

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
    """What the masks of a grammar do not hold."""
    checked: Sequence[tuple[str, str]] = compiled.checked
    return [p.CheckedKeyword(keyword, pointer) for keyword, pointer in checked]
