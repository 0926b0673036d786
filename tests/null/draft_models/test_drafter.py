"""A generation's stream: what is proposed, what becomes of it behind a step, and how long anybody waits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hand_clock import HandClock

from inferd.protocol import LimitExceeded
from inferd_runtime.draft_models.direct import DirectDrafts
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelDrafter, DraftModelLink
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.bridge import SharedVocabulary
from inferd_runtime.testing.byte_tokenizer import ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver

PROMPT = [1, 2, 3, 4, 5]
Sampler = Callable[..., RowSampler]
MakeHost = Callable[..., DraftHost]


class Post:
    """A transport whose other end is the test."""

    overlaps = True
    round_trip = 0.0
    waits_on: Sequence[Any] = ()

    def __init__(self) -> None:
        self.sent: list[tuple[AskDraft, AnswerCallback]] = []
        self.dropped: list[int] = []

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        self.sent.append((request, done))

    def drop(self, sequence: int) -> None:
        self.dropped.append(sequence)

    def poll(self) -> bool:
        return False

    def close(self) -> None: ...

    @property
    def last(self) -> AskDraft:
        return self.sent[-1][0]

    def answer(self, tokens: Sequence[int], at: int = -1, **fields: Any) -> None:
        request, done = self.sent[at]
        base = request.start + len(request.tokens)
        done(
            DraftAnswer(
                base, list(tokens), [0.9] * len(tokens), drawn=len(tokens), seconds=0.003 * len(tokens), **fields
            )
        )


class Four(DraftLength):
    """Always wants four tokens."""

    measured = False

    def choose(self) -> tuple[int, bool]:
        return 4, False


class Worth(Four):
    """Finds that 30 ms of waiting pay."""

    def patience(self, count: int) -> float:
        return 0.03


class Stand:
    """A drafter between a transport that the test answers and a clock that the test sets."""

    def __init__(self, spec: DraftSpec, length: type[DraftLength] = Four) -> None:
        self.post, self.clock = Post(), HandClock()
        self.line = DraftModelLink(self.post, 512, timeout=1.0, clock=self.clock)
        self.speeds: list[float] = []
        self.drafter = DraftModelDrafter(
            self.line,
            7,
            SharedVocabulary(12),
            spec,
            length=length(self.line.experience, most=4, overlaps=True),
            on_drop=self.speeds.append,
        )

    def step(self, *tokens: int) -> None:
        """A step of the target."""
        proposed = len(self.drafter.propose(16).tokens)
        if proposed:
            self.drafter.feedback(proposed, min(proposed, len(tokens) - 1))
        self.clock.now += 0.01
        self.drafter.observe(tokens)


@pytest.fixture
def spec(sampler: Sampler) -> DraftSpec:
    return DraftSpec("tenant", sampler(), width=12)


@pytest.fixture
def stand(spec: DraftSpec) -> Stand:
    stand = Stand(spec)
    stand.drafter.observe(PROMPT)
    return stand


class Unmeasured(DraftLength):
    """Chooses by what it learns, but asks from the first step on."""

    measured = False


def length_of(line: DraftModelLink) -> DraftLength:
    return Unmeasured(line.experience, most=6, overlaps=line.transport.overlaps)


def test_the_prompt_is_sent_once_and_then_what_is_new(stand: Stand, spec: DraftSpec) -> None:
    assert stand.post.last.spec == spec
    assert (stand.post.last.start, stand.post.last.tokens) == (0, PROMPT)
    stand.post.answer([6, 7, 8, 9])
    assert (stand.post.last.start, stand.post.last.tokens) == (5, [])
    assert stand.post.last.spec is None
    assert stand.post.last.count > 4, "it runs ahead while the target verifies"
    stand.step(6, 7, 0)
    assert (stand.post.last.start, stand.post.last.tokens) == (5, [6, 7, 0])


def test_a_hit_goes_on_and_a_miss_starts_again(stand: Stand) -> None:
    counters = stand.line.counters
    stand.post.answer([6, 7, 8, 9])
    assert list(stand.drafter.propose(16).tokens) == [6, 7, 8, 9]
    stand.post.answer([6, 7, 8, 9, 10, 11, 0, 1, 2])
    stand.step(6, 7, 8, 9, 10)
    assert (counters.hits, counters.misses) == (1, 0)
    assert list(stand.drafter.propose(16).tokens) == [11, 0, 1, 2], "there at once"
    stand.step(11, 5)
    assert (counters.hits, counters.misses) == (1, 1)
    assert not stand.drafter.propose(16).tokens
    stand.post.answer([3, 3])
    assert list(stand.drafter.propose(16).tokens) == [3, 3]


def test_answers_that_commits_overtook_count_as_far_as_they_agree(stand: Stand) -> None:
    stand.post.answer([6])
    stand.step(6)
    stand.post.answer([6, 7, 8, 9, 10], at=-2)
    assert list(stand.drafter.propose(16).tokens) == [7, 8, 9, 10]
    stand.step(0)
    stand.post.answer([6, 0, 9, 9, 9, 9], at=-3)
    assert not stand.drafter.propose(16).tokens, "drawn before the miss"


def test_what_is_certain_to_come_leads_to_the_place(stand: Stand) -> None:
    stand.post.answer([6, 7, 8, 9])
    assert list(stand.drafter.propose(16, [6, 7]).tokens) == [8, 9]
    assert not stand.drafter.propose(16, [6, 0]).tokens
    assert not stand.drafter.propose(16, [6, 7, 8, 9]).tokens
    proposal = stand.drafter.propose(2)
    assert (list(proposal.tokens), len(proposal.confidence)) == ([6, 7], 2)


def test_nobody_waits_for_the_prompt_and_a_step_waits_for_a_draft_until_the_time_is_up(stand: Stand) -> None:
    assert stand.drafter.ready()
    assert stand.drafter.patience() is None
    stand.post.answer([6, 7])
    assert stand.drafter.ready()
    stand.step(0)
    assert not stand.drafter.ready()
    assert stand.drafter.patience() == pytest.approx(1.0)
    stand.clock.now += 0.25
    assert not stand.drafter.ready()
    stand.post.answer([3, 4, 5, 6])
    assert stand.drafter.ready()
    assert list(stand.drafter.propose(16).tokens) == [3, 4, 5, 6]
    assert stand.line.counters.waited == pytest.approx(0.25)
    assert stand.line.counters.timeouts == 0


def test_a_far_draft_carries_its_deadline_and_is_not_waited_for_beyond_it(spec: DraftSpec) -> None:
    stand = Stand(spec, Worth)
    stand.post.round_trip, stand.line.remote = 0.002, True
    stand.drafter.observe(PROMPT)
    assert stand.post.last.within == 0.0, "nobody waits for the prompt"
    stand.post.answer([6, 7])
    stand.step(0)
    assert not stand.drafter.ready()
    assert stand.drafter.patience() == pytest.approx(0.03)
    assert stand.post.last.within == pytest.approx(0.028), "what is left when the way is taken off"
    stand.clock.now += 0.031
    assert stand.drafter.ready()
    assert not stand.drafter.propose(16).tokens
    assert stand.line.counters.timeouts == 1


def test_answers_that_come_too_late_are_dropped_counted_and_learnt_from(stand: Stand) -> None:
    stand.line.remote = True
    before = stand.drafter._length.acceptance
    for token in (6, 7, 8):
        stand.step(token)
    stand.post.answer([6, 7, 9], at=0)
    assert not stand.drafter.propose(16).tokens
    assert stand.line.counters.late == 1
    once = stand.drafter._length.acceptance
    assert once != before
    stand.post.answer([6, 7, 9], at=0)
    assert stand.drafter._length.acceptance == once, "each token is learnt once"


def test_a_draft_model_slower_than_a_step_is_waited_for_once_it_has_read_the_prompt(stand: Stand) -> None:
    """Every answer came when the next one was asked for already; so none was ever waited for, and none of any use."""
    stand.drafter.observe(PROMPT)
    stand.step(9)
    assert stand.drafter.ready(), "nobody waits for a prompt"
    stand.post.answer([3, 3, 3, 3], at=0)
    stand.step(8)
    assert not stand.drafter.ready()


def test_no_wake_up_is_lost_when_the_time_is_up_between_the_question_and_the_rest(stand: Stand) -> None:
    stand.post.answer([6, 7])
    stand.step(0)
    assert not stand.drafter.ready()
    stand.clock.now += 1.0
    assert stand.drafter.patience() == 0.0, "it waits, and has to be stepped"
    assert stand.drafter.ready()
    assert stand.drafter.give_up_late()
    assert stand.drafter.patience() is None, "a step loop must not spin for a generation that nobody steps"
    assert not stand.drafter.give_up_late()
    assert stand.drafter.ready()
    assert stand.line.counters.timeouts == 1


def test_nobody_is_woken_for_a_generation_that_was_not_told_to_wait(stand: Stand) -> None:
    stand.post.answer([6, 7])
    stand.step(0)
    assert stand.drafter.patience() is None
    stand.clock.now += 2.0
    assert stand.drafter.patience() is None
    assert stand.line.counters.timeouts == 0


def test_time_outs_pause_the_source_ever_longer_and_an_answer_ends_that(stand: Stand) -> None:
    stand.post.answer([6, 7])
    asked = []
    for _ in range(40):
        before = len(stand.post.sent)
        stand.step(0)
        asked.append(len(stand.post.sent) > before)
        if not stand.drafter.ready():
            stand.clock.now += 1.0
            assert stand.drafter.ready()
            assert not stand.drafter.propose(16).tokens
    where = [at for at, one in enumerate(asked) if one]
    assert [b - a - 1 for a, b in itertools.pairwise(where)] == [1, 2, 4, 8, 16]
    assert stand.line.counters.timeouts == len(where)
    stand.post.answer([1, 2, 3])
    stand.step(0)
    assert not stand.drafter.ready(), "it is trusted again"


@pytest.mark.parametrize("bad", [DraftAnswer(lost=True), DraftAnswer(error="no room")], ids=["lost", "error"])
def test_after_an_error_or_when_it_is_lost_the_sequence_is_sent_whole_but_not_at_once(
    stand: Stand, spec: DraftSpec, bad: DraftAnswer
) -> None:
    stand.post.answer([6, 7])
    stand.step(6)
    stand.post.sent[-1][1](bad)
    before = len(stand.post.sent)
    stand.step(7)
    assert len(stand.post.sent) == before
    stand.step(8)
    assert (stand.post.last.tokens, stand.post.last.spec) == ([*PROMPT, 6, 7, 8], spec)
    assert stand.line.counters.failures == bool(bad.error)


def test_a_draft_side_that_loses_a_sequence_again_and_again_is_not_sent_the_prompt_at_every_step(stand: Stand) -> None:
    """Each time it is answered in between, as where more sequences take turns than there is room for."""
    whole = []
    for at in range(400):
        before = len(stand.post.sent)
        if before and stand.drafter._sent is not None:
            if stand.post.last.spec is None:
                stand.post.sent[-1][1](DraftAnswer(lost=True))
            else:
                stand.post.answer([6, 7])
                stand.post.sent[-1][1](DraftAnswer(lost=True))
        stand.step(0)
        whole += [at] * any(request.spec is not None for request, _ in stand.post.sent[before:])
    assert 4 <= len(whole) <= 10
    gaps = [later - at for at, later in itertools.pairwise(whole)]
    assert gaps[-1] >= 100


def test_what_is_dropped_hears_nothing_and_says_what_it_was_worth(stand: Stand) -> None:
    stand.post.answer([6, 7, 8, 9])
    for _ in range(8):
        stand.step(6, 7)
    sent = len(stand.post.sent)
    stand.drafter.drop()
    stand.drafter.drop()
    assert stand.post.dropped == [7]
    stand.post.answer([1, 2])
    assert len(stand.post.sent) == sent
    assert len(stand.speeds) == 1


def test_a_model_that_is_never_right_is_asked_ever_more_rarely(spec: DraftSpec) -> None:
    stand = Stand(spec, DraftLength)
    stand.drafter.observe(PROMPT)
    answered = 0
    asked: list[int] = []
    for at in range(600):
        while answered < len(stand.post.sent):
            answered += 1
            stand.post.answer([1] * stand.post.last.count)
        before = len(stand.post.sent)
        stand.step(0)
        asked += [at] * (len(stand.post.sent) > before)
        assert stand.drafter.ready() or at < 40, "nobody waits for it"
    gaps = [later - at for at, later in itertools.pairwise(asked) if at > 20]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 128
    assert len(gaps) <= 8


def test_beyond_the_draft_models_context_nothing_is_asked(spec: DraftSpec) -> None:
    stand = Stand(spec)
    stand.line.max_context = 6
    stand.drafter.observe(PROMPT)
    assert stand.post.last.count == 1
    stand.post.answer([6], ended=True)
    before = len(stand.post.sent)
    stand.step(6)
    stand.step(7)
    assert len(stand.post.sent) == before


@pytest.mark.parametrize("overlaps", [False, True], ids=["plain", "ahead"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("draft_seed", [0, 1], ids=["right", "wrong"])
def test_the_tokens_are_the_same_with_any_draft_model(
    make_target: Any, make_host: MakeHost, sampler: Sampler, overlaps: bool, temperature: float, draft_seed: int
) -> None:
    drawn = sampler(temperature, 3)
    plain, _ = make_target().generate(PROMPT, drawn)
    host = make_host(draft_seed)
    line = DraftModelLink(DirectDrafts(host, overlaps=overlaps), 512, clock=HandClock())
    drafter = DraftModelDrafter(line, 1, SharedVocabulary(12), DraftSpec("t", drawn, 12), length=length_of(line))
    tokens, generation = make_target().generate(PROMPT, drawn, drafter)
    assert tokens == plain
    assert not len(host), "dropped with the generation"
    host.engine.check_integrity()
    if draft_seed == 0:
        assert generation.counters.accepted >= 25
        assert not line.counters.misses
        assert (line.counters.hits > 3) == overlaps


def test_a_right_draft_model_for_rejection_says_what_it_drew_from(sampler: Sampler, make_host: MakeHost) -> None:
    spec = DraftSpec("t", sampler(0.8, 1), 14, probabilities=True)
    line = DraftModelLink(DirectDrafts(make_host()), 512, clock=HandClock())
    drafter = DraftModelDrafter(line, 1, SharedVocabulary(14), spec, length=length_of(line))
    drafter.observe(PROMPT)
    proposal = drafter.propose(5, ())
    assert proposal.probabilities is not None
    assert proposal.probabilities.shape == (len(proposal.tokens), 14)
    assert proposal.probabilities.sum(axis=1) == pytest.approx(1.0)
    assert not proposal.probabilities[:, 12:].any(), "the draft model does not have these"
    assert not proposal.confidence


@pytest.mark.parametrize("fails", [False, True], ids=["finished", "failed"])
def test_a_generation_that_ended_but_is_not_closed_holds_nothing_on_the_draft_side(
    make_host: MakeHost, sampler: Sampler, fails: bool
) -> None:
    host, engine = make_host(), Engine(NullDriver(vocab_size=12))
    line = DraftModelLink(DirectDrafts(host), 512, clock=HandClock())
    spec = DraftSpec("t", sampler(), 12)
    drafter = DraftModelDrafter(
        line, 1, SharedVocabulary(12), spec, length=Four(line.experience, most=4, overlaps=False)
    )
    context = engine.create_context("t")
    context.append(PROMPT)
    sources = engine.draft_budget.sources([drafter])
    wanted = GenerationSpec(sampler(), 12, [99], None, sources)
    generation = Generation(context, wanted, TextAssembler(ByteTokenizer().stream(), ()))
    engine.submit(generation)
    engine.step()
    assert len(host) == 1
    if fails:
        generation.fail(LimitExceeded("no room", limit="pages", value=1))
    while not generation.finished():
        engine.step()
    assert not len(host)
    host.engine.pool.check_integrity([])
    generation.close()
    context.release()


def test_a_pair_that_does_not_pay_is_not_asked_and_keeps_no_session(spec: DraftSpec) -> None:
    stand = Stand(spec, DraftLength)
    worth = stand.line.experience.worth
    while worth.trials == 0 or worth.trying:
        drafts = worth.drafts
        worth.count_step(1, 0.04 if drafts else 0.01, drafts=drafts, settled=True)
    assert not worth.pays
    stand.drafter.begin(PROMPT)
    for token in range(40):
        assert stand.drafter.resting
        assert not stand.drafter.propose(16).tokens
        stand.step(token % 12)
    stand.drafter.drop()
    assert not stand.post.sent, "the prompt was not sent either"
    assert not stand.post.dropped
    assert stand.drafter.ready()


def test_one_that_is_asked_again_gets_all_that_was_written_meanwhile(spec: DraftSpec) -> None:
    stand = Stand(spec, DraftLength)
    stand.drafter.begin(PROMPT)
    written = []
    while not stand.post.sent:
        written.append(len(written) % 12)
        stand.step(written[-1])
    assert written, "the first steps are without drafts"
    assert (stand.post.last.start, stand.post.last.tokens) == (0, [*PROMPT, *written])
    assert not stand.drafter.resting


def test_no_step_waits_before_it_is_known_how_far_away_the_draft_model_is(spec: DraftSpec) -> None:
    stand = Stand(spec, Worth)
    stand.line.remote = True
    stand.drafter.observe(PROMPT)
    stand.post.answer([1, 2, 3, 4])
    stand.step(0)
    assert stand.drafter.ready()
    stand.post.round_trip = 0.005
    stand.post.answer([1, 2, 3, 4])
    stand.step(0)
    assert not stand.drafter.ready()
