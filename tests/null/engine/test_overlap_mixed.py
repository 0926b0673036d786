"""Running ahead in mixed company: drafts, grammars, penalties, log-probabilities, prompts and newcomers side by side.

Every text is held to what the model says row after row, with the loop that runs ahead and with its plain twin.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sampling_driver
from sampling_driver import FinishedStep, SamplingNullDriver

from inferd.protocol import Sampling
from inferd_grammar import Compiled, GrammarCompiler, RegexGrammar, TokenTable
from inferd_runtime.engine import carried_rows, overlap
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.in_flight import InFlightStep
from inferd_runtime.engine.jobs.forward_pass import ForwardPass, Prefill, RowSpec
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.grammar_masks import GrammarCursor
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.device_sampling import SamplingInputs
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.batch import Batch, Ids, Outputs
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import WrongHistory
from inferd_runtime.testing.speculation import BlindTree, GenerationUnderTest, Guesser, Oracle, Request

from .overlap_cases import (
    FREE_ROWS,
    GREEDY,
    MODEL,
    Device,
    Half,
    Patch,
    Right,
    Watched,
    finish,
    make_request,
    release,
    start,
)

WORDS = -(-VOCAB_SIZE // 32)
PENALISED = RowSampler.resolve(Sampling(0.8, repetition_penalty=1.3, presence_penalty=0.5), seed=3, lineage=0)
KINDS = (
    "plain", "penalties", "grammar", "forced", "drafts", "right drafts", "half drafts", "penalised drafts", "scored drafts",
    "trees", "log-probabilities", "typical",
)  # fmt: skip
DRAFTING = [kind for kind in KINDS if kind.endswith("drafts")]


def compiled(pattern: str) -> Compiled:
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    return GrammarCompiler(table).compile(RegexGrammar(pattern))


@pytest.fixture(scope="module")
def grammar() -> Compiled:
    return compiled(r"(a[0-4]{3}|b[5-9]{3}|[x-z]{4}){1,9}")


def make_driver(**options: Any) -> Watched:
    return Watched(vocab_size=VOCAB_SIZE, scale=1.0, max_context=100, **options)


def begin(
    engine: Engine, driver: SamplingNullDriver, kind: str, seed: int, grammar: Compiled, max_tokens: int = 30
) -> GenerationUnderTest:
    """A generation of a kind, held to its answer."""
    prompt = [97 + (seed + at) % 20 for at in range(1 + seed % 17)]
    sampler = {
        "penalties": PENALISED,
        "penalised drafts": PENALISED,
        "typical": RowSampler.resolve(Sampling(1.0, typical_p=0.7), seed=seed, lineage=0),
    }
    asked = grammar if kind in ("grammar", "forced") else None
    request = make_request(driver, prompt, 5 * seed + seed % 4, max_tokens=max_tokens, grammar=asked)
    if kind in sampler:
        request = Request(tuple(prompt), sampler[kind], max_tokens).answered(driver)
    known: dict[str, list[type[Guesser]]] = {"right drafts": [Right], "half drafts": [Half], "trees": [BlindTree]}
    drafters = known.get(kind, [Oracle] if kind.endswith("drafts") else [])
    logprobs = 2 if kind in ("log-probabilities", "scored drafts") else None
    sources = [make(request, VOCAB_SIZE, seed) for make in drafters]
    return start(engine, request, sources, logprobs=logprobs, forced=kind == "forced")


# -- How often --------------------------------------------------------------------------------------------------------


def share(kind: str, percent: int, grammar: Compiled) -> float:
    """Which part of the first 28 steps of 64 streams, so many of a kind, is launched early."""
    driver = make_driver(pages=3000, checked=False)
    engine = Engine(driver, EngineOptions(512, times=FREE_ROWS))
    odd = round(64 * percent / 100)
    kinds = [kind] * odd + ["plain"] * (64 - odd)
    running = [begin(engine, driver, one, seed, grammar) for seed, one in enumerate(kinds)]
    finish(engine, running)
    return sum(driver.early[:28]) / 28


@pytest.mark.parametrize("percent", [5, 20, 100])
@pytest.mark.parametrize("kind", ["penalties", "grammar", "log-probabilities"])
def test_masks_penalties_and_log_probabilities_do_not_end_the_overlap(
    kind: str, percent: int, grammar: Compiled
) -> None:
    assert share(kind, percent, grammar) > 0.9


@pytest.mark.parametrize("kind", ["drafts", "typical"])
def test_the_others_run_ahead_while_some_sit_out(kind: str, grammar: Compiled) -> None:
    assert share(kind, 5, grammar) > 0.9
    assert share(kind, 100, grammar) < 0.2, "where all would lose much, nobody does"


def time_of(kind: str, busy: float, grammar: Compiled, *, ahead: bool) -> tuple[float, float]:
    """How long 16 streams of 80 tokens take where the device takes ``busy`` for a step and the host 1, and which part of the
    first twelve steps is launched early.
    """
    driver = Device(busy, vocab_size=VOCAB_SIZE, scale=1.0, max_context=100, pages=3000)
    engine = Engine(driver, EngineOptions(512, times=FREE_ROWS, overlap=ahead, clock=lambda: driver.now))
    finish(engine, [begin(engine, driver, kind, seed, grammar, 80) for seed in range(16)])
    return driver.now, sum(driver.early[:12]) / 12


@pytest.mark.parametrize("kind", ["right drafts", "half drafts"])
def test_where_the_host_takes_as_long_as_the_device_all_go_on_behind_their_drafts(kind: str, grammar: Compiled) -> None:
    """Behind each a row goes on, with a draft of its own behind a token that nobody knows yet."""
    (ahead, early), (plain, none) = (time_of(kind, 1.0, grammar, ahead=one) for one in (True, False))
    assert early > 0.8
    assert none == 0
    assert ahead < 0.85 * plain


@pytest.mark.parametrize("kind", ["right drafts", "half drafts"])
def test_where_the_device_takes_far_longer_little_is_lost(kind: str, grammar: Compiled) -> None:
    (ahead, _), (plain, _) = (time_of(kind, 9.0, grammar, ahead=one) for one in (True, False))
    assert ahead < 1.1 * plain


@pytest.mark.parametrize("kind", ["drafts", "half drafts"])
def test_others_do_not_wait_for_drafts_of_every_other_stream(kind: str, grammar: Compiled) -> None:
    """Which fall, or do not: their jobs go on as well, with a token in every step."""
    assert share(kind, 25, grammar) > 0.9


def behind_drafts(seed: int, pages: int, grammar: Compiled, width: int = 0) -> int:
    """Streams that draft, all of which go on whatever is lost: their texts, and how many rows the device moved."""
    driver, moved, honest = make_driver(pages=pages), list[int](), carried_rows.shifts

    def shifts(batch: Batch, rejected: Ids) -> Ids:
        moved.append(np.count_nonzero(honest(batch, rejected)))
        return honest(batch, rejected)

    engine = Engine(driver, EngineOptions(40, times=FREE_ROWS, fixed_rows=width))
    running = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlap, "MOST_LOST", 1.0)
        patch.setattr(carried_rows, "shifts", shifts)
        for number in range(12):
            kind = DRAFTING[(seed + number) % len(DRAFTING)]
            running.append(begin(engine, driver, kind, seed + number, grammar, 20 + 5 * (number % 4)))
            engine.step()
        finish(engine, running)
    release(engine, running)
    return sum(moved)


@pytest.mark.parametrize(("pages", "width"), [(600, 0), (70, 0), (600, 6)])
def test_rows_behind_drafts_that_fall_stand_where_the_text_goes_on(pages: int, width: int, grammar: Compiled) -> None:
    assert all(behind_drafts(seed, pages, grammar, width) > 5 for seed in range(4))


# -- The same texts ---------------------------------------------------------------------------------------------------


def in_any_company(seed: int, pages: int, grammar: Compiled, *, ahead: bool) -> int:
    """Jobs of all kinds come, are closed and go on; texts are what they have to be. How many steps were launched early."""
    chance = random.Random(seed)
    driver = make_driver(pages=pages)
    engine = Engine(driver, EngineOptions(24, times=FREE_ROWS, overlap=ahead))
    running: list[GenerationUnderTest] = []
    for number in range(24):
        running.append(begin(engine, driver, chance.choice(KINDS), number, grammar, chance.choice((2, 9, 40))))
        if chance.random() < 0.3:
            submit_another(engine, chance)
        for _ in range(chance.randrange(4)):
            engine.step()
            engine.check_integrity()
            for one in running:
                one.take()
        if chance.random() < 0.3:
            cancelled = running.pop(chance.randrange(len(running)))
            assert tuple(cancelled.tokens) == cancelled.request.tokens[: len(cancelled.tokens)]
            cancelled.generation.close()
            cancelled.generation.context.release()
    finish(engine, running)
    while engine.step():
        engine.check_integrity()
    for context in list(engine.contexts):
        if context.user is None:
            context.release()
    release(engine, [one for one in running if one.generation.context.user is not None])
    return sum(driver.early)


def submit_another(engine: Engine, chance: random.Random) -> None:
    """A prompt to be read, or a program's own pass, in chunks."""
    context = engine.create_context()
    tokens = chance.choices(range(97, 120), k=chance.randrange(2, 60))
    if chance.random() < 0.5:
        context.append(tokens)
        engine.submit(Prefill(context))
    else:
        engine.submit(ForwardPass(context, tokens, sorted({0, len(tokens) // 2}), RowSpec(GREEDY)))


@pytest.mark.parametrize("pages", [600, 60])
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 300), marks=pytest.mark.long)])
def test_texts_are_the_same_in_any_company(seeds: range, pages: int, grammar: Compiled) -> None:
    early = [in_any_company(seed, pages, grammar, ahead=True) for seed in seeds]
    assert sum(early) > 10 * len(seeds)
    assert not any(in_any_company(seed, pages, grammar, ahead=False) for seed in seeds[:4])


@pytest.mark.parametrize("first", [True, False])
def test_a_text_that_is_steered_to_its_end_is_the_same(first: bool) -> None:
    """The token that is written is not the one that the device drew, and has fed already."""
    texts, grammar = [], compiled(r"[a-d]{1,60}=end")
    for ahead in (first, False):
        driver = make_driver()
        engine = Engine(driver, EngineOptions(overlap=ahead))
        generations = []
        for seed in range(6):
            context = engine.create_context()
            context.append([97, 98 + seed])
            cursor = GrammarCursor(grammar.matcher(), WORDS, [END], grammar.planner())
            sampler = RowSampler.resolve(Sampling(1.0), seed=seed, lineage=0)
            spec = GenerationSpec(sampler, 8 + seed, [END], cursor)
            generations.append(Generation(context, spec, TextAssembler(ByteTokenizer().stream(), ())))
            engine.submit(generations[-1])
        while not all(one.finished() for one in generations):
            engine.step()
            engine.check_integrity()
            for one in generations:
                driver.check_sequence(one.context)
        texts.append([one.context.tokens for one in generations])
        assert {one.finish for one in generations} == {"stop"}
        assert any(driver.early) == ahead
    assert texts[0] == texts[1]


def test_what_follows_at_once_on_the_same_context_keeps_its_pages() -> None:
    """A row of the generation that has ended is still on the device, and given up, while the next one's pages are reserved."""
    driver = Watched(**MODEL, page_size=1)
    engine = Engine(driver)
    beside = start(engine, make_request(driver, [2], 0, max_tokens=50))
    context, tokens = engine.create_context(), [1, 2]
    context.append(tokens)
    for seed in range(12):
        request = make_request(driver, context.tokens, seed, max_tokens=3, eos=4)
        one = GenerationUnderTest.submit(engine, context, request, [])
        while not one.generation.finished():
            engine.step()
            engine.check_integrity()
            one.take()
            beside.take()
        one.check()
        one.generation.close()
    assert all(driver.early[2:])
    finish(engine, [beside])


def test_a_prompt_that_finds_no_room_is_let_in_in_the_end() -> None:
    """Streams that run ahead of each other do not keep it out for longer than the plain loop would."""
    steps = []
    for ahead in (True, False):
        driver = Watched(**{**MODEL, "max_context": 900}, pages=220)
        engine = Engine(driver, EngineOptions(overlap=ahead))
        long = [start(engine, make_request(driver, [1], 0, max_tokens=500)) for _ in range(2)]
        for _ in range(200):
            engine.step()
            for one in long:
                one.take()
        late = start(engine, make_request(driver, [2] * 500, 0, max_tokens=2))
        begun = engine.steps
        while not late.generation.finished():
            engine.step()
            for one in (*long, late):
                one.take()
        steps.append(engine.steps - begun)
        finish(engine, [*long, late], 2000)
        release(engine, [*long, late])
    assert abs(steps[0] - steps[1]) <= 2, steps


# -- What goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["launch", "wait"])
@pytest.mark.parametrize("number", range(1, 6))
def test_a_step_that_fails_in_mixed_company_ends_its_own_jobs_alone(where: str, number: int, grammar: Compiled) -> None:
    driver = make_driver()
    engine = Engine(driver, EngineOptions(times=FREE_ROWS))
    (driver.fail_launch if where == "launch" else driver.fail_wait).add(number)
    running = [begin(engine, driver, kind, seed, grammar) for seed, kind in enumerate(KINDS)]
    while any(not one.generation.finished() for one in running):
        assert engine.step()
        engine.check_integrity()
        for one in running:
            one.take()
            assert tuple(one.tokens) == one.request.tokens[: len(one.tokens)]
    assert any(one.generation.error is not None for one in running)
    again = [begin(engine, driver, kind, seed, grammar) for seed, kind in enumerate(KINDS)]
    finish(engine, again)
    release(engine, [*running, *again])


def nothing_filled_in(patch: Patch) -> None:
    patch.setattr(Generation, "completed", lambda one, work: work._replace(late=False))


def position_behind(patch: Patch) -> None:
    honest = overlap._completed
    patch.setattr(overlap, "_completed", lambda item: honest(item)._replace(ahead=item.ahead))


def what_was_drawn_stands(patch: Patch) -> None:
    patch.setattr(InFlightStep, "discard", lambda step, jobs: None)


def rows_stay_where_they_were_planned(patch: Patch) -> None:
    patch.setattr(carried_rows, "shifts", lambda batch, rejected: np.zeros_like(batch.tokens))


def noise_of_the_planned_place(patch: Patch) -> None:
    patch.setattr(sampling_driver, "sampled_there", lambda sampling, batch, rejected: sampling)


def slots_of_the_first_page(patch: Patch) -> None:
    patch.setattr(carried_rows, "_slots", lambda span, positions, size: span.pages[0] * size + positions % size)


def first_token_is_carried(patch: Patch) -> None:
    honest = Watched.draw

    def draw(driver: Watched, outputs: Outputs, sampling: SamplingInputs) -> FinishedStep:
        step = honest(driver, outputs, sampling)
        sampled = driver.launches[-1].wait().sampled
        assert sampled is not None
        driver._last = sampled.tokens[:, 0].tolist()
        driver.launches[-1].waited = False
        return step

    patch.setattr(Watched, "draw", draw)


def pages_of_the_next_not_kept(patch: Patch) -> None:
    patch.setattr(PageTable, "trim_unplanned", PageTable.trim)


def check_late_rows(grammar: Compiled) -> None:
    share("penalties", 100, grammar)
    share("grammar", 100, grammar)


def check_behind_drafts(grammar: Compiled) -> None:
    behind_drafts(0, 600, grammar)


FAULTS: dict[str, tuple[Callable[[Patch], None], Callable[[Compiled], object]]] = {
    "no mask and no penalty is filled in": (nothing_filled_in, check_late_rows),
    "a late row is sampled for the place behind its own": (position_behind, check_late_rows),
    "a token that was not written stays fed": (
        what_was_drawn_stands, lambda grammar: test_a_text_that_is_steered_to_its_end_is_the_same(True),
    ),
    "behind a draft its first token is fed": (first_token_is_carried, check_behind_drafts),
    "rows behind a draft that fell stay where they were planned": (rows_stay_where_they_were_planned, check_behind_drafts),
    "they are sampled with the noise of that place": (noise_of_the_planned_place, check_behind_drafts),
    "they are written into another page": (slots_of_the_first_page, check_behind_drafts),
    "what a row is given up for goes with it": (
        pages_of_the_next_not_kept, lambda grammar: test_what_follows_at_once_on_the_same_context_keeps_its_pages(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str, grammar: Compiled, monkeypatch: Patch) -> None:
    build_in, check = FAULTS[fault]
    build_in(monkeypatch)
    with pytest.raises((AssertionError, WrongHistory)):
        check(grammar)
