"""Parts of answers, for the tests of parsers."""

from __future__ import annotations

from collections.abc import Sequence

from inferd.chat.answer_parser import AnswerPart, CallPart


def joined(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Return parts with neighbours of one kind joined."""
    found: list[AnswerPart] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and type(last) is type(part) and not isinstance(part, CallPart):
            found[-1] = type(part)(last.text + part.text)  # type: ignore[union-attr]
        else:
            found.append(part)
    return found
