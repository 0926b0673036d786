"""Calls a program's own speculator (``generate(speculator=...)``): its drafts are checked, its errors turn it off."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from inferd.protocol import MAX_DRAFT, GenerationStarted
from inferd.protocol.speculation import check_parents
from inferd.protocol.tokens import checked_tokens
from inferd.speculation import DraftTree, Speculator


@dataclass(frozen=True)
class CheckedDraft:
    """A draft as ``generate.next`` sends it. ``parents`` is empty for a chain, ``whole`` what the speculator drafted."""

    tokens: Sequence[int] = ()
    positions: Sequence[int] = ()
    parents: Sequence[int] = ()
    whole: int = 0

    def cut(self, depth: int) -> CheckedDraft:
        """Return the draft without tokens deeper than ``depth`` and without more than one step verifies.

        A parent stands before its children: the first MAX_DRAFT tokens hold all their parents.
        """
        end = self.positions[0] + depth if self.positions else 0
        place, kept = {-1: -1}, list[int]()
        for node, position in enumerate(self.positions):
            if position < end and len(kept) < MAX_DRAFT:
                place[node] = len(kept)
                kept.append(node)
        return CheckedDraft(
            [self.tokens[node] for node in kept],
            [self.positions[node] for node in kept],
            [place[self.parents[node]] for node in kept] if self.parents else (),
            self.whole,
        )


NO_DRAFT = CheckedDraft()


class SpeculatorRunner:
    """Calls a speculator, and goes on without it once it breaks."""

    def __init__(self, speculator: Speculator, start: GenerationStarted) -> None:
        self._speculator = speculator
        self._prompt: list[int] | None = list(start.prompt)
        self._position = start.position
        self._drafted = 0
        self._broken = False

    async def propose(self, room: int) -> CheckedDraft:
        """Return the next draft, at most ``room`` tokens deep; empty once the speculator is off."""
        prompt, self._prompt = self._prompt, None
        if prompt is not None:
            await self._guarded(self._speculator.reset)
            await self._guarded(lambda: self._speculator.accept(prompt))
        draft: CheckedDraft = await self._guarded(self._speculator.draft, self._checked, NO_DRAFT)
        self._drafted = draft.whole
        return draft.cut(room)

    def turn_off(self, reason: str) -> None:
        """Go on without the speculator, because the runtime refused its draft for ``reason``."""
        self._broken = True
        self._report(reason)

    async def record(self, accepted: int, tokens: Sequence[int]) -> None:
        """Tell the speculator what became of its draft: ``accepted`` of it held, ``tokens`` were added in all."""
        rejected, self._drafted = self._drafted - accepted, 0
        self._position += len(tokens)
        if rejected > 0:
            await self._guarded(lambda: self._speculator.rollback(rejected))
        if tokens:
            await self._guarded(lambda: self._speculator.accept(list(tokens)))

    def _checked(self, guess: object) -> CheckedDraft:
        if isinstance(guess, DraftTree):
            return self._checked_tree(guess)
        if not isinstance(guess, Sequence) or len(guess) != 2:
            raise TypeError(f"draft() must return (tokens, positions) or a DraftTree, not {guess!r}")
        tokens, positions = checked_tokens("draft", guess[0]), list(guess[1])
        expected = list(range(self._position, self._position + len(tokens)))
        if positions != expected:
            raise ValueError(f"draft() must give the positions {_span(expected)}, not {positions!r}")
        return CheckedDraft(tokens, positions, (), len(tokens))

    def _checked_tree(self, tree: DraftTree) -> CheckedDraft:
        tokens, parents = checked_tokens("draft", tree.tokens), list(tree.parents)
        check_parents(parents, len(tokens))
        positions: list[int] = []
        for parent in parents:
            positions.append(self._position if parent < 0 else positions[parent] + 1)
        chain = all(parent == node - 1 for node, parent in enumerate(parents))
        return CheckedDraft(tokens, positions, () if chain else parents, len(tokens))

    async def _guarded(
        self,
        call: Callable[[], Awaitable[Any] | Any],
        check: Callable[[Any], Any] = lambda answer: answer,
        otherwise: Any = None,
    ) -> Any:
        if self._broken:
            return otherwise
        try:
            answer = call()
            return check(await answer if inspect.isawaitable(answer) else answer)
        except Exception:  # noqa: BLE001 - the boundary to the program's speculator: a bad guess must not cost the text
            self._broken = True
            self._report(traceback.format_exc())
            return otherwise

    def _report(self, reason: str) -> None:
        name = type(self._speculator).__name__
        print(f"inferd: {name} failed; this generation goes on without it\n{reason}", file=sys.stderr)


def _span(positions: list[int]) -> str:
    return f"{positions[0]} to {positions[-1]}" if positions else "[]"
