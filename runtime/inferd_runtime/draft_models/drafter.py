"""The source that proposes a draft model's tokens, and keeps the draft model drafting after the committed ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from inferd_runtime.draft_models.draft_sampling import Guess
from inferd_runtime.draft_models.lengths import DraftExperience, DraftLength
from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftSpec, DraftTransport
from inferd_runtime.draft_models.step_watch import StepWatch, TokenTimer
from inferd_runtime.speculation.bridge import TokenBridge, common_prefix
from inferd_runtime.speculation.counters import DraftModelCounters
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NOTHING, Probabilities, Proposal

LONGEST_PAUSE = 256
SHORTEST_WITHIN = 1e-3
TIMEOUT = 0.25
"""Seconds that a step waits for a draft at most, by default."""


@dataclass
class DraftModelLink:
    """What the drafters of one draft model share: the transport to it, its counters, and measurements.

    ``max_context``: tokens that it can hold. ``timeout``: seconds that a step waits for a draft at most. ``remote``: it is on
    another machine, and not trusted: its tokens are verified by agreement alone, as rejection sampling would believe its
    distributions.
    """

    transport: DraftTransport
    max_context: int
    timeout: float = TIMEOUT
    remote: bool = False
    counters: DraftModelCounters = field(default_factory=DraftModelCounters)
    experience: DraftExperience = field(default_factory=DraftExperience)
    clock: Callable[[], float] = time.monotonic


@dataclass
class _Sent:
    """The newest request: its ``number``, the time ``until`` which a step waits for its answer (0: it does not), and the index
    up to which it draws (``goal``).
    """

    number: int
    until: float
    goal: int


class DraftModelDrafter(Drafter):
    """The drafter of one generation. Its stream is what the draft model has drawn after the committed tokens.

    Committed tokens are consumed from the stream. As long as they agree, the draft model runs ahead, so that the next draft is
    there when the step ends (a hit, in SpecSplit and PEARL, arXiv 2408.11850); otherwise the stream is discarded and drawn again.
    A step waits while a draft is made that is worth it, but never longer than the time-out, after which the source pauses, twice
    as many steps each time. So it does after an error, or when the draft side has lost the sequence.

    ``number`` names its sequence on the draft side. ``on_drop`` is called at the end with the generation's speed
    (:attr:`StepWatch.speed`).
    """

    source = "draft_model"

    def __init__(
        self, link: DraftModelLink, number: int, bridge: TokenBridge, spec: DraftSpec, *,
        length: DraftLength, on_drop: Callable[[float], None] = lambda speed: None,
    ) -> None:  # fmt: skip
        self._link = link
        self._number = number
        self._bridge = bridge
        self._spec = spec
        self._length = length
        self._watch = StepWatch(link.clock, link.experience)
        self._on_drop = on_drop
        self._stream: list[Guess] = []
        self._stream_ended = False
        self._sent_length = 0
        """The number of tokens of the path that the draft side knows."""
        self._compared = 0
        """The index in the path up to which drawn tokens were compared with what the target wrote."""
        self._begun = self._warm = self._dropped = False
        self._wanted = 0
        self._sent: _Sent | None = None
        self._requests = self._valid_from = 0
        self._pause, self._skip = 1, 0
        self._lost_pause = 1
        self._proposed = self._verified = 0
        self._set_aside: list[int] = []
        """Committed tokens that only matter if the draft model is asked again."""
        self._timer = TokenTimer(link.clock, link.experience.worth)

    # -- Drafter --------------------------------------------------------------------------------------------------

    def begin(self, prompt: Sequence[int]) -> None:
        """See :class:`Drafter`. The first step reads the prompt as well, and is not timed."""
        self.observe(prompt)
        self._timer.restart()

    def observe(self, tokens: Sequence[int]) -> None:
        """Consume the committed tokens from the stream, or discard it; then ask the draft model for more."""
        self._timer.count(len(tokens), caught_up=self._warm)
        if not self._length.asks:
            return self._stop_asking(tokens)
        if self._set_aside:
            tokens, self._set_aside = [*self._set_aside, *tokens], []
        self._link.transport.poll()
        self._end_step(len(tokens))
        drawn, length = len(self._stream), len(self._bridge.path)
        used, agreed = self._bridge.follow(tokens, [guess.token for guess in self._stream])
        self._length.learn([guess.confidence for guess in self._stream[: used + (not agreed)]], used)
        self._sent_length = min(self._sent_length, self._bridge.changed_from)
        self._compared = len(self._bridge.path) if drawn else min(self._compared, self._bridge.changed_from)
        if not agreed or self._bridge.changed_from < length:
            self._valid_from = self._requests + 1
        self._stream = self._stream[used:] if agreed else []
        self._stream_ended = False
        self._link.counters.misses += not agreed
        self._link.counters.hits += agreed and used < drawn
        if self._skip or not self.needed:
            self._skip = max(0, self._skip - 1)
            self._wanted = 0
            return
        self._choose()

    def _stop_asking(self, tokens: Sequence[int]) -> None:
        """Do as little as there is without a draft model, and forget what it has drawn."""
        self._set_aside += tokens
        self._end_step(len(tokens))
        self._sent, self._wanted, self._valid_from = None, 0, self._requests + 1
        self._stream, self._stream_ended, self._warm = [], False, False

    @property
    def resting(self) -> bool:
        """See :class:`Drafter`. In a trial without drafts it is asked, as that measures its steps."""
        return bool(self._set_aside) and not self._link.experience.worth.trying

    def _end_step(self, tokens: int) -> None:
        self._watch.end(tokens, beside=self._works_beside or self._proposed > 0)
        if self._proposed:
            self._length.count_verified(self._proposed, self._verified)
        self._proposed = self._verified = 0

    @property
    def _works_beside(self) -> bool:
        """True if the draft model may slow the target down now. On another machine it does not."""
        return self._sent is not None and not self._link.remote

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """Return the start of the stream, in the target's tokens."""
        self.give_up_late()
        self._link.counters.waited += self._watch.begin(beside=self._works_beside)
        self._proposed = 0
        if not self._stream or not self._wanted:
            return NOTHING
        chance = self._length.calibration.chance
        chances = [] if self._spec.probabilities else [chance(guess.confidence) for guess in self._stream]
        stream = [guess.token for guess in self._stream]
        tokens, confidence = self._bridge.render(stream, chances, ended=self._stream_ended)
        first, last = len(ahead), len(ahead) + min(limit, self._wanted)
        if tokens[:first] != list(ahead) or len(tokens) <= first:
            return NOTHING
        self._proposed = min(last, len(tokens)) - first
        return Proposal(
            tokens[first:last], confidence=confidence[first:last], probabilities=self._rows(self._stream[first:last])
        )

    def _rows(self, guesses: Sequence[Guess]) -> Probabilities | None:
        """Return the distributions that the guesses were drawn from, in the target's width; None if not requested."""
        if not self._spec.probabilities:
            return None
        rows = np.zeros((len(guesses), self._spec.width), np.float32)
        for row, guess in zip(rows, guesses, strict=True):
            if guess.probabilities is not None:
                row[: len(guess.probabilities)] = guess.probabilities
        return rows

    def feedback(self, proposed: int, accepted: int) -> None:
        """Learn how many tokens were verified. How many are right is learnt in :meth:`observe`."""
        self._verified = proposed

    def ready(self) -> bool:
        """False while the next draft is on its way and in time. The first False starts the clock of the wait."""
        sent, now = self._sent, self._link.clock()
        if sent is None or now >= sent.until:
            return True
        self._watch.wait(now)
        return False

    def patience(self) -> float | None:
        """Return the seconds after which the generation goes on without the draft that it waits for; None if it does not wait."""
        if self._sent is None or not self._sent.until or not self._watch.waits:
            return None
        return max(0.0, self._sent.until - self._link.clock())

    def give_up_late(self) -> bool:
        """Stop waiting for a draft whose time is up. Returns False if there is none. An answer is still used when it comes."""
        if self._sent is None or not self._sent.until or self._link.clock() < self._sent.until:
            return False
        self._sent.until = 0.0
        self._link.counters.timeouts += 1
        self._rest()
        return True

    def drop(self) -> None:
        """Drop the sequence on the draft side, and report the generation's speed."""
        if self._dropped:
            return
        self._dropped = True
        self._sent = None
        self._timer.close()
        if self._begun:
            self._link.transport.drop(self._number)
        self._on_drop(self._watch.speed)

    # -- Requests and answers -------------------------------------------------------------------------------------

    def _choose(self) -> None:
        """Choose the length of the next draft, and ask for it."""
        count, probe = self._length.choose()
        self._wanted = count
        if count:
            self._ask(wait=self._warm and not probe)

    def _ask(self, *, wait: bool) -> None:
        """Ask for the tokens that the next proposal lacks, else for tokens ahead of it."""
        wanted = self._bridge.wanted(self._wanted)
        base, missing = len(self._bridge.path), len(self._stream) < wanted and not self._stream_ended
        waits = wait and missing and self._way_known
        patience = min(self._link.timeout, self._length.patience(self._wanted)) if waits else 0.0
        lead = self._length.lead(wanted + 1)
        ahead = 2 * wanted + 1 + lead if self._link.transport.overlaps else wanted
        behind = wanted if patience else wanted + self._length.lead(1)
        count = min(behind if missing else ahead, self._link.max_context - base)
        if self._stream_ended or count <= len(self._stream):
            return
        if not missing and self._sent is not None and self._sent.goal >= base + wanted + lead:
            return
        self._send(count, patience, 0 if patience else self._length.lead(1))

    @property
    def _way_known(self) -> bool:
        """False until it is known how long messages travel to another machine: no step waits blindly."""
        return self._link.transport.round_trip > 0 or not self._link.remote

    def _send(self, count: int, patience: float, lead: int) -> None:
        """Send the committed tokens that the draft side does not know, or all of them the first time.

        ``lead``: how many of the tokens the target will have written itself before they arrive.
        The next step waits for the answer for ``patience`` seconds at most, and the draft side hears of it where messages travel.
        """
        until = self._link.clock() + patience if patience else 0.0
        travel = self._link.transport.round_trip
        within = max(SHORTEST_WITHIN, patience - travel) if patience and travel else 0.0
        self._requests += 1
        self._link.counters.requests += 1
        path, start = self._bridge.path, self._sent_length if self._begun else 0
        spec = None if self._begun else self._spec
        self._begun, self._sent_length = True, len(path)
        self._sent = _Sent(self._requests, until, len(path) + count)
        request = AskDraft(self._number, start, path[start:], count, self._length.least_survival(lead), spec, within)
        self._link.transport.ask(request, partial(self._take_answer, self._requests))

    def _take_answer(self, number: int, answer: DraftAnswer) -> None:
        """Take an answer. One that was overtaken by commits still counts as far as it agrees with them."""
        if self._dropped:
            return
        newest = self._sent is not None and self._sent.number == number
        if answer.lost or answer.error:
            if newest:
                self._start_over(answer)
            return
        self._count_answer(answer)
        self._learn_late(answer)
        # With any answer the draft side has read the prompt: from now on an answer is worth waiting for.
        self._warm = True
        grown = number >= self._valid_from and self._extend(answer)
        if newest:
            self._sent = None
            self._pause, self._skip = 1, 0
            if self._wanted and grown:
                self._ask(wait=False)

    def _count_answer(self, answer: DraftAnswer) -> None:
        """Learn from an answer how long drafts take, and count one that came when the target had written as much itself."""
        experience = self._link.experience
        experience.round_trip = self._link.transport.round_trip
        for confidence in answer.confidence:
            experience.confidence.add(confidence)
        if answer.drawn:
            experience.count_tokens(answer.drawn, answer.seconds)
            self._link.counters.late += answer.base + len(answer.tokens) <= len(self._bridge.path)

    def _learn_late(self, answer: DraftAnswer) -> None:
        """Learn from the tokens of an answer that the target has written itself meanwhile, each once."""
        written = self._bridge.path[answer.base :]
        right = common_prefix(answer.tokens, written)
        known = max(0, self._compared - answer.base)
        tried = min(right + 1, len(written), len(answer.tokens))
        if known <= right and known < tried and answer.confidence:
            self._length.learn(answer.confidence[known:tried], right - known)
            self._compared = answer.base + tried

    def _extend(self, answer: DraftAnswer) -> bool:
        """Extend the stream by the tokens of an answer beyond it. Returns False if there are none."""
        skip = len(self._bridge.path) - answer.base
        held = [guess.token for guess in self._stream]
        known = self._bridge.path[answer.base :] + held
        if skip < 0 or len(answer.tokens) < len(known) or answer.tokens[: len(known)] != known:
            return False
        self._stream += read_guesses(answer)[len(known) :]
        self._stream_ended = answer.ended
        return len(self._stream) > len(held)

    def _start_over(self, answer: DraftAnswer) -> None:
        """Pause, and then send the whole sequence again: the draft side does not know it, or cannot serve it.

        Each loss doubles the pause, even with answers in between: the sequence does not fit beside the others there.
        """
        self._begun, self._sent, self._sent_length = False, None, 0
        self._stream, self._stream_ended = [], False
        if answer.error:
            self._link.counters.failures += 1
            self._rest()
        else:
            self._skip, self._lost_pause = self._lost_pause, min(LONGEST_PAUSE, 2 * self._lost_pause)

    def _rest(self) -> None:
        self._skip, self._pause = self._pause, min(LONGEST_PAUSE, 2 * self._pause)


def read_guesses(answer: DraftAnswer) -> list[Guess]:
    """Return the tokens of an answer with their confidences or distributions."""
    count = len(answer.tokens)
    if not answer.probabilities:
        return [Guess(*pair) for pair in zip(answer.tokens, answer.confidence, strict=True)]
    rows = np.frombuffer(answer.probabilities, np.float32).reshape(count, -1)
    return [Guess(token, 1.0, row) for token, row in zip(answer.tokens, rows, strict=True)]
