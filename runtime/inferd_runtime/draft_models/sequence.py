"""One generation's sequence in the draft engine: a job that runs while a request is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, prod

import numpy as np

from inferd.protocol import InferdError
from inferd_runtime.draft_models.draft_sampling import Guess, draw_freely, draw_guess, guess_of
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.engine.job import Job, NextWork
from inferd_runtime.engine.sampling.host_sampling import LogitRows, Masks
from inferd_runtime.engine.sampling.penalties import Entries, History, adjust
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.speculation.bridge import common_prefix
from inferd_runtime.speculation.drafts import Draft

FEW_ROWS = 8
"""A step that computed more rows than this is not counted as the time of a draw."""


@dataclass(slots=True)
class _OpenRequest:
    """A request that is not answered yet, with its deadline ``until``: the tokens drawn for it, and the ``seconds`` they took."""

    count: int
    least: float
    done: AnswerCallback
    since: float
    until: float
    drawn: int = 0
    seconds: float = 0.0


class DraftSequence(Job):
    """A sequence whose context holds the committed tokens, and after them the path that the draft model has drawn.

    The path grows until the request is met or the context is full; without distributions, also until end-of-text is drawn or
    the path gets unlikely. ``failed`` is called when the engine gives the sequence up. Errors become answers.

    ``device_vocab``: the vocabulary of a driver that samples, which then draws the tokens, except those with distributions and
    samplers of the host's; 0: the host draws.
    """

    def __init__(
        self, context: CachedSequence, spec: DraftSpec, eos_tokens: Collection[int], failed: Callable[[], None],
        device_vocab: int = 0,
    ) -> None:  # fmt: skip
        self.context = context
        self.priority = 0
        self.speculates = False
        self._spec = spec
        self._eos = eos_tokens
        self._failed = failed
        self._vocab = 0 if spec.probabilities or spec.sampler.host_only else device_vocab
        self._path: list[Guess] = []
        self._ended = False
        self._open: _OpenRequest | None = None
        self._gone = False
        self._history: History | None = None
        self._counted = 0

    # -- The client's side ----------------------------------------------------------------------------------------

    def holds(self, start: int) -> bool:
        """True if tokens from index ``start`` on continue what it holds."""
        return start <= len(self.context.tokens)

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        """Follow the committed tokens, and open the request. An open one is answered with what there is."""
        self._answer()
        now = time.perf_counter()
        self._open = _OpenRequest(request.count, request.least, done, now, now + (request.within or inf))
        try:
            self._follow(request.start, request.tokens)
        except InferdError as error:
            return self.fail(error)
        if self._met():
            return self._answer()
        self.context.user = self
        if self.context.pending == 0:
            # The last token's logits are wanted, so it is computed once more.
            self.context.uncompute(len(self.context.tokens) - 1)

    def drop(self) -> None:
        """Answer an open request, and release the context."""
        self._answer()
        if not self._gone:
            self._gone = True
            self.context.release()

    def _follow(self, start: int, tokens: Sequence[int]) -> None:
        """Cut the path where the committed tokens leave it, and append the rest of those."""
        held = self.context.tokens
        agree = common_prefix(held[start : start + len(tokens)], tokens)
        left = len(held) - start - len(tokens)
        if agree == len(tokens) and 0 <= left <= len(self._path):
            self._path = self._path[len(self._path) - left :]
            return
        self.context.truncate(start + agree)
        self._path, self._ended = [], False
        self.context.append(tokens[agree:])

    def _met(self) -> bool:
        """True if nothing more is to be drawn for the open request."""
        if self._exhausted() or self._open is None:
            return True
        return len(self._path) >= self._open.count or self._unlikely(self._open)

    def _exhausted(self) -> bool:
        """True if the path cannot grow: end-of-text was drawn, or the context is empty or full."""
        return self._ended or not 0 < len(self.context.tokens) < self.context.max_length

    def _unlikely(self, request: _OpenRequest) -> bool:
        return not self._spec.probabilities and prod(guess.confidence for guess in self._path) < request.least

    def _answer(self, error: str = "") -> None:
        request, self._open = self._open, None
        if request is None:
            return
        self.context.user = None
        rows = [guess.probabilities for guess in self._path if guess.probabilities is not None]
        answer = DraftAnswer(
            base=len(self.context.tokens) - len(self._path),
            tokens=[guess.token for guess in self._path],
            confidence=[] if rows else [guess.confidence for guess in self._path],
            probabilities=np.stack(rows).tobytes() if rows else b"",
            drawn=request.drawn,
            seconds=request.seconds,
            ended=self._exhausted() or self._unlikely(request),
            error=error,
        )
        request.done(answer)

    # -- Job ------------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """True if a request is open."""
        return self._open is not None

    def finished(self) -> bool:
        """True once it was dropped."""
        return self._gone

    def next_work(self, in_flight: Work) -> NextWork:
        """Return UNKNOWN where a token is sampled: it is drawn on the host, for its confidence."""
        return NextWork.UNKNOWN if in_flight.rows else NextWork.PENDING

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return the pending tokens in chunks, the last of them with the logits of the next token."""
        pending = self.context.tokens[self.context.table.length + ahead :]
        if len(pending) > budget:
            return Work(pending[:budget])
        if not self._vocab:
            return Work(pending, 1)
        masks = narrow_mask(self._spec.width, self._vocab) if self._spec.width < self._vocab else None
        entries = self._entries(min(self._spec.width, self._vocab))
        return Work(
            pending, 1, masks=masks, sampler=self._spec.sampler, adjustments=None if entries is None else [entries],
            confident=True,
        )  # fmt: skip

    def commit(self, done: Verified) -> None:
        """Draw a token, and answer the request if that is enough. One behind tokens that have been committed since is none."""
        if self._open is None or (done.work.rows and self.context.pending):
            return
        if done.tokens:
            self._take(guess_of(done.tokens[0], done.confidence, self._spec.sampler))
        elif done.work.rows and done.logits is not None:
            position = len(self.context.tokens)
            draw = draw_freely if self._spec.probabilities else draw_guess
            self._take(draw(self._adjusted(done.logits[0, : self._spec.width]), self._spec.sampler, position))
        now = time.perf_counter()
        if done.work.rows and len(done.work.tokens) <= FEW_ROWS:
            self._open.drawn += 1
            self._open.seconds += now - self._open.since
        self._open.since = now
        if self._met() or now >= self._open.until:
            self._answer()

    def _adjusted(self, logits: LogitRows) -> LogitRows:
        """Return the row with the target's penalties and biases."""
        entries = self._entries(len(logits))
        return logits if entries is None else adjust(logits, entries)

    def _entries(self, width: int) -> Entries | None:
        """Return the target's penalties and biases after the committed tokens and the path, of ids below ``width``, if any."""
        penalties = self._spec.sampler.penalties
        if penalties is None:
            return None
        tokens, certain = self.context.tokens, len(self.context.tokens) - len(self._path)
        if self._history is None:
            self._history, self._counted = History(penalties, tokens[: self._spec.prompt]), self._spec.prompt
        self._history.advance(tokens[self._counted : certain])
        self._counted = max(self._counted, certain)
        return self._history.entries(tokens[certain:]).below(width)

    def _take(self, guess: Guess) -> None:
        """Append a token to the path. End-of-text ends the draft, but not one with distributions: being shorter it would be in
        time more often than those without, which biases rejection sampling.
        """
        if guess.token in self._eos and not self._spec.probabilities:
            self._ended = True
            return
        self.context.append([guess.token])
        self._path.append(guess)

    def fail(self, error: InferdError) -> None:
        """End with an error of the engine, which is the answer. The client may start the sequence anew."""
        self._path = []
        self._answer(error.message)
        self.drop()
        self._failed()


@cache
def narrow_mask(width: int, vocab_size: int) -> Masks:
    """Return the mask, int32[1, ceil(vocab_size / 32)], that allows ids below ``width``. Not to be changed."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[:width] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)[None]
