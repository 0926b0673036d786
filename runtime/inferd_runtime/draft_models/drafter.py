"""A draft model as a source of guesses: it keeps drafting behind what is committed, and is told what came true."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from inferd_runtime.draft_models.draft_sampling import Guess
from inferd_runtime.draft_models.lengths import DraftExperience, DraftLength
from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftSpec, DraftTransport
from inferd_runtime.draft_models.step_watch import StepWatch
from inferd_runtime.speculation.bridge import Spelling
from inferd_runtime.speculation.counters import DraftModelCounters
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NOTHING, Probabilities, Proposal

LONGEST_PAUSE = 256
TIMEOUT = 0.25
"""Seconds that a step waits for a draft at most, where nobody says otherwise."""


@dataclass
class DraftLine:
    """A draft model as its drafters see it: the way to it, and what they share.

    ``max_context``: tokens that it can hold. ``timeout``: seconds that a step waits for a draft at most.
    """

    transport: DraftTransport
    max_context: int
    timeout: float = TIMEOUT
    counters: DraftModelCounters = field(default_factory=DraftModelCounters)
    experience: DraftExperience = field(default_factory=DraftExperience)
    clock: Callable[[], float] = time.monotonic


@dataclass
class _Sent:
    """The newest request: which one, until when a step waits for its answer (0: it does not), and up to where it draws."""

    number: int
    until: float
    goal: int


class DraftModelDrafter(Drafter):
    """The stream of one generation: what the draft model has drawn behind the committed tokens.

    What is committed is consumed from the stream. As long as they agree the draft model runs ahead, so that the next draft is
    there when the step ends (SpecSplit and PEARL, arXiv 2408.11850, call it a hit); where they part, the stream is thrown
    away and drawn again. A step rests while a draft is made that is worth it, but never longer than the time-out, after which
    the source pauses, twice as many steps each time. So it does after an error, or when the draft side has lost the sequence.

    ``number`` names its sequence on the draft side. ``on_drop`` hears at the end how fast the generation was
    (:attr:`StepWatch.speed`).
    """

    source = "draft_model"

    def __init__(
        self, line: DraftLine, number: int, spelling: Spelling, spec: DraftSpec, *,
        length: DraftLength, on_drop: Callable[[float], None] = lambda speed: None,
    ) -> None:  # fmt: skip
        self._line = line
        self._number = number
        self._spelling = spelling
        self._spec = spec
        self._length = length
        self._watch = StepWatch(line.clock, line.experience)
        self._on_drop = on_drop
        self._stream: list[Guess] = []
        self._stream_ended = False
        self._told = 0
        """How much of the path the draft side knows."""
        self._begun = self._warm = self._dropped = False
        self._wanted = 0
        self._sent: _Sent | None = None
        self._requests = self._valid_from = 0
        self._pause, self._skip = 1, 0
        self._lost_pause = 1
        self._proposed = self._verified = 0

    # -- What the generation says ---------------------------------------------------------------------------------

    def observe(self, tokens: Sequence[int]) -> None:
        """Consume what was committed from the stream, or throw it away; then have the draft model go on."""
        self._end_step(len(tokens))
        drawn, length = len(self._stream), len(self._spelling.path)
        used, agreed = self._spelling.follow(tokens, [guess.token for guess in self._stream])
        self._length.learn([guess.confidence for guess in self._stream[: used + (not agreed)]], used)
        self._told = min(self._told, self._spelling.changed_from)
        if not agreed or self._spelling.changed_from < length:
            self._valid_from = self._requests + 1
        self._stream = self._stream[used:] if agreed else []
        self._stream_ended = False
        self._line.counters.misses += not agreed
        self._line.counters.hits += agreed and used < drawn
        if self._skip or not self.needed:
            self._skip = max(0, self._skip - 1)
            self._wanted = 0
            return
        self._choose()

    def _end_step(self, tokens: int) -> None:
        self._watch.end(tokens, beside=self._sent is not None or self._proposed > 0)
        if self._proposed:
            self._length.count_verified(self._proposed, self._verified)
        self._proposed = self._verified = 0

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """The beginning of the stream, in the target's tokens."""
        self._line.counters.waited += self._watch.begin(beside=self._sent is not None)
        self._proposed = 0
        if not self._stream or not self._wanted:
            return NOTHING
        chance = self._length.calibration.chance
        chances = [] if self._spec.probabilities else [chance(guess.confidence) for guess in self._stream]
        stream = [guess.token for guess in self._stream]
        tokens, confidence = self._spelling.render(stream, chances, ended=self._stream_ended)
        first, last = len(ahead), len(ahead) + min(limit, self._wanted)
        if tokens[:first] != list(ahead) or len(tokens) <= first:
            return NOTHING
        self._proposed = min(last, len(tokens)) - first
        return Proposal(
            tokens[first:last], confidence=confidence[first:last], probabilities=self._rows(self._stream[first:last])
        )

    def _rows(self, guesses: Sequence[Guess]) -> Probabilities | None:
        """What the guesses were drawn from, in the target's width; None where nobody asked for it."""
        if not self._spec.probabilities:
            return None
        rows = np.zeros((len(guesses), self._spec.width), np.float32)
        for row, guess in zip(rows, guesses, strict=True):
            if guess.probabilities is not None:
                row[: len(guess.probabilities)] = guess.probabilities
        return rows

    def feedback(self, proposed: int, accepted: int) -> None:
        """Learn whether its guesses are verified. How often they are right, :meth:`observe` sees of all of them."""
        self._verified = proposed

    def ready(self) -> bool:
        """False while the next draft is on its way and in time."""
        sent = self._sent
        if sent is None or not sent.until:
            return True
        now = self._line.clock()
        if now < sent.until:
            self._watch.wait(now)
            return False
        self._give_up()
        return True

    def patience(self) -> float | None:
        """Seconds after which the generation goes on without the draft that it waits for; None while it does not wait.

        Where the time is up since it was told to wait, 0 once: it has to be stepped to go on. A step loop must not spin for one
        that nobody steps.
        """
        if self._sent is None or not self._sent.until or not self._watch.waits:
            return None
        left = self._sent.until - self._line.clock()
        if left <= 0:
            self._give_up()
        return max(0.0, left)

    def drop(self) -> None:
        """Forget the sequence on the draft side, and say what it was worth."""
        if self._dropped:
            return
        self._dropped = True
        self._sent = None
        if self._begun:
            self._line.transport.drop(self._number)
        self._on_drop(self._watch.speed)

    # -- Asking and hearing ---------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Decide how much is wanted behind this step, and ask for it."""
        count, probe = self._length.choose()
        self._wanted = count
        if count:
            self._ask(wait=self._warm and not probe)

    def _ask(self, *, wait: bool) -> None:
        """Ask for what the next proposal needs, else for what may run ahead of it."""
        wanted = self._spelling.wanted(self._wanted)
        base, missing = len(self._spelling.path), len(self._stream) < wanted and not self._stream_ended
        ahead = 2 * wanted + 1 if self._line.transport.overlaps else wanted
        count = min(wanted if missing else ahead, self._line.max_context - base)
        if self._stream_ended or count <= len(self._stream):
            return
        if not missing and self._sent is not None and self._sent.goal >= base + wanted:
            return
        now = self._line.clock()
        self._send(count, now + self._line.timeout if wait and missing else 0.0)

    def _send(self, count: int, until: float) -> None:
        """Send the certain tokens that the draft side does not know, or all of them the first time."""
        self._requests += 1
        self._line.counters.requests += 1
        path, start = self._spelling.path, self._told if self._begun else 0
        spec = None if self._begun else self._spec
        self._begun, self._told = True, len(path)
        self._sent = _Sent(self._requests, until, len(path) + count)
        request = AskDraft(self._number, start, path[start:], count, self._length.least_survival, spec)
        self._line.transport.ask(request, partial(self._hear, self._requests))

    def _hear(self, number: int, answer: DraftAnswer) -> None:
        """Take an answer; one that was overtaken by commits still counts as far as it agrees with them."""
        if self._dropped:
            return
        newest = self._sent is not None and self._sent.number == number
        if answer.lost or answer.error:
            if newest:
                self._start_over(answer)
            return
        if answer.drawn:
            self._line.experience.count_tokens(answer.drawn, answer.seconds)
        # Whichever it is, the draft side has read the prompt: from now on an answer is worth waiting for.
        self._warm = True
        grown = number >= self._valid_from and self._extend(answer)
        if newest:
            self._sent = None
            self._pause, self._skip = 1, 0
            if self._wanted and grown:
                self._ask(wait=False)

    def _extend(self, answer: DraftAnswer) -> bool:
        """Let the stream grow by what an answer holds beyond it. False when there is nothing."""
        skip = len(self._spelling.path) - answer.base
        held = [guess.token for guess in self._stream]
        known = self._spelling.path[answer.base :] + held
        if skip < 0 or len(answer.tokens) < len(known) or answer.tokens[: len(known)] != known:
            return False
        self._stream += read_guesses(answer)[len(known) :]
        self._stream_ended = answer.ended
        return len(self._stream) > len(held)

    def _start_over(self, answer: DraftAnswer) -> None:
        """The draft side does not know the sequence, or cannot serve it: send it whole, but later.

        One that is lost again and again does not fit beside the others there, however often it was answered in between.
        """
        self._begun, self._sent, self._told = False, None, 0
        self._stream, self._stream_ended = [], False
        if answer.error:
            self._line.counters.failures += 1
            self._rest()
        else:
            self._skip, self._lost_pause = self._lost_pause, min(LONGEST_PAUSE, 2 * self._lost_pause)

    def _give_up(self) -> None:
        """The answer is late: the step goes on without it. It is still welcome when it comes."""
        assert self._sent is not None
        self._sent.until = 0.0
        self._line.counters.timeouts += 1
        self._rest()

    def _rest(self) -> None:
        self._skip, self._pause = self._pause, min(LONGEST_PAUSE, 2 * self._pause)


def read_guesses(answer: DraftAnswer) -> list[Guess]:
    """An answer's tokens with what is known about each."""
    count = len(answer.tokens)
    if not answer.probabilities:
        return [Guess(*pair) for pair in zip(answer.tokens, answer.confidence, strict=True)]
    rows = np.frombuffer(answer.probabilities, np.float32).reshape(count, -1)
    return [Guess(token, 1.0, row) for token, row in zip(answer.tokens, rows, strict=True)]
