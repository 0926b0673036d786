"""Grammars for a program's own decode loop: which tokens may come next, and what becomes of the text then."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

from inferd.calls.arguments import model_name
from inferd.masks import TokenMask
from inferd.model import Model
from inferd.protocol import (
    MAX_ACCEPT,
    AcceptTokens,
    AllowedTokens,
    CheckedKeyword,
    CompiledGrammar,
    CompileGrammar,
    Forced,
    ForkMatcher,
    GetForced,
    GetMask,
    InvalidRequest,
    MatcherState,
    OpenMatcher,
    ReleaseGrammar,
    RollbackMatcher,
    check_constraint,
    check_rollback,
)
from inferd.protocol.tokens import checked_tokens
from inferd.schema import OutputConstraint
from inferd.transport import Port, current_port


class Grammar:
    """A constraint compiled for a model. Make one with :meth:`compile`; it serves any number of matchers.

    Release it when you are done (:meth:`release`, or ``async with await Grammar.compile(...) as grammar:``). One that is
    garbage-collected is released with the next handle that is made, what is left when the program ends.
    """

    def __init__(self, port: Port, reply: CompiledGrammar) -> None:
        self._handle = _RuntimeHandle(port, reply.grammar)
        self._may_be_empty = reply.may_end
        self.checked: list[CheckedKeyword] = list(reply.checked)
        """Keywords of a ``best_effort`` schema that the masks do not enforce: check the finished text for them."""

    @classmethod
    async def compile(cls, constraint: OutputConstraint, model: str | Model | None = None) -> Grammar:
        """Compile a constraint for a model (None: the default one).

        Raises ConstraintError for one that is invalid or cannot be enforced, with the JSON pointer of the keyword where it
        is known, and LimitExceeded when the program holds too many grammars.
        """
        if not isinstance(constraint, OutputConstraint):
            raise InvalidRequest(f"constraint must be a constraint such as JsonSchema(...), not {constraint!r}")
        check_constraint(constraint.constraint)
        port = current_port()
        await port.release_abandoned()
        return cls(port, await port.transport.call(CompileGrammar(constraint.constraint, model_name(model))))

    def matcher(self) -> Matcher:
        """Return a matcher at the start of the text. The runtime hears of it at its first awaited call."""
        return Matcher(self, self._handle.port, self._may_be_empty)

    async def open_matcher(self) -> MatcherState:
        """Make a matcher in the runtime: what :meth:`matcher` does at its first call."""
        await self._handle.port.release_abandoned()
        state: MatcherState = await self._handle.call(OpenMatcher(self._handle.number()))
        return state

    async def release(self) -> None:
        """Give the grammar back. Its matchers go on. Safe to call twice."""
        await self._handle.release()

    async def __aenter__(self) -> Grammar:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class Matcher:
    """A place in a text of a grammar. Made by :meth:`Grammar.matcher` and :meth:`fork`; one task at a time.

    :attr:`depth`, :attr:`may_end` and :attr:`ended` are known without asking: every call brings them up to date.
    Release it when you are done, as a :class:`Grammar`.
    """

    def __init__(self, grammar: Grammar, port: Port, may_end: bool) -> None:
        self._grammar = grammar
        self._port = port
        self._handle: _RuntimeHandle | None = None
        self._opening = asyncio.Lock()
        self._state = MatcherState(0, 0, may_end, ended=False)

    @property
    def depth(self) -> int:
        """Number of accepted tokens, end-of-text included."""
        return self._state.depth

    @property
    def may_end(self) -> bool:
        """True if the text is complete: end-of-text is among the allowed tokens."""
        return self._state.may_end

    @property
    def ended(self) -> bool:
        """True if end-of-text was accepted."""
        return self._state.ended

    async def mask(self) -> TokenMask:
        """Return the token ids that may come next, as ``forward(mask=...)`` takes them; only end-of-text once it has ended."""
        reply: AllowedTokens = await self._call(GetMask(await self._number()))
        return TokenMask.from_wire(reply.tokens, reply.bits)

    async def accept(self, tokens: Sequence[int]) -> int:
        """Accept tokens up to the first one that is not legal; returns how many were accepted. A refused one changes nothing."""
        ids, taken = checked_tokens("tokens", tokens), 0
        number = await self._number()
        for first in range(0, len(ids), MAX_ACCEPT):
            part = ids[first : first + MAX_ACCEPT]
            state = self._learn(await self._call(AcceptTokens(number, part)))
            taken += state.accepted
            if state.accepted < len(part):
                break
        return taken

    async def rollback(self, n: int) -> None:
        """Undo the last ``n`` tokens. Raises InvalidRequest for more than were accepted."""
        check_rollback(RollbackMatcher(0, n))
        self._learn(await self._call(RollbackMatcher(await self._number(), n)))

    async def forced(self) -> bytes:
        """Return the bytes that every continuation begins with: UTF-8, maybe cut inside a character. Empty if it can differ.

        Of a longer text the first 4,096 bytes: behind them it is asked again.
        """
        return base64.b64decode((await self._forced()).data)

    async def forced_tokens(self) -> list[int]:
        """Return the tokens of :meth:`forced`, without its end where that could be part of a longer token."""
        return list((await self._forced()).tokens)

    async def fork(self) -> Matcher:
        """Return an independent matcher at the same place."""
        number = await self._number()
        await self._port.release_abandoned()
        copy = Matcher(self._grammar, self._port, self.may_end)
        copy._adopt(await self._call(ForkMatcher(number)))
        return copy

    async def release(self) -> None:
        """Give the matcher back. Safe to call twice, and before it was used."""
        async with self._opening:
            if self._handle is None:
                self._handle = _RuntimeHandle(self._port, None)
        await self._handle.release()

    async def __aenter__(self) -> Matcher:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def _number(self) -> int:
        """Return its number in the runtime, where the first call makes it."""
        async with self._opening:
            if self._handle is None:
                self._adopt(await self._grammar.open_matcher())
        assert self._handle is not None
        return self._handle.number()

    def _adopt(self, state: MatcherState) -> None:
        self._handle = _RuntimeHandle(self._port, state.matcher)
        self._learn(state)

    def _learn(self, state: MatcherState) -> MatcherState:
        self._state = state
        return state

    async def _forced(self) -> Forced:
        reply: Forced = await self._call(GetForced(await self._number()))
        return reply

    async def _call(self, request: Any) -> Any:
        return await self._port.transport.call(request)


class _RuntimeHandle:
    """A number in the runtime that is given back once: by hand, or by the garbage collector. None: there is nothing."""

    def __init__(self, port: Port, number: int | None) -> None:
        self.port = port
        self._number = number

    def number(self) -> int:
        """Raises InvalidRequest once it was released."""
        if self._number is None:
            raise InvalidRequest("this grammar or matcher was released; make a new one")
        return self._number

    async def call(self, request: Any) -> Any:
        """Send a request."""
        return await self.port.transport.call(request)

    async def release(self) -> None:
        """Release it in the runtime. Safe to call twice."""
        if self._number is not None:
            number, self._number = self._number, None
            await self.call(ReleaseGrammar(number))

    def __del__(self) -> None:
        if self._number is not None:
            self.port.abandon([ReleaseGrammar(self._number)])
