"""Rejection sampling with a draft side that is late now and then: what it has drawn must not decide whether it is in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from distribution import p_value

from inferd.protocol import Sampling
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.draft_sampling import Guess
from inferd_runtime.draft_models.drafter import DraftModelDrafter, DraftModelLink
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer
from inferd_runtime.draft_models.models import DraftModel, DraftModels
from inferd_runtime.draft_models.sequence import DraftSequence
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import LogitRows, RowSampler
from inferd_runtime.testing.byte_tokenizer import ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver

PROMPT = [4, 4]
TARGET, DRAFT = (0.2, 0.2, 0.2, 0.4), (0.15, 0.2, 0.15, 0.5)
END = 3
RUNS = 600
SIGNIFICANCE = 1e-4


class Flat(NullDriver):
    """The same distribution at every place; no end of text behind the prompt, where nothing is drafted yet."""

    def __init__(self, probabilities: Sequence[float]) -> None:
        super().__init__(vocab_size=len(probabilities) + 1, pages=64)
        self._logits = np.log(np.array([*probabilities, 1e-20], np.float32))

    def logits(self, history: Sequence[int]) -> LogitRows:
        row = self._logits.copy()
        row[END] = -50.0 if history[-1] == PROMPT[-1] else row[END]
        return row


class Slow:
    """A draft side that makes a step when the test says so, and whose answers come when they are polled."""

    overlaps = True
    round_trip = 0.0
    waits_on: Sequence[Any] = ()

    def __init__(self) -> None:
        self.host = DraftHost(Engine(Flat(DRAFT), EngineOptions(swap_bytes=0)), [END])
        self._answers: list[tuple[AnswerCallback, DraftAnswer]] = []

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        self.host.ask(None, request, lambda answer: self._answers.append((done, answer)))

    def drop(self, sequence: int) -> None:
        self.host.drop(None, sequence)

    def poll(self) -> bool:
        answers, self._answers = self._answers, []
        for done, answer in answers:
            done(answer)
        return bool(answers)

    def close(self) -> None: ...


class Race(DraftLength):
    """Four tokens, and no step waits for them."""

    measured = False

    def choose(self) -> tuple[int, bool]:
        return 4, True


class Wait(DraftLength):
    """Four tokens, and steps wait for them until the time is up."""

    measured = False

    def choose(self) -> tuple[int, bool]:
        return 4, False


def second_token(engine: Engine, models: DraftModels, seed: int, between: Callable[[], None]) -> int:
    """What a generation brings behind its first token."""
    sampler = RowSampler.resolve(Sampling(temperature=1.0), seed=seed, lineage=0)
    context = engine.create_context("tenant")
    context.append(PROMPT)
    drafter = models.open(tenant="tenant", sampler=sampler, verifier="rejection")
    assert isinstance(drafter, DraftModelDrafter)
    drafter._warm = True  # as from the second draft on
    spec = GenerationSpec(sampler, 6, [END], None, engine.draft_budget.sources([drafter]))
    generation = Generation(context, spec, TextAssembler(ByteTokenizer().stream(), ()))
    engine.submit(generation)
    while len(context.tokens) < len(PROMPT) + 2:
        engine.step()
        between()
    token = context.tokens[len(PROMPT) + 1]
    generation.close()
    context.release()
    models.poll()
    return token


def joint(lengths: type[DraftLength], timeout: float, steps: int) -> float:
    """The p-value of the second token, with ``steps`` of the draft model to one of the target's."""
    engine, slow, seconds = Engine(Flat(TARGET)), Slow(), [0.0]
    line = DraftModelLink(slow, 64, timeout=timeout, clock=lambda: seconds[0])
    models = DraftModels([DraftModel("draft", line, len(DRAFT) + 1)], lengths=lengths)

    def between() -> None:
        for _ in range(steps):
            slow.host.step()
        seconds[0] += 1.0
        models.poll()

    found = np.bincount([second_token(engine, models, seed, between) for seed in range(RUNS)], minlength=len(TARGET))
    return p_value(found, np.array(TARGET))


CASES = {
    "one step": partial(joint, Race, 0.0, 1),
    "two steps": partial(joint, Race, 0.0, 2),
    "four steps": partial(joint, Race, 0.0, 4),
    "a time-out": partial(joint, Wait, 2.5, 1),
}


def shorter_where_the_text_ends(patch: pytest.MonkeyPatch) -> None:
    honest = DraftSequence._take

    def take(sequence: DraftSequence, guess: Guess) -> None:
        honest(sequence, guess)
        sequence._ended |= guess.token in sequence._eos

    patch.setattr(DraftSequence, "_take", take)


@pytest.mark.parametrize("case", CASES)
def test_a_late_draft_side_does_not_favour_the_end_of_text(case: str) -> None:
    assert CASES[case]() > SIGNIFICANCE


@pytest.mark.parametrize("case", ["one step", "a time-out"])
def test_it_is_found_when_drafts_are_shorter_where_the_text_ends(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shorter_where_the_text_ends(monkeypatch)
    assert CASES[case]() < SIGNIFICANCE
