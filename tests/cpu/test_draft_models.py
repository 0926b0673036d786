"""Draft models beside the embedded target: the same tokens by every way to them, and what they get right."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models as tokenizer_models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from inferd import protocol as p
from inferd.protocol import InvalidRequest, NotFound, Sampling
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.messages import DESCRIBE
from inferd_runtime.draft_models.models import DraftModels
from inferd_runtime.draft_models.options import DraftOptions
from inferd_runtime.draft_models.thread import DraftThread
from inferd_runtime.engine.scheduling.tenants import Tenancy, TenantLimits
from inferd_runtime.isolation.settings_json import decode_settings, encode_settings
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.server.engine_process.command import EngineStart, draft_launch
from inferd_runtime.server.engine_process.draft_link import ProcessDrafts
from inferd_runtime.server.engine_process.draft_models import draft_process_settings, in_process
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.session import Session
from inferd_runtime.session.state import SessionState
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.speculation.bandit import Thompson, UcbTuned
from inferd_runtime.testing.direct import Generated

SAMPLERS = {"greedy": Sampling(), "sampled": Sampling(temperature=0.8, top_p=0.95, seed=2)}
TEXT = "The ferry left the port at noon. The captain noted a light wind. The second engine was stopped for a while. The"
SECONDS = 60.0


def serve(*drafts: str, **settings: object) -> ServedModel:
    options = tuple(DraftOptions.parse(draft) for draft in drafts)
    return serve_model(EngineSettings(threads=1, draft=options, **settings))  # type: ignore[arg-type]


class Loop:
    """A session whose step loop polls the draft models, as the engine process does."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.session = Session(SessionState({model.info.name: model}, "tenant"))
        self.ticket = 0

    def call(self, request: object, while_waiting: Callable[[], None] = lambda: None) -> object:
        self.ticket += 1
        replies: list[object] = []
        self.session.handle(self.ticket, request, replies.append)
        until = time.monotonic() + SECONDS
        while not replies:
            while_waiting()
            progressed = self.model.engine.step()
            if not self.drafts.poll() and not progressed:
                time.sleep(0)  # the draft thread's turn
            assert time.monotonic() < until, "never answered"
        if isinstance(replies[0], p.InferdError):
            raise replies[0]
        return replies[0]

    def generate(
        self, text: str, sampler: Sampling, name: str = "", *, max_tokens: int = 48,
        while_waiting: Callable[[], None] = lambda: None, **settings: object,
    ) -> Generated:  # fmt: skip
        """One generation behind the text, with the draft model of a name as the only source, or without any."""
        context = self.call(p.CreateContext()).context  # type: ignore[attr-defined]
        self.call(p.AppendContext(context, [p.Part("text", text=text)]))
        wishes = p.SpeculationSettings(sources=["draft_model"], draft_model=name, **settings) if name else None  # type: ignore[arg-type]
        request = p.StartGenerate(context, sampler, max_tokens, system_speculation=bool(name), speculation=wishes)
        started = self.call(request)
        steps: list[p.Step] = []
        finish = ""
        while not finish:
            reply = self.call(p.NextSteps(started.generation), while_waiting)  # type: ignore[attr-defined]
            steps, finish = [*steps, *reply.steps], reply.finish  # type: ignore[attr-defined]
        self.call(p.CloseGenerate(started.generation))  # type: ignore[attr-defined]
        self.call(p.ReleaseContext(context))
        self.settle()
        return Generated([t for step in steps for t in step.tokens], "".join(s.text for s in steps), steps, finish)

    def settle(self) -> None:
        """Wait until a draft thread has heard of all that was dropped, so that its pages can be counted."""
        for model in self.drafts._models:
            if isinstance(model.link.transport, DraftThread):
                heard = threading.Event()
                model.link.transport._inbox.put(heard.set)
                assert heard.wait(SECONDS)

    @property
    def drafts(self) -> DraftModels:
        assert self.model.drafts is not None
        return self.model.drafts

    def transport(self, name: str) -> object:
        return self.drafts._models[self.drafts.names.index(name)].link.transport


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five tokens every time: on a busy machine a small draft model may rightly find that it does not pay."""
    monkeypatch.setattr(DraftLength, "measured", False)
    monkeypatch.setattr(DraftLength, "choose", lambda self: (5, False))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("stranger")
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=["<end>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([TEXT], trainer)
    hub: Any = PreTrainedTokenizerFast
    hub(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, eos_token_id=tokenizer.token_to_id("<end>"), bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loop(stranger: Path) -> Iterator[Loop]:
    """A target with a draft model in a thread, one in a process, and one in a thread behind a bridge."""
    loop = Loop(serve("tiny-draft", f"{resolve('tiny-draft')},process=true,timeout_ms=200", str(stranger)))
    yield loop
    loop.session.close()
    loop.model.engine.check_integrity()
    loop.drafts.close()


@pytest.fixture(scope="module")
def names(stranger: Path) -> dict[str, str]:
    """The draft models' names by the way to them."""
    return {"thread": "tiny-draft", "process": resolve("tiny-draft"), "bridge": str(stranger)}


@pytest.fixture(scope="module")
def plain(loop: Loop) -> dict[str, list[int]]:
    return {name: loop.generate(TEXT, sampler).tokens for name, sampler in SAMPLERS.items()}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("way", ["thread", "process", "bridge"])
def test_the_tokens_are_the_same_by_every_way_to_a_draft_model(
    way: str, name: str, loop: Loop, names: dict[str, str], plain: dict[str, list[int]]
) -> None:
    counters = loop.drafts.counters[names[way]]
    before = counters.requests
    assert loop.generate(TEXT, SAMPLERS[name], names[way]).tokens == plain[name]
    assert len(plain[name]) >= 40
    assert counters.requests > before + 5
    assert counters.failures == 0
    # A stranger's drafts pay nothing, so that no step waits for them: whether one comes in time is up to the machine.
    assert way == "bridge" or counters.hits + counters.misses > 0


@pytest.mark.usefixtures("eager")
def test_a_draft_process_that_dies_in_mid_generation_costs_speed_only_and_comes_back(
    loop: Loop, names: dict[str, str], plain: dict[str, list[int]]
) -> None:
    transport, counters = loop.transport(names["process"]), loop.drafts.counters[names["process"]]
    assert isinstance(transport, ProcessDrafts)
    first, asked, lost = transport.pid, counters.requests, counters.failures + counters.timeouts
    stopped: list[int] = []
    kills = 0

    def kill() -> None:
        """Stop it before it is killed: then it has certainly left a request unanswered."""
        nonlocal kills
        if counters.requests > asked + 6 and not stopped:
            os.kill(first, signal.SIGSTOP)
            stopped.append(counters.requests + counters.timeouts)
        elif stopped and not kills and counters.requests + counters.timeouts > stopped[0]:
            os.kill(first, signal.SIGKILL)
            kills += 1

    generated = loop.generate(TEXT, SAMPLERS["greedy"], names["process"], while_waiting=kill)
    assert generated.tokens == plain["greedy"]
    assert kills
    assert counters.failures + counters.timeouts > lost
    until = time.monotonic() + SECONDS
    while transport.pid == first or not transport._send(0, DESCRIBE, b"\x80"):
        loop.drafts.poll()
        assert time.monotonic() < until, "it is not started again"
        transport.wait(0.05)
    before = counters.hits + counters.misses
    assert loop.generate(TEXT, SAMPLERS["greedy"], names["process"]).tokens == plain["greedy"]
    assert counters.hits + counters.misses > before, "it drafts again"


@pytest.mark.usefixtures("eager")
def test_rejection_with_the_draft_models_own_probabilities(loop: Loop, names: dict[str, str]) -> None:
    generated = loop.generate(TEXT, SAMPLERS["sampled"], names["thread"], verifier="rejection")
    assert generated.finish == "stop" or len(generated.tokens) == 48
    assert sum(step.drafted for step in generated.steps) > 0
    with pytest.raises(InvalidRequest, match="has another vocabulary"):
        loop.generate(TEXT, SAMPLERS["sampled"], names["bridge"], verifier="rejection")


def test_what_is_not_served_is_refused_by_name(loop: Loop) -> None:
    with pytest.raises(NotFound, match="there is no draft model 'other'; there are tiny-draft"):
        loop.generate(TEXT, SAMPLERS["greedy"], "other")
    with pytest.raises(NotFound, match="draft model 'tiny-draft': no model 'other' is served"):
        serve("tiny-draft,for=other")
    with pytest.raises(NotFound, match=r"model '\./nowhere' cannot be loaded"):
        serve("./nowhere")
    with pytest.raises(InvalidRequest, match="dtype 'int3' is not one of"):
        in_process(
            DraftOptions.parse("tiny-draft,process=true"),
            EngineSettings(model=(ModelOptions("tiny-draft", dtype="int3"),)),
        )


def test_tenants_keep_their_weights_and_have_no_quota_in_a_draft_process() -> None:
    tenancy = Tenancy(TenantLimits(kv_pages=9), {"vip": TenantLimits(kv_pages=5, weight=8.0)})
    settings = EngineSettings(tenancy=tenancy, threads=1, page_size=8, plain=True)
    given = draft_process_settings(settings, DraftOptions.parse("tiny-draft,process=true,pages=99"))
    launch = draft_launch(EngineStart("ipc://x", "key", given))
    own = decode_settings(encode_settings(launch.settings), EngineStart).settings
    assert own == given
    (model,) = own.model
    assert own.tenancy == Tenancy(TenantLimits(), {"vip": TenantLimits(weight=8.0)})
    assert (own.page_size, own.threads, own.plain, model.name, model.pages) == (8, 1, True, "tiny-draft", 99)


def test_the_operator_says_how_a_draft_model_is_chosen(loop: Loop) -> None:
    assert isinstance(loop.drafts._bandit, Thompson)
    both = f"{resolve('tiny-draft')},for=tiny"
    model = serve("tiny-draft,choice=ucb", both)
    assert model.drafts is not None
    try:
        assert isinstance(model.drafts._bandit, UcbTuned)
    finally:
        model.drafts.close()
    with pytest.raises(InvalidRequest, match="draft models of 'tiny': choice is thompson here and ucb there"):
        serve("tiny-draft,choice=ucb", f"{both},choice=thompson")


def test_a_draft_model_gets_as_many_pages_as_its_target(loop: Loop, names: dict[str, str]) -> None:
    for way in ("thread", "bridge"):
        transport = loop.transport(names[way])
        assert isinstance(transport, DraftThread)
        assert transport._host.engine.pool.size == loop.model.engine.pool.size


def test_vocabularies_are_compared_by_checksum(loop: Loop, names: dict[str, str]) -> None:
    bridged = {model.name for model in loop.drafts._models if model.bridge is not None}
    assert bridged == {names["bridge"]}
