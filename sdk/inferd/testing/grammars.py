"""Grammars of the fake runtime: choices are known exactly, every other constraint allows any text."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from inferd import protocol as p
from inferd.masks import TokenMask


@dataclass
class FakeMatcher:
    """A place in one of ``options`` (None: in any text). Tokens are bytes, and ``eos`` behind them."""

    options: tuple[bytes, ...] | None
    eos: int
    held: list[int] = field(default_factory=list)

    def may_end(self) -> bool:
        """Whether the text is complete."""
        return not self.ended() and (self.options is None or bytes(self.held) in self.options)

    def ended(self) -> bool:
        """Whether the end was accepted."""
        return self.held[-1:] == [self.eos]

    def allowed(self) -> set[int]:
        """What may come next."""
        if self.ended():
            return {self.eos}
        text, end = bytes(self.held), {self.eos} if self.may_end() else set()
        if self.options is None:
            return {*range(256), *end}
        return {
            option[len(text)] for option in self.options if len(option) > len(text) and option.startswith(text)
        } | end

    def forced(self) -> bytes:
        """What must come next."""
        if self.options is None or self.ended():
            return b""
        text = bytes(self.held)
        left = [option[len(text) :] for option in self.options if option.startswith(text)]
        shared = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*left, strict=False))
        return bytes(column[0] for column in shared)

    def accept(self, tokens: list[int]) -> int:
        """Take what is legal; how many that was."""
        for count, token in enumerate(tokens):
            if self.ended() or token not in self.allowed():
                return count
            self.held.append(token)
        return len(tokens)


class FakeGrammars:
    """Answers ``grammar.*``. ``handlers`` by request type."""

    def __init__(self, eos: int, handles: Iterator[int] | None = None) -> None:
        self._eos = eos
        self._handles = handles or itertools.count(1)
        self.grammars: dict[int, p.ConstraintSpec] = {}
        self.matchers: dict[int, FakeMatcher] = {}
        self.handlers: dict[type[Any], Callable[[Any], Any]] = {
            p.CompileGrammar: self._compile,
            p.OpenMatcher: lambda request: self._open(self._at_start(request.grammar)),
            p.AcceptTokens: self._accept,
            p.GetMask: lambda request: p.AllowedTokens(
                *TokenMask(sorted(self._matcher(request.matcher).allowed())).to_wire()
            ),
            p.RollbackMatcher: self._rollback,
            p.GetForced: self._forced,
            p.ForkMatcher: self._fork,
            p.ReleaseGrammar: self._release,
        }

    def _compile(self, request: p.CompileGrammar) -> p.CompiledGrammar:
        handle = next(self._handles)
        self.grammars[handle] = request.constraint
        return p.CompiledGrammar(handle, self._at_start(handle).may_end())

    def _at_start(self, grammar: int) -> FakeMatcher:
        if grammar not in self.grammars:
            raise p.NotFound(f"no grammar {grammar}")
        constraint = self.grammars[grammar]
        options = tuple(option.encode() for option in constraint.options)
        return FakeMatcher(options if constraint.kind == "choice" else None, self._eos)

    def _open(self, matcher: FakeMatcher) -> p.MatcherState:
        handle = next(self._handles)
        self.matchers[handle] = matcher
        return self._state(handle)

    def _accept(self, request: p.AcceptTokens) -> p.MatcherState:
        taken = self._matcher(request.matcher).accept(request.tokens)
        return self._state(request.matcher, taken)

    def _rollback(self, request: p.RollbackMatcher) -> p.MatcherState:
        held = self._matcher(request.matcher).held
        if request.count > len(held):
            raise p.InvalidRequest(f"rollback of {request.count} tokens: the matcher holds {len(held)}")
        del held[len(held) - request.count :]
        return self._state(request.matcher)

    def _forced(self, request: p.GetForced) -> p.Forced:
        data = self._matcher(request.matcher).forced()
        return p.Forced(base64.b64encode(data).decode(), list(data))

    def _fork(self, request: p.ForkMatcher) -> p.MatcherState:
        matcher = self._matcher(request.matcher)
        return self._open(FakeMatcher(matcher.options, matcher.eos, list(matcher.held)))

    def _release(self, request: p.ReleaseGrammar) -> p.Done:
        if self.grammars.pop(request.handle, None) is None and self.matchers.pop(request.handle, None) is None:
            raise p.NotFound(f"no grammar or matcher {request.handle}")
        return p.Done()

    def _matcher(self, handle: int) -> FakeMatcher:
        if handle not in self.matchers:
            raise p.NotFound(f"no matcher {handle}")
        return self.matchers[handle]

    def _state(self, handle: int, accepted: int = 0) -> p.MatcherState:
        matcher = self.matchers[handle]
        return p.MatcherState(handle, len(matcher.held), matcher.may_end(), matcher.ended(), accepted)
