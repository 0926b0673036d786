"""The stream of a running generation: what ``generate.next`` brings, the steps that are ready, and its close."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from inferd import protocol as p
from inferd_runtime.engine.jobs.draft_verification import check_draft
from inferd_runtime.engine.jobs.generation import Generation
from inferd_runtime.engine.jobs.grammar_masks import OfferedMask
from inferd_runtime.engine.sampling.probes import read_mask
from inferd_runtime.session.generation.finished_text import BestEffortCheck
from inferd_runtime.session.generation.healing import Healing
from inferd_runtime.session.generation.program_turns import ProgramTurns
from inferd_runtime.speculation.drafter import OfferedDraft
from inferd_runtime.speculation.drafts import ROOT


@dataclass(frozen=True)
class ProgramInputs:
    """The inputs that a program sends with every step: its speculator's draft, its constraint's mask, or its sampler's token."""

    draft: OfferedDraft | None = None
    mask: OfferedMask | None = None
    chooses: bool = False

    @classmethod
    def of(cls, request: p.StartGenerate, vocab_size: int) -> ProgramInputs:
        """Return what the program brings to a generation that starts so."""
        return cls(
            OfferedDraft() if request.program_speculation else None,
            OfferedMask(vocab_size) if request.program_constraint else None,
            request.candidates is not None,
        )

    @property
    def awaited(self) -> bool:
        """True if every step waits for the program: not for a speculator that has had nothing to offer for some steps."""
        return self.draft is None or self.draft.awaited

    def take(self, request: p.NextSteps, generation: Generation) -> bool:
        """Check and hand over what ``generate.next`` brings. True if a step waits for it.

        Raises InvalidRequest, and ConstraintError for a mask that allows nothing.
        """
        if self.chooses or request.token is not None:
            return self._choose(request, generation)
        if self.draft is None and (request.draft or request.positions or request.parents):
            raise p.InvalidRequest("a draft needs a generation started with program_speculation")
        if self.mask is None and (request.mask is not None or request.mask_bits):
            raise p.InvalidRequest("a mask needs a generation started with program_constraint")
        if self.draft is not None:
            check_offer(request, generation)
            late = generation.delivered_length < len(generation.context.tokens)
            self.draft.offer(request.draft, request.parents, late=late)
            if late and request.draft:
                generation.hold()  # it gets the steps that have left without it, and is waited for again
                return False
        if self.mask is not None:
            self.mask.offer(read_mask(request.mask, request.mask_bits, self.mask.vocab_size))
        return self.draft is not None or self.mask is not None

    def _choose(self, request: p.NextSteps, generation: Generation) -> bool:
        """Take the program's token. Without one the row stays as it is, which the answer then tells again."""
        if not self.chooses:
            raise p.InvalidRequest("a token needs a generation started with candidates (a sampler of your own)")
        if request.draft or request.positions or request.parents or request.mask is not None or request.mask_bits:
            raise p.InvalidRequest("neither a draft nor a mask goes with candidates (a sampler of your own)")
        if request.token is not None:
            generation.choose(request.token)
        assert generation.spec.choice is not None
        return generation.spec.choice.offer is None and not generation.finished()


class OpenGeneration:
    """A generation handle. ``delivered_steps``: how many steps were handed out. ``held_numbers``: what it counts for in memory.

    ``turns`` is told whose turn it is. ``closing`` is closed with it. ``healing`` cut the end of its prompt. ``finished`` checks
    its text when it is complete.
    """

    def __init__(
        self,
        generation: Generation,
        inputs: ProgramInputs,
        turns: ProgramTurns,
        closing: ExitStack,
        held_numbers: int = 0,
        healing: Healing | None = None,
        finished: BestEffortCheck | None = None,
    ) -> None:
        self.generation = generation
        self._inputs = inputs
        self._turns = turns
        self._closing = closing
        self.held_numbers = held_numbers
        self._healing = healing
        self._finished = finished
        self.delivered_steps = 0
        if generation.spec.paced:
            turns.begin(generation)

    def request_steps(self, request: p.NextSteps) -> None:
        """Check and hand over what ``generate.next`` brings. Raises InvalidRequest or ConstraintError."""
        if self.generation.listener is not None:
            raise p.InvalidRequest("another generate.next is waiting on this generation")
        self.generation.await_steps(request.least, joined=request.joined)
        if not self.generation.finished() and self._inputs.take(request, self.generation):
            self.generation.allow(ahead=0 if self._inputs.awaited else request.least)
            self._turns.answered(self.generation)

    def finished_steps(self) -> p.Steps | p.InferdError | None:
        """Return the steps that are ready, then the error that ended it if one did; None while there are fewer than its reader
        waits for.
        """
        generation = self.generation
        if generation.error is not None and not generation.outbox:
            return generation.error
        if not generation.answerable:
            return None
        steps = generation.take()
        self._turns.asked(generation)
        cached = 0 if self.delivered_steps else generation.cached
        self.delivered_steps += sum(step.joined for step in steps)
        offer = None if generation.spec.choice is None or generation.finished() else generation.spec.choice.offer
        done = p.Steps(
            steps, generation.finish, stopped_by=generation.stopped_by, stop_token=generation.stop_token,
            candidates=[] if offer is None else [offer], cached=cached,
        )  # fmt: skip
        return done if self._finished is None else self._finished.reply(done, self._notify)

    def keep(self, length: int = -1) -> tuple[int, Sequence[int]]:
        """Return what closing it would leave if ``length`` tokens of the context were delivered (-1: those that were): how
        many of these, and which tokens behind them, where it has not written the healed end of its prompt again.

        Raises InvalidRequest for more than there is.
        """
        delivered = self.generation.delivered_length
        left = (delivered, ()) if self._healing is None else self._healing.keep(delivered)
        held = left[0] + len(left[1])
        if not -1 <= length <= max(delivered, held):
            raise p.InvalidRequest(f"cannot copy {length} tokens: the context holds {held}")
        if length < 0 or length >= delivered:
            return left
        return (length, ()) if self._healing is None else self._healing.keep(length)

    def usage(self) -> p.Usage:
        """Return what this generation has used."""
        return self.generation.usage

    def close(self, keep: int = -1) -> None:
        """Give the context back with the first ``keep`` generated tokens (-1: all that were taken)."""
        self.generation.close(keep)
        self._turns.end(self.generation)
        self._closing.close()

    def _notify(self) -> None:
        if self.generation.listener is not None:
            self.generation.listener()


def check_offer(request: p.NextSteps, generation: Generation) -> None:
    """Raises InvalidRequest unless a program's draft is a chain or tree of valid tokens behind what the program has got."""
    check_draft(generation.context, request.draft, request.parents)
    start = generation.delivered_length
    expected: list[int] = []
    for parent in request.parents or range(ROOT, len(request.draft) - 1):
        expected.append(start if parent == ROOT else expected[parent] + 1)
    if list(request.positions) != expected:
        raise p.InvalidRequest(
            f"draft positions must count from {start}, one more behind each parent: {expected}, not {request.positions}"
        )
