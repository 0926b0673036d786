"""A served model's draft models: which one drafts, what is refused, the way through a thread, and what a slow one costs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.draft_models.direct import DirectDrafts
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftModelDrafter, DraftModelLink
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.messages import AskDraft, DraftSpec
from inferd_runtime.draft_models.models import DraftModels, connect
from inferd_runtime.draft_models.thread import DraftThread
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.penalties import Penalties
from inferd_runtime.server.engine_process.draft_models import BANDITS
from inferd_runtime.speculation.bandit import Bandit
from inferd_runtime.speculation.bridge import SharedVocabulary, Vocabulary

PROMPT = [1, 2, 3, 4, 5]
SECONDS = 20.0
TOKENS = [bytes([97 + at]) for at in range(12)]
Sampler = Callable[..., RowSampler]
MakeHost = Callable[..., DraftHost]


class Four(DraftLength):
    """Always wants four tokens: what a thread costs beside a target without weights says nothing."""

    measured = False

    def choose(self) -> tuple[int, bool]:
        return 4, False


def vocabulary(tokens: list[bytes], **special: int) -> Vocabulary:
    return Vocabulary(tokens, special, lambda text: [tokens.index(bytes([byte])) for byte in text.encode()])


def models_over(host: DraftHost, **names: list[bytes]) -> DraftModels:
    target = vocabulary(TOKENS)
    return DraftModels(
        [
            connect(name, DraftModelLink(DirectDrafts(host), 512), target, vocabulary(tokens))
            for name, tokens in names.items()
        ],
        lengths=Four,
    )


def test_padding_does_not_make_another_vocabulary_and_special_tokens_do() -> None:
    assert vocabulary(TOKENS).checksum == vocabulary([*TOKENS, b"", b""]).checksum
    assert vocabulary(TOKENS).checksum != vocabulary(TOKENS, end=3).checksum
    assert vocabulary(TOKENS).checksum != vocabulary(TOKENS[::-1]).checksum
    assert vocabulary([b"ab", b"c"]).checksum != vocabulary([b"a", b"bc"]).checksum


def test_a_draft_model_is_found_by_name(make_host: MakeHost, sampler: Sampler) -> None:
    models = models_over(make_host(), first=TOKENS, second=TOKENS)
    assert models.names == ["first", "second"]
    models.open(tenant="t", sampler=sampler(), name="second").observe(PROMPT)
    assert [counters.requests for counters in models.counters.values()] == [0, 1]
    with pytest.raises(NotFound, match="there is no draft model 'third'; there are first, second"):
        models.open(tenant="t", sampler=sampler(), name="third")


def test_penalties_hold_where_ids_mean_the_same(make_host: MakeHost, sampler: Sampler) -> None:
    models = models_over(make_host(), same=TOKENS, other=TOKENS[::-1])
    drawn = replace(sampler(), penalties=Penalties(frequency=1.0))
    for name, penalties in (("same", drawn.penalties), ("other", None)):
        drafter = models.open(tenant="t", sampler=drawn, name=name, prompt=3)
        assert isinstance(drafter, DraftModelDrafter)
        assert drafter._spec.sampler.penalties == penalties
        assert drafter._spec.prompt == 3


def test_a_request_with_penalties_survives_the_way_to_another_process() -> None:
    sampler = RowSampler(0.5, 0, 1.0, 0.0, 2**64 - 1, Penalties(1.5, 0.0, 0.25, (3,), (-1.0,)))
    request = AskDraft(1, 0, PROMPT, 4, spec=DraftSpec("t", sampler, 12, prompt=5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=AskDraft) == request


def test_rejection_over_a_bridge_is_refused_by_name(make_host: MakeHost, sampler: Sampler) -> None:
    models = models_over(make_host(), other=TOKENS[::-1])
    models.open(tenant="t", sampler=sampler())
    with pytest.raises(InvalidRequest, match="draft model 'other' has another vocabulary"):
        models.open(tenant="t", sampler=sampler(), verifier="rejection")


def test_for_rejection_a_model_with_the_same_vocabulary_is_chosen(make_host: MakeHost, sampler: Sampler) -> None:
    models = models_over(make_host(), other=TOKENS[::-1], same=TOKENS)
    for _ in range(8):
        drafter = models.open(tenant="t", sampler=sampler(), verifier="rejection")
        assert isinstance(drafter, DraftModelDrafter)
        assert isinstance(drafter._bridge, SharedVocabulary)


@pytest.mark.parametrize("bandit", BANDITS.values(), ids=BANDITS)
def test_the_bandit_finds_the_better_model(
    make_target: Any, make_host: MakeHost, sampler: Sampler, bandit: Callable[[int], Bandit]
) -> None:
    target = vocabulary(TOKENS)
    hosts = {"wrong": make_host(9), "right": make_host(0)}
    lines = {
        name: DraftModelLink(DirectDrafts(host), 512, clock=itertools.count().__next__) for name, host in hosts.items()
    }
    models = DraftModels(
        [connect(name, line, target, vocabulary(TOKENS)) for name, line in lines.items()], bandit=bandit
    )
    for seed in range(30):
        drafter = models.open(tenant="t", sampler=sampler(0.5, seed))
        make_target().generate([seed % 12, *PROMPT], sampler(0.5, seed), drafter, max_tokens=30)
    wrong, right = models._bandit.counts
    assert right > 2 * wrong
    assert not any(len(host) for host in hosts.values())


@pytest.fixture
def threaded(make_host: MakeHost) -> Iterator[Callable[..., tuple[DraftModels, DraftHost]]]:
    """``threaded(seed, timeout, gate)``: a draft model in a thread that makes no step while the gate is closed."""
    opened: list[DraftModels] = []

    def make(
        seed: int = 0, timeout: float = SECONDS, gate: threading.Event | None = None
    ) -> tuple[DraftModels, DraftHost]:
        host = make_host(seed)
        if gate is not None:
            step = host.engine.step
            host.engine.step = lambda: gate.wait(SECONDS) and step()  # type: ignore[method-assign]
        line = DraftModelLink(DraftThread(host), 512, timeout=timeout)
        model = connect("draft", line, vocabulary(TOKENS), vocabulary(TOKENS))
        opened.append(DraftModels([model], lengths=Four))
        return opened[-1], host

    yield make
    for models in opened:
        models.close()


def resting(models: DraftModels) -> Callable[[], None]:
    """What a step loop does between steps."""

    def rest() -> None:
        if not models.poll():
            (transport,) = {model.link.transport for model in models._models}
            assert isinstance(transport, DraftThread)
            transport.wait(min(0.001, models.patience(0.001)))

    return rest


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", [0, 1], ids=["right", "wrong"])
def test_the_tokens_are_the_same_with_a_draft_model_in_a_thread(
    make_target: Any, threaded: Any, sampler: Sampler, temperature: float, seed: int
) -> None:
    models, host = threaded(seed)
    for lineage in range(3):
        drawn = sampler(temperature, lineage)
        plain, _ = make_target().generate(PROMPT, drawn)
        drafter = models.open(tenant="t", sampler=drawn)
        tokens, generation = make_target().generate(PROMPT, drawn, drafter, poll=resting(models))
        assert tokens == plain
        assert seed or generation.counters.accepted > 5
    models.close()
    models.close = lambda: None
    assert not len(host)
    host.engine.pool.check_integrity([])


def test_a_draft_model_that_hangs_costs_one_time_out_at_first_and_then_hardly_any(
    make_target: Any, threaded: Any, sampler: Sampler
) -> None:
    gate = threading.Event()
    gate.set()
    models, _ = threaded(timeout=0.05, gate=gate)
    target, drawn = make_target(), sampler()
    plain, _ = make_target().generate(PROMPT, drawn, max_tokens=120)
    counters = models.counters["draft"]
    rest, seen = resting(models), 0

    def hang_later() -> None:
        nonlocal seen
        seen += 1
        if counters.requests > 4:
            gate.clear()
        rest()

    started = time.monotonic()
    try:
        drafter = models.open(tenant="t", sampler=drawn)
        tokens, _ = target.generate(PROMPT, drawn, drafter, max_tokens=120, poll=hang_later)
    finally:
        gate.set()
    assert tokens == plain
    assert counters.timeouts <= 8
    assert time.monotonic() - started < SECONDS / 2


def test_a_thread_that_has_ended_is_an_error_and_no_wait(
    make_host: MakeHost, make_target: Any, sampler: Sampler
) -> None:
    transport = DraftThread(make_host())
    models = DraftModels([connect("draft", DraftModelLink(transport, 512), vocabulary(TOKENS), vocabulary(TOKENS))])
    models.close()
    tokens, generation = make_target().generate(PROMPT, sampler(), models.open(tenant="t", sampler=sampler()))
    assert tokens == make_target().generate(PROMPT, sampler())[0]
    assert generation.counters.drafted == 0
    assert models.counters["draft"].failures > 0


def test_a_thread_that_dies_in_mid_generation_is_reported_once_and_generations_go_on(
    make_target: Any, threaded: Any, sampler: Sampler, caplog: pytest.LogCaptureFixture
) -> None:
    models, host = threaded()
    counters, broken = models.counters["draft"], threading.Event()
    step = host.engine.step

    def stumble() -> bool:
        if broken.is_set():
            raise RuntimeError("the device is gone")
        return bool(step())

    host.engine.step = stumble
    rest = resting(models)

    def break_later() -> None:
        if counters.requests > 4:
            broken.set()
        rest()

    plain, _ = make_target().generate(PROMPT, sampler(), max_tokens=120)
    (transport,) = {model.link.transport for model in models._models}
    started, left = time.monotonic(), list[int]()
    for _ in range(2):
        drafter = models.open(tenant="t", sampler=sampler())
        assert make_target().generate(PROMPT, sampler(), drafter, max_tokens=120, poll=break_later)[0] == plain
        transport._thread.join(SECONDS)
        left.append(transport._inbox.qsize())
    assert time.monotonic() - started < SECONDS / 2, "what was open is answered, nobody waits until its time is up"
    assert 2 <= counters.failures <= 20, "it is asked ever more rarely"
    assert counters.timeouts == 0
    assert left[0] == left[1], "nothing is kept for it"
    assert [record.message for record in caplog.records] == [
        "the draft model's thread has ended; generations go on without it"
    ]


def test_the_step_loop_rests_no_longer_than_a_generation_waits(threaded: Any, sampler: Sampler) -> None:
    gate = threading.Event()
    gate.set()
    models, _ = threaded(timeout=0.5, gate=gate)
    assert models.patience(1.0) == 1.0
    drafter = models.open(tenant="t", sampler=sampler())
    drafter.observe(PROMPT)
    rest = resting(models)
    while not drafter.propose(8).tokens:
        rest()
    gate.clear()
    wrong = (drafter.propose(8).tokens[0] + 1) % 12
    drafter.observe([wrong])
    try:
        assert not drafter.ready()
        assert 0 < models.patience(1.0) <= 0.5
    finally:
        gate.set()
    while not drafter.ready():
        rest()
    assert drafter.propose(8).tokens
    assert models.patience(1.0) == 1.0
    drafter.drop()
