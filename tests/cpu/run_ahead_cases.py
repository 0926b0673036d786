"""Streams of all kinds on the fast driver, run ahead of and not: what the tests on a CPU and on a device share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cuda_bench import FREE_ROWS, SAMPLERS, CudaBench

from inferd.protocol import TokenLogprob
from inferd_grammar import Compiled, GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine import overlap as planning
from inferd_runtime.engine.drivers.carried import CarriedRows
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import Proposal
from inferd_runtime.testing.byte_tokenizer import END, ByteTokenizer
from inferd_runtime.testing.speculation import Blind, GenerationUnderTest, Oracle, Request

BYTES = 272
KNOWN = (2, 3, 10)
"""Streams whose answers are drafted where they are known: one with penalties, a greedy one, one with filters."""


def compiled() -> Compiled:
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=BYTES, eos_ids=[END])
    return GrammarCompiler(table).compile(RegexGrammar(r"[a-d]{3,20}=(x|yy|[0-4]{2})"))


def check_the_same(bench: CudaBench) -> None:
    """Texts and log-probabilities, whose last bits depend on the company that their rows have. Run ahead, some streams draft what
    they wrote in the plain loop.
    """
    plain, none = texts(bench, overlap=False)
    ahead, begun = texts(bench, overlap=True, answers=[tokens for tokens, _ in plain])
    assert [tokens for tokens, _ in ahead] == [tokens for tokens, _ in plain]
    assert begun > 10
    assert none == 0
    for (_, scores), (_, others) in zip(ahead, plain, strict=True):
        assert [one.token for one in scores] == [one.token for one in others]
        for one, other in zip(scores, others, strict=True):
            assert (one.rank, one.top_tokens) == (other.rank, other.top_tokens)
            assert [one.logprob, *one.top_logprobs] == pytest.approx([other.logprob, *other.top_logprobs], abs=1e-3)


def texts(
    bench: CudaBench, *, overlap: bool, answers: Sequence[list[int]] = ()
) -> tuple[list[tuple[list[int], list[TokenLogprob]]], int]:
    """The tokens of twelve streams that come one after the other, with the log-probabilities of some, and how many steps began
    without their masks.
    """
    begun = count_calls(bench.driver, "begin")
    engine = Engine(bench.driver, EngineOptions(token_budget=40, times=FREE_ROWS, overlap=overlap))
    grammar, running = compiled(), list[GenerationUnderTest]()
    for number in range(12):
        sampler = RowSampler.resolve(SAMPLERS[("argmax", "filtered", "penalised")[number % 3]], seed=number, lineage=0)
        prompt = tuple(97 + (number * 7 + at) % 20 for at in range(1 + 5 * number))
        request = Request(prompt, sampler, 16, END, grammar=grammar if number % 4 == 1 else None)
        context = engine.create_context()
        context.append(prompt)
        sources: list[Drafter] = [Blind(request, BYTES, 1)] if number == 7 else []
        if answers and number in KNOWN:
            sources = [Oracle(replace(request, tokens=tuple(answers[number][len(prompt) :])), BYTES)]
        logprobs = {5: 0, 7: 3, 8: 2}.get(number)
        running.append(GenerationUnderTest.submit(engine, context, request, sources, logprobs=logprobs, forced=False))
        engine.step()
    while not all(one.generation.finished() for one in running):
        engine.step()
        engine.check_integrity()
        for one in running:
            one.take()
    assert not any(one.generation.error for one in running)
    assert not answers or min(running[number].accepted for number in KNOWN) > 2
    assert [len(one.scores) for one in running if one.scores] == [len(running[number].tokens) for number in (5, 7, 8)]
    found = [(list(one.generation.context.tokens), one.scores) for one in running]
    for one in running:
        one.generation.close()
        one.generation.context.release()
    engine.close()
    engine.pool.check_integrity([])
    return found, begun()


class Half(Oracle):
    """Up to five tokens, the third of every other chain wrong."""

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        tokens = self.right(min(limit, 5), ahead)
        if len(tokens) > 2 and (self.seen + len(ahead)) % 2:
            tokens[2] = (tokens[2] + 1) % BYTES
        return Proposal(tokens)


def check_behind_drafts(bench: CudaBench) -> None:
    """Streams that all draft, and go on behind drafts of which a part falls: the texts of the plain loop."""
    plain, _ = drafting_texts(bench, overlap=False)
    ahead, moved = drafting_texts(bench, overlap=True, answers=plain)
    assert ahead == plain
    assert moved > 3


def drafting_texts(
    bench: CudaBench, *, overlap: bool, answers: Sequence[list[int]] = ()
) -> tuple[list[list[int]], int]:
    """The tokens of eight streams, and how many steps had rows that were moved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "MOST_LOST", 1.0)
        moves = list[int]()
        honest = CarriedRows.move_back
        patch.setattr(CarriedRows, "move_back", lambda rows, inputs: (moves.append(1), honest(rows, inputs))[1])
        engine = Engine(bench.driver, EngineOptions(token_budget=60, times=FREE_ROWS, overlap=overlap))
        running = list[GenerationUnderTest]()
        for number in range(8):
            name = ("argmax", "filtered", "penalised")[number % 3]
            prompt = tuple(97 + (number * 5 + at) % 20 for at in range(1 + 3 * number))
            request = Request(prompt, RowSampler.resolve(SAMPLERS[name], seed=number, lineage=0), 24, END)
            context = engine.create_context()
            context.append(prompt)
            known = replace(request, tokens=tuple(answers[number][len(prompt) :])) if answers else request
            running.append(
                GenerationUnderTest.submit(engine, context, request, [Half(known, BYTES)] if answers else [])
            )
            engine.step()
        while not all(one.generation.finished() for one in running):
            engine.step()
            engine.check_integrity()
            for one in running:
                one.take()
    assert not any(one.generation.error for one in running)
    found = [list(one.generation.context.tokens) for one in running]
    for one in running:
        one.generation.close()
        one.generation.context.release()
    engine.close()
    engine.pool.check_integrity([])
    return found, len(moves)


def count_calls(owner: Any, name: str) -> Callable[[], int]:
    """Count calls of a method until the returned call is made, which tells how many there were."""
    method, calls = getattr(owner, name), list[int]()

    def counted(*given: Any) -> Any:
        calls.append(1)
        return method(*given)

    def ended() -> int:
        delattr(owner, name)
        return len(calls)

    setattr(owner, name, counted)
    return ended
