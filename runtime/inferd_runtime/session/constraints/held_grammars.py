"""The grammars and matchers that a session holds for its program's own decode loop."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inferd import protocol as p
from inferd.masks import pack_bits, worth_listing
from inferd_grammar import Compiled, GrammarMatcher
from inferd_runtime.engine.sampling.host_sampling import allowed_tokens
from inferd_runtime.interpreter import no_collections
from inferd_runtime.session.served_model import ServedModel

ACCEPT_SECONDS = 0.05
"""Limit on the processor time of taking tokens at once: streams wait for it, and so may each request of another tenant."""
MAX_GRAMMARS = 64
MAX_MATCHERS = 256
"""Of one session."""
TENANT_MATCHERS = 4096
MAX_GRAMMAR_BYTES = 512 << 20
"""Of a tenant's compiled grammars together; one alone may have more."""
MAX_TOKENS = 1 << 17
"""Tokens that a tenant's matchers hold together, or a context of their model if that is longer: one takes up to kilobytes."""


@dataclass(frozen=True)
class HeldGrammar:
    """A compiled grammar, and its model."""

    compiled: Compiled
    model: ServedModel


@dataclass(frozen=True)
class HeldMatcher:
    """A matcher handle."""

    matcher: GrammarMatcher
    model: ServedModel

    def accept(self, tokens: Sequence[int], clock: Callable[[], float] = time.thread_time) -> int:
        """Take tokens up to the first illegal one; return how many. Raises LimitExceeded, and takes none, where that takes longer
        than ACCEPT_SECONDS: what a text of an ambiguous grammar costs grows with its length, and the step loop waits.
        """
        with no_collections():
            return self._accept(tokens, clock)

    def _accept(self, tokens: Sequence[int], clock: Callable[[], float]) -> int:
        end = clock() + ACCEPT_SECONDS
        for taken, token in enumerate(tokens):
            if not self.matcher.accept([token]):
                return taken
            if clock() > end:
                self.matcher.rollback(taken + 1)
                text = f"taking {taken + 1} tokens takes more than {ACCEPT_SECONDS:g} s"
                raise p.LimitExceeded(
                    text, limit="mask_seconds", value=ACCEPT_SECONDS, raise_with="fewer tokens, or a smaller constraint"
                )
        return len(tokens)

    def mask(self) -> p.AllowedTokens:
        """Return the tokens that may come next. Raises GrammarFailure if the matcher breaks."""
        vocab_size = self.model.info.vocab_size
        row = np.empty(-(-vocab_size // 32), np.int32)
        self.matcher.fill(row)
        tokens = allowed_tokens(row, vocab_size)
        if worth_listing(len(tokens), row.nbytes):
            return p.AllowedTokens(tokens.tolist())
        return p.AllowedTokens(bits=pack_bits(row.tobytes()))

    def forced(self) -> p.Forced:
        """Return the text and tokens that must come next, of a long text its beginning. Raises GrammarFailure."""
        text, tokens = self.matcher.forced(), self.matcher.forced_tokens()
        data = text[: p.MAX_FORCED]
        if len(data) < len(text):
            ends = itertools.accumulate(len(self.model.bytes_of(token)) for token in tokens)
            tokens = tokens[: sum(1 for _ in itertools.takewhile(len(data).__ge__, ends))]
        return p.Forced(base64.b64encode(data).decode(), tokens)

    def fork(self) -> HeldMatcher:
        """Return an independent copy in the same state."""
        return HeldMatcher(self.matcher.fork(), self.model)


class HeldGrammars:
    """Handles by number; both kinds share one sequence. Every lookup raises NotFound for a released handle."""

    def __init__(self, siblings: Callable[[], Iterable[HeldGrammars]]) -> None:
        """``siblings``: those of all sessions of the tenant, of which this is one."""
        self._siblings = siblings
        self._grammars: dict[int, HeldGrammar] = {}
        self._matchers: dict[int, HeldMatcher] = {}
        self._last = 0

    def add_grammar(self, grammar: HeldGrammar) -> int:
        """Return the new handle. Raises LimitExceeded if the session holds too many."""
        _check_room(len(self._grammars), "grammars", MAX_GRAMMARS)
        grammars = [one for held in self._siblings() for one in held._grammars.values()]
        held = {id(one.compiled): one.compiled.cost for one in (*grammars, grammar)}
        if len(held) > 1 and sum(held.values()) > MAX_GRAMMAR_BYTES:
            raise p.LimitExceeded(
                f"the grammars of a tenant may take {MAX_GRAMMAR_BYTES} bytes together", limit="grammar_bytes",
                value=MAX_GRAMMAR_BYTES, raise_with="releasing some",
            )  # fmt: skip
        self._last += 1
        self._grammars[self._last] = grammar
        return self._last

    def add_matcher(self, matcher: HeldMatcher) -> int:
        """Return the new handle. Raises LimitExceeded if the session holds too many."""
        _check_room(len(self._matchers), "matchers", MAX_MATCHERS)
        _check_room(sum(len(held._matchers) for held in self._siblings()), "matchers", TENANT_MATCHERS, "tenant")
        self._last += 1
        self._matchers[self._last] = matcher
        return self._last

    def grammar(self, handle: int) -> HeldGrammar:
        """Return the grammar of a handle."""
        if handle not in self._grammars:
            raise p.NotFound(f"grammar {handle} does not exist or was released")
        return self._grammars[handle]

    def matcher(self, handle: int) -> HeldMatcher:
        """Return the matcher of a handle."""
        if handle not in self._matchers:
            raise p.NotFound(f"matcher {handle} does not exist or was released")
        return self._matchers[handle]

    def check_tokens(self, matcher: HeldMatcher, more: int) -> None:
        """Raise LimitExceeded if the matchers have no room for ``more`` tokens."""
        most = max(MAX_TOKENS, matcher.model.info.max_context)
        if sum(one.matcher.depth for held in self._siblings() for one in held._matchers.values()) + more > most:
            raise p.LimitExceeded(
                f"the matchers of a tenant may hold {most} tokens together", limit="matcher_tokens", value=most,
                raise_with="releasing some, or taking tokens back",
            )  # fmt: skip

    def release(self, handle: int) -> None:
        """Drop a grammar or a matcher."""
        if self._grammars.pop(handle, None) is None and self._matchers.pop(handle, None) is None:
            raise p.NotFound(f"grammar or matcher {handle} does not exist or was released")


def _check_room(held: int, what: str, limit: int, whose: str = "session") -> None:
    if held >= limit:
        raise p.LimitExceeded(
            f"a {whose} may hold {limit} {what}; release some", limit=what, value=limit, raise_with="releasing some"
        )
