"""A generation: the job that turns sampled tokens into finished steps. No tensors, no waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from inferd.protocol import InferdError, InvalidRequest, Step, TokenLogprob, Usage
from inferd_runtime.engine.job import NextWork
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.jobs.grammar_masks import OutputMasks
from inferd_runtime.engine.jobs.program_choice import ProgramChoice
from inferd_runtime.engine.jobs.step_probes import StepProbes
from inferd_runtime.engine.jobs.step_queue import MOST_HELD, StepQueue
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.jobs.timeline import Timeline
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.penalties import History
from inferd_runtime.engine.sampling.probes import token_logprob
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.speculation.counters import SpeculationCounters, count_sources
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft
from inferd_runtime.speculation.sources import SourceSet

STEPS_AHEAD = 4
"""The most steps by which a generation that runs on without its program may be ahead of what the program has received."""


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """The arguments of a generation, resolved before it starts.

    ``paced``: every step waits for :meth:`Generation.allow`. ``priority`` (-3 to 3): each step up doubles its share among the
    tenant's own work. ``logprobs``: every token comes with its log-probability by the model's own logits, before penalties,
    bias, mask and temperature, and with so many of the most likely tokens at its place, or with ``logprob_tokens``; None:
    without. ``stop_tokens`` end the text as ``eos_tokens`` do, of which the first is the usual one; with ``ignore_eos`` only they
    do. ``choice``: the program chooses each token. ``probes`` read the row of each token.
    """

    sampler: RowSampler
    max_tokens: int
    eos_tokens: Sequence[int]
    grammar: OutputMasks | None = None
    sources: SourceSet | None = None
    paced: bool = False
    priority: int = 0
    logprobs: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    ignore_eos: bool = False
    choice: ProgramChoice | None = None
    probes: StepProbes | None = None
    logprob_tokens: tuple[int, ...] = ()

    @property
    def scored(self) -> bool:
        """True if rows are read on the host, and not only drawn from. A driver that samples brings log-probabilities, too."""
        return self.choice is not None or self.probes is not None or bool(self.logprob_tokens)

    @property
    def on_host(self) -> bool:
        """True if rows come to the host, read or drawn from."""
        return self.scored or self.sampler.host_only

    def held_numbers(self, vocab_size: int) -> int:
        """Return how many numbers wait for the reader at most: what probes found, and the row that the program chooses from."""
        found = 0 if self.probes is None else self.probes.numbers * min(MOST_HELD, self.probes.most_steps)
        return found if self.choice is None else found + self.choice.held_numbers(vocab_size)

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end the text."""
        return self.stop_tokens if self.ignore_eos else self.stop_tokens.union(self.eos_tokens)

    @property
    def end_token(self) -> int:
        """The end-of-text that is written where a grammar leaves nothing else."""
        return self.eos_tokens[0]


class Generation:
    """One ``generate`` call at the end of a context, which it owns until it is closed.

    Finished steps queue up in ``outbox``; it pauses while that is full. A ``paced`` generation (a
    program's own speculator or constraint) runs one step per :meth:`allow`, unless it ``runs_on``. ``finish`` is "" while it
    goes on, else stop | length | closed; ``stop_token`` is the token that ended it, if one did.
    """

    def __init__(self, context: CachedSequence, spec: GenerationSpec, text: TextAssembler) -> None:
        check_start(context)
        self.context = context
        self.priority = spec.priority
        self.speculates = spec.sources is not None
        self.spec = spec
        self.outbox = StepQueue(None if spec.probes is None else spec.probes.most_steps)
        self.finish = ""
        self.stop_token: int | None = None
        self.error: InferdError | None = None
        self.counters = SpeculationCounters()
        self.listener: Callable[[], None] | None = None
        self.timeline: Timeline | None = None
        self._text = text
        self._ends = spec.ends
        self._start = len(context.tokens)
        self._end = min(self._start + spec.max_tokens, context.max_length)
        self._taken = 0
        self._wrote_end = False
        self.runs_on = False
        self._allowed = not spec.paced
        penalties = spec.sampler.penalties
        self._history = None if penalties is None else History(penalties, context.tokens)
        self._conditioned = spec.grammar is not None or penalties is not None
        self._plain = not self._conditioned and not spec.on_host and spec.sources is None
        context.user = self
        if context.pending == 0:
            # The last token's logits are wanted, so it is computed once more.
            context.uncompute(len(context.tokens) - 1)
        self._had = context.computed - context.reused
        if spec.sources is not None:
            spec.sources.begin(list(context.tokens), spec.max_tokens)

    # -- Job ------------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """True if it asks for a step now."""
        if self.finish or self.error is not None or not self._allowed or self.outbox.full():
            return False
        return self.spec.sources is None or self.spec.sources.ready()

    def finished(self) -> bool:
        """True if it has ended, with or without an error."""
        return bool(self.finish) or self.error is not None

    def propose(self) -> Draft:
        """Ask the sources for a draft, cut before end-of-text, whose row is sampled anyway and after which nothing comes."""
        sources, context, grammar = self.spec.sources, self.context, self.spec.grammar
        if sources is None or (context.pending > 1 and not self.spec.paced):
            return NO_DRAFT
        if grammar is None and sources.all_resting:
            sources.skip_step()
            return NO_DRAFT
        limit = self._room() - 1
        if limit <= 0:
            return NO_DRAFT
        draft = sources.propose(limit, grammar.forced() if grammar is not None and sources.forced else ())
        if draft.tokens:
            draft = draft.without(self._ends)
            if context.irregular_from is not None and not draft.is_chain:
                return draft.chain()
            if grammar is not None and sources.forced and draft.tokens and draft.is_chain:
                return grammar.completed(draft, min(limit, sources.max_draft))
        return draft

    def propose_behind(self, ahead: Sequence[int]) -> Draft:
        """See :class:`~inferd_runtime.engine.job.Job`. Counts a step of the sources' rest if they cannot run ahead."""
        sources, limit = self.spec.sources, self._room() - len(ahead) - 2
        if sources is None or not sources.runs_ahead:
            if sources is not None and self.context.pending <= 1:
                sources.skip_step()
            return NO_DRAFT
        return sources.propose_behind(limit, ahead).without(self._ends)

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return a prefill chunk, or the pending tokens with the legal part of the draft and a mask per sampled row."""
        if self.timeline is not None:
            self.timeline.planned()
        pending = self.context.tokens[self.context.table.length + ahead :]
        if len(pending) > budget:
            return Work(pending[:budget])
        if self._plain:
            return Work(pending, 1, NO_DRAFT, None, self.spec.sampler, logprobs=self.spec.logprobs)
        draft = draft.likeliest(budget - len(pending))
        legal, masks = (draft, None) if self.spec.grammar is None else self.spec.grammar.masks(draft)
        return Work(
            [*pending, *legal.tokens], len(legal) + 1, legal, masks,
            self.spec.sampler if self.spec.choice is None else None,
            filtered=filtered_sources(draft, legal),
            adjustments=None if self._history is None else self._history.rows(legal),
            scored=self.spec.scored or (self.spec.logprobs is not None and self._writes_others(legal)),
            logprobs=self.spec.logprobs,
            admit=self._admit if self._steers and self.spec.choice is None else None,
        )  # fmt: skip

    def commit(self, done: Verified) -> None:
        """Take the accepted tokens and the one after them, or offer the program the row that it chooses from."""
        if self.spec.choice is not None and done.work.rows:
            self.spec.choice.put(done, len(self.context.tokens))
            self._allowed = False
            self._notify()
        elif done.tokens:
            self._take(done)

    def choose(self, token: int) -> None:
        """Take the token that the program chose of the row that it was offered, or what its constraint steers to instead.

        Raises InvalidRequest for a token that it may not have, and leaves it the row.
        """
        assert self.spec.choice is not None
        done = self.spec.choice.take(token)
        with JobBoundary(self):
            self._take(done._replace(tokens=self._admit(done.tokens)) if self._steers else done)

    def _take(self, done: Verified) -> None:
        """Take emitted tokens; end at end-of-text, a stop string, or the length."""
        if self.spec.grammar is not None:
            done = done._replace(tokens=self._advanced(done.tokens, self.spec.grammar))
        if self.spec.sources is not None:
            self.spec.sources.learn(done.work.draft, done.path, done.cost, self.context.tokens[-1])
        self._allowed = self.runs_on or not self.spec.paced
        self._emit(done)
        if self.finish and self.spec.sources is not None:
            self.spec.sources.end()
        self._notify()

    def _advanced(self, tokens: Sequence[int], grammar: OutputMasks) -> Sequence[int]:
        """Advance the grammar, and return the tokens, with the usual end-of-text where the grammar leaves nothing but an end.

        Which of several the model would draw is known only if a draft has reached that place, and must not change the text.
        """
        *before, last = tokens
        if last not in self._ends or last not in self.spec.eos_tokens:
            grammar.advance(tokens)
            return tokens
        grammar.advance(before)
        return [*before, self.spec.end_token] if grammar.must_end() else tokens

    def next_work(self, in_flight: Work) -> NextWork:
        """See :class:`~inferd_runtime.engine.job.Job`. Unknown if it depends on a program or a grammar, or if accepting the whole
        draft would leave no room.
        """
        if self.finished():
            return NextWork.NOTHING
        if self.spec.paced:
            return NextWork.UNKNOWN
        if not in_flight.rows:
            return NextWork.PENDING
        if self._room() <= 1 or self.outbox.full(coming=1):
            return NextWork.NOTHING
        if self.spec.on_host or self._drafts_behind_known() or self._room() <= 1 + len(in_flight.draft):
            return NextWork.UNKNOWN
        return NextWork.LATE_ROW if self._conditioned else NextWork.ROW

    def _drafts_behind_known(self) -> bool:
        """True if its sources can draft behind known tokens only, as they do under a grammar, which may force tokens."""
        sources = self.spec.sources
        if sources is None:
            return False
        return self.spec.grammar is not None or not (sources.runs_ahead or sources.resting_next_step)

    def completed(self, work: Work) -> Work:
        """Return a late row with its mask and penalties."""
        _, masks = (NO_DRAFT, None) if self.spec.grammar is None else self.spec.grammar.masks(NO_DRAFT)
        return work._replace(
            masks=masks,
            adjustments=None if self._history is None else self._history.rows(work.draft),
            admit=self._admit if self._steers else None,
            late=False,
        )

    def fail(self, error: InferdError) -> None:
        """End with an error. The delivered tokens stay in the context."""
        if not self.finished():
            self.error = error
            if self.spec.sources is not None:
                self.spec.sources.end()
            self._notify()

    # -- The caller's side ----------------------------------------------------------------------------------------

    @property
    def delivered_length(self) -> int:
        """Tokens that the context keeps if the generation is closed now."""
        return min(self._start + self._taken, len(self.context.tokens))

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were computed before it began, or found by prefix."""
        return min(self._start, self._had + self.context.reused)

    @property
    def usage(self) -> Usage:
        """What it has used so far. ``tokens`` leave out end-of-text."""
        done = self.counters
        return Usage(0, done.emitted - self._wrote_end, done.steps, done.drafted, done.accepted)

    @property
    def stopped_by(self) -> str:
        """The stop string that ended it, "" for any other end."""
        return self._text.stopped_by

    @property
    def answerable(self) -> bool:
        """True if it ended, or has the steps that its reader waits for, or a row to choose from where its program chooses."""
        if self.finish or self.error is not None:
            return True
        if self.spec.choice is not None:
            return self.spec.choice.offer is not None
        return self.outbox.enough

    def await_steps(self, least: int, *, joined: bool = False) -> None:
        """Tell the listener from now on when there are ``least`` steps, or one where a program takes part in each."""
        self.outbox.expect(1 if self.spec.paced else least, joined=joined)

    def allow(self, *, ahead: int = 0) -> None:
        """Let a paced generation run its next step; ``ahead``: and all behind it, of which its program gets so many at a time,
        at most STEPS_AHEAD.
        """
        self._allowed, self.runs_on = True, ahead > 0
        if ahead:
            self.outbox.run_ahead(min(ahead, STEPS_AHEAD))

    def hold(self) -> None:
        """Let a paced generation run no further step without :meth:`allow`."""
        self._allowed = self.runs_on = False

    def take(self) -> list[Step]:
        """Remove the finished steps from the outbox, and return them."""
        steps = self.outbox.take()
        self._taken += sum(len(step.tokens) for step in steps)
        return steps

    def close(self, keep: int = -1) -> None:
        """Release the context with exactly the first ``keep`` generated tokens; -1: all that were taken, and the end-of-text that
        the model wrote after them.

        Raises InvalidRequest for more than were taken, or for fewer once the context has been used for something else.
        """
        self._check_keep(keep)
        memory = None
        if self.spec.sources is not None:
            memory = self.spec.sources.memory()
            self.spec.sources.drop()
        if self.context.user is not self:
            return
        if keep >= 0 or self.outbox or not self.finish or self.error is not None:
            wanted = self._start + (self._taken if keep < 0 else keep)
            self.context.truncate(min(wanted, len(self.context.tokens)))
        if memory is not None and memory.length <= len(self.context.tokens):
            self.context.memory = memory
        self.context.table.trim()
        self.context.user = None
        self.outbox.clear()
        self.finish = self.finish or "closed"
        if self.timeline is not None:
            self.timeline.end(self.finish)

    def _check_keep(self, keep: int) -> None:
        if keep < -1:
            raise InvalidRequest(f"cannot keep {keep} tokens")
        if self.context.user is self and keep > self._taken:
            raise InvalidRequest(f"cannot keep {keep} tokens: {self._taken} were delivered")
        if self.context.user is not self and -1 < keep < self._taken:
            raise InvalidRequest("the context has been used since the generation ended: truncate it instead")

    # -- Inside ---------------------------------------------------------------------------------------------------

    @property
    def _steers(self) -> bool:
        return self.spec.grammar is not None and self.spec.grammar.steers

    def _writes_others(self, draft: Draft) -> bool:
        """True if it may emit other tokens than those that its rows' samples are."""
        return self._steers or draft.probabilities is not None

    def _admit(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the tokens to write instead of sampled ones, so that the text is complete when the room is used up."""
        assert self.spec.grammar is not None
        return self.spec.grammar.admit(tokens, self._room())

    def _room(self) -> int:
        """Return how many tokens may still be emitted."""
        return self._end - len(self.context.tokens)

    def _emit(self, done: Verified) -> None:
        """Cut the emitted tokens where the generation ends, append them to the context, and queue the step."""
        probed = [] if self.spec.probes is None else self.spec.probes.read(done)  # before its penalties go on
        kept, text = self._cut(done.tokens)
        self.context.write(done.tokens[:kept])
        if self._history is not None:
            self._history.advance(done.tokens[:kept])
        self.context.table.truncate(min(self.context.table.length, len(self.context.tokens)))
        content = [token for token in done.tokens[:kept] if token not in self._ends]
        if not self.finish and self._forced_to_end():
            self.finish, self.stop_token = "stop", self.spec.end_token
            self.context.write([self.stop_token])
        if self.finish:
            text += self._text.rest()
        elif self.spec.sources is not None:
            self.spec.sources.observe(done.tokens[:kept])
        step = self._step(done, content, text, kept)
        self.outbox.append(replace(step, probes=probed[: len(content)]) if probed else step)
        if self.timeline is not None:
            self.timeline.wrote(kept)

    def _step(self, done: Verified, content: list[int], text: str, kept: int) -> Step:
        """Return the step with its counts, which are added to the counters."""
        draft, filtered, scores = done.work.draft, done.work.filtered, self._scores(done, len(content))
        counts = count_sources(draft.sources, done.path, filtered) if draft.tokens or filtered else ()
        self.counters.count(counts, done.accepted, kept)
        if self.spec.sources is not None:
            self.spec.sources.counters.count(counts, done.accepted, kept)
        if not counts:
            return Step(content, text, logprobs=scores)
        truncated, saved_us = len(done.tokens) - kept, round(done.saved * 1e6)
        return Step(content, text, len(draft), done.accepted, len(filtered), truncated, saved_us, counts, scores)

    def _scores(self, done: Verified, count: int) -> list[TokenLogprob]:
        """Return the log-probabilities of the first ``count`` emitted tokens, each from the row that it was sampled from.

        The first token's row is row 0, each other's that of the accepted node before it.
        """
        top = self.spec.logprobs
        if top is None:
            return []
        if done.logprobs is not None:
            return list(done.logprobs[:count])
        assert done.logits is not None
        rows = [0, *(node + 1 for node in done.path)]
        named = self.spec.logprob_tokens
        return [
            token_logprob(done.logits[row], token, top, named)
            for row, token in zip(rows[:count], done.tokens, strict=False)
        ]

    def _cut(self, tokens: Sequence[int]) -> tuple[int, str]:
        """Find where the generation ends, and set ``finish`` there. Returns how many tokens are kept, and their text."""
        room, text = self._room(), ""
        for kept, token in enumerate(tokens, start=1):
            if token in self._ends:
                self.finish, self._wrote_end, self.stop_token = "stop", True, token
                return kept, text + self._shown_end(token)
            text += self._text.feed(token)
            if self._text.stopped_by:
                self.finish = "stop"
            elif kept == room:
                self.finish = "length" if self.spec.grammar is None or not self.spec.grammar.keeps_budget else "stop"
            if self.finish:
                return kept, text
        return len(tokens), text

    def _shown_end(self, token: int) -> str:
        """Return the text of the token that ended it, if it was one of ``stop_tokens`` and shows."""
        return self._text.feed(token) if self._text.include_stop and token in self.spec.stop_tokens else ""

    def _forced_to_end(self) -> bool:
        """True if the grammar allows end-of-text only. Then it is appended without a forward pass."""
        return self.spec.grammar is not None and self._room() > 0 and self.spec.grammar.must_end()

    def _notify(self) -> None:
        if self.timeline is not None and self.finished():
            self.timeline.end(self.finish or "error")
        if self.listener is not None and self.answerable:
            self.listener()


def filtered_sources(draft: Draft, legal: Draft) -> list[str]:
    """Return the sources of the draft's tokens that are not in its legal part, one entry per token."""
    if len(legal) == len(draft):
        return []
    left = Counter(legal.sources)
    return list((Counter(draft.sources) - left).elements())


def check_start(context: CachedSequence) -> None:
    """Check that a generation can start. Raises InvalidRequest if the context is empty or in use, LimitExceeded if it is full."""
    context.check_unused()
    context.check_room_behind()
