"""Adapters over the protocol: whose they are, which KV is theirs, and until when they are kept. A driver without maths."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from inferd import protocol as p
from inferd_runtime.engine.adapters import AdapterLimits, AdapterSet, ReadAdapter
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.uploads import MAX_UPLOADS, Uploads
from inferd_runtime.lanes import Lanes, Piece
from inferd_runtime.models.lora.files import AdapterFiles
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.session import Session
from inferd_runtime.session.state import SessionState
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model

PROMPT = "a prompt of more than a few pages"
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"]}


def config(**fields: Any) -> str:
    return json.dumps({**CONFIG, **fields})


def load(caller: DirectSession, name: str, weights: bytes = b"weights", **fields: Any) -> p.AdapterInfo:
    """Upload in two pieces, then load."""
    first = caller.call(p.UploadAdapter(weights[:3]))
    upload = caller.call(p.UploadAdapter(weights[3:], first.upload))
    assert upload == p.Upload(first.upload, len(weights))
    info: p.AdapterInfo = caller.call(p.LoadAdapter(name, config(**fields), upload.upload))
    return info


@pytest.fixture
def model() -> ServedModel:
    return null_model(driver=NullDriver(vocab_size=VOCAB_SIZE))


@pytest.fixture
def caller(model: ServedModel) -> DirectSession:
    return DirectSession(model)


def names(caller: DirectSession) -> list[tuple[str, bool]]:
    return [(info.name, info.shared) for info in caller.call(p.ListAdapters()).adapters]


def shared(model: ServedModel, name: str, weights: bytes = b"shared") -> None:
    files = AdapterFiles(config().encode(), bytearray(weights), trusted=True)
    model.adapters.load(None, name, model.adapters.reader(None)(files))


def fresh(caller: DirectSession, adapter: str = "", prompt: str = PROMPT, **fields: Any) -> list[int]:
    """What a new context gives."""
    return caller.generate(caller.text(prompt), adapter=adapter, **{"max_tokens": 12, **fields}).tokens


def test_loading_listing_and_dropping(caller: DirectSession, model: ServedModel) -> None:
    shared(model, "house")
    assert load(caller, "mine") == p.AdapterInfo("mine", "null", 8, 7, False)
    assert names(caller) == [("house", True), ("mine", False)]
    plain, mine, house = fresh(caller), fresh(caller, "mine"), fresh(caller, "house")
    assert len({tuple(tokens) for tokens in (plain, mine, house)}) == 3
    caller.call(p.DropAdapter("mine"))
    assert names(caller) == [("house", True)]
    with pytest.raises(p.NotFound, match=r"no adapter 'mine' is loaded; there is house"):
        fresh(caller, "mine")
    with pytest.raises(p.NotFound):
        caller.call(p.DropAdapter("mine"))
    with pytest.raises(p.InvalidRequest, match="belongs to the server"):
        caller.call(p.DropAdapter("house"))
    caller.close()


def test_a_tenants_adapter_is_its_own(model: ServedModel) -> None:
    one, other = DirectSession(model, tenant="one"), DirectSession(model, tenant="other")
    load(one, "secret")
    assert names(other) == []
    for request in (p.DropAdapter("secret"), p.StartGenerate(other.text(PROMPT), adapter="secret")):
        with pytest.raises(p.NotFound, match="no adapter 'secret' is loaded; there is none"):
            other.call(request)
    load(other, "secret", b"something else")
    assert fresh(one, "secret") != fresh(other, "secret")
    other.call(p.DropAdapter("secret"))
    assert names(one) == [("secret", False)]
    one.session.close()
    other.close()


def test_a_context_that_switches_gives_what_a_new_one_gives(caller: DirectSession) -> None:
    load(caller, "a", b"first")
    load(caller, "b", b"second")
    context = caller.text(PROMPT)
    for adapter in ("a", "", "b", "b", "a"):
        start = len(caller.tokens(context))
        expected = caller.context(p.Part("tokens", tokens=caller.tokens(context)))
        got = caller.generate(context, adapter=adapter, max_tokens=9).tokens
        assert got == caller.generate(expected, adapter=adapter, max_tokens=9).tokens, adapter
        assert caller.tokens(context)[start:][: len(got)] == got
    caller.close()


def test_flush_and_forward_compute_with_the_adapter_that_they_name(caller: DirectSession) -> None:
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    load(caller, "a")
    expected = fresh(caller, "a", "Zq, another prompt")
    context = caller.text("Zq, another prompt!")
    caller.call(p.TruncateContext(context, len(caller.tokens(context)) - 1))
    caller.call(p.FlushContext(context, adapter="a"))
    fed = driver.tokens_fed
    assert caller.generate(context, adapter="a", max_tokens=12).tokens == expected
    assert driver.tokens_fed - fed <= 13, "the prompt was computed twice"
    probed = [
        caller.call(p.Forward(caller.text(PROMPT), [65], top=3, adapter=adapter)).rows[0] for adapter in ("", "a", "a")
    ]
    assert probed[1] == probed[2] != probed[0]
    with pytest.raises(p.NotFound):
        caller.call(p.FlushContext(context, adapter="nobody"))
    caller.close()


def test_pages_are_never_shared_across_adapters(caller: DirectSession) -> None:
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    load(caller, "a", b"first")
    load(caller, "b", b"second")
    length = len(caller.tokens(caller.text(PROMPT)))
    for adapter in ("", "a", "b"):
        costs = []
        for _ in range(2):
            before = driver.tokens_fed
            fresh(caller, adapter, max_tokens=1)
            costs.append(driver.tokens_fed - before)
        assert costs[0] == length, f"{adapter!r} took pages of another adapter"
        assert costs[1] <= driver.page_size, f"{adapter!r} did not find its own pages"
    caller.close()


def test_new_content_under_an_old_name_finds_no_old_pages(caller: DirectSession) -> None:
    load(caller, "a", b"first")
    context = caller.text(PROMPT)
    first = caller.generate(context, adapter="a", max_tokens=12).tokens
    caller.call(p.TruncateContext(context, len(PROMPT)))
    load(caller, "a", b"second")
    assert len(names(caller)) == 1
    second = caller.generate(context, adapter="a", max_tokens=12).tokens
    assert second != first
    load(caller, "elsewhere", b"second")
    load(caller, "a", b"first")
    assert fresh(caller, "a") == first
    caller.close()


def test_a_running_generation_keeps_an_adapter_that_is_dropped_or_replaced(caller: DirectSession) -> None:
    load(caller, "a", b"first")
    expected = fresh(caller, "a", max_tokens=40)
    for change in (lambda: caller.call(p.DropAdapter("a")), lambda: load(caller, "a", b"second")):
        load(caller, "a", b"first")
        generation = caller.call(p.StartGenerate(caller.text(PROMPT), adapter="a", max_tokens=40)).generation
        reply = caller.call(p.NextSteps(generation))
        tokens = [token for step in reply.steps for token in step.tokens]
        change()
        while not reply.finish:
            reply = caller.call(p.NextSteps(generation))
            tokens += [token for step in reply.steps for token in step.tokens]
        assert tokens == expected
        caller.call(p.CloseGenerate(generation))
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    assert len(driver.adapters) == 1, "what nobody uses any more is unloaded"
    caller.close()


def test_loading_and_dropping_beside_other_generations(caller: DirectSession) -> None:
    load(caller, "a", b"first")
    expected = [fresh(caller, adapter, max_tokens=30) for adapter in ("a", "")]
    handles = [
        caller.call(p.StartGenerate(caller.text(PROMPT), adapter=adapter, max_tokens=30)).generation
        for adapter in ("a", "")
    ]
    got: list[list[int]] = [[], []]
    open_ones = {0, 1}
    for turn in range(100):
        load(caller, f"x{turn % 3}", str(turn).encode())
        if turn % 2:
            caller.call(p.DropAdapter(f"x{turn % 3}"))
        for i in sorted(open_ones):
            reply = caller.call(p.NextSteps(handles[i]))
            got[i] += [token for step in reply.steps for token in step.tokens]
            open_ones -= {i} if reply.finish else set()
        if not open_ones:
            break
    assert got == expected
    caller.close()


@pytest.mark.parametrize("constraint", [None, p.ConstraintSpec("regex", "[a-z]{4,30}")])
def test_speculation_changes_nothing_under_an_adapter(
    caller: DirectSession, constraint: p.ConstraintSpec | None
) -> None:
    load(caller, "a")
    for sampling in (p.Sampling(), p.Sampling(temperature=0.8, top_p=0.9, seed=5)):
        runs = [
            fresh(
                caller,
                "a",
                "abcabcabcabc",
                max_tokens=40,
                sampling=sampling,
                constraint=constraint,
                system_speculation=spec,
            )
            for spec in (False, True)
        ]
        assert runs[0] == runs[1]
    caller.close()


def test_limits_of_a_tenant(model: ServedModel) -> None:
    driver = model.engine.driver
    assert isinstance(driver, NullDriver)
    limits = AdapterLimits(rank=16, bytes=1000, count=2)
    tight = ServedModel(model.info, Engine(driver), model.tokenizer, model.grammars, AdapterSet(driver, limits))
    caller = DirectSession(tight)
    for fields in ({"r": 17}, {"rank_pattern": {"q_proj": 17}}):
        with pytest.raises(p.LimitExceeded, match="rank 17, 16 is allowed"):
            load(caller, "a", **fields)
    load(caller, "a")
    load(caller, "b", b"other")
    with pytest.raises(p.LimitExceeded, match="adapters that are loaded or still in use: 2"):
        load(caller, "c")
    load(caller, "b", b"replaced")
    generation = caller.call(p.StartGenerate(caller.text(PROMPT), adapter="a", max_tokens=3)).generation
    caller.call(p.DropAdapter("a"))
    with pytest.raises(p.LimitExceeded, match="still in use"):
        load(caller, "c")
    caller.call(p.CloseGenerate(generation))
    load(caller, "c")
    with pytest.raises(p.LimitExceeded) as caught:
        caller.call(p.UploadAdapter(b"x" * 1001))
    assert caught.value.detail == {"limit": "adapter_bytes", "value": 1000, "raise_with": "--max-adapter-bytes"}
    caller.close()


def test_uploads_count_together_for_a_tenant_and_end_with_their_session(model: ServedModel) -> None:
    tight = ServedModel(
        model.info, model.engine, model.tokenizer, model.grammars, AdapterSet(NullDriver(), AdapterLimits(bytes=1000))
    )
    one, two, other = (DirectSession(tight, tenant=tenant) for tenant in ("t", "t", "other"))
    upload = one.call(p.UploadAdapter(b"x" * 600)).upload
    with pytest.raises(p.LimitExceeded, match="1000 bytes"):
        two.call(p.UploadAdapter(b"x" * 600))
    other.call(p.UploadAdapter(b"x" * 600))
    for request in (p.UploadAdapter(b"y", upload), p.LoadAdapter("a", config(), upload)):
        with pytest.raises(p.NotFound, match="does not exist"):
            two.call(request)
    one.session.close()
    two.call(p.UploadAdapter(b"x" * 600))
    two.session.close()
    other.close()


def test_an_adapter_is_not_read_in_the_step_loop(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of a gibibyte was hashed and copied there, for half a second, while every other tenant waited."""
    lanes, readers, got = Lanes(1, "text"), list[threading.Thread](), list[Any]()
    digest = AdapterFiles.digest

    def noted(files: AdapterFiles) -> str:
        readers.append(threading.current_thread())
        return digest(files)

    monkeypatch.setattr(AdapterFiles, "digest", noted)
    session = Session(SessionState({model.info.name: model}, "t", texts=lanes))
    session.handle(1, p.UploadAdapter(b"w" * 10_000), got.append)
    session.handle(2, p.LoadAdapter("a", config(), got.pop().upload), got.append)
    assert session.held, "what is asked next comes after"
    while not got:
        assert lanes.wait(10)
        lanes.poll()
    assert isinstance(got[0], p.AdapterInfo), got
    assert readers
    assert threading.current_thread() not in readers
    session.close()
    lanes.close()


def test_uploads_without_end_are_refused(model: ServedModel) -> None:
    """Each was an entry that every further piece, of any tenant, was compared with."""
    many, other = DirectSession(model, tenant="many"), DirectSession(model, tenant="other")
    for _ in range(MAX_UPLOADS):
        many.call(p.UploadAdapter(b""))
    with pytest.raises(p.LimitExceeded) as caught:
        many.call(p.UploadAdapter(b""))
    assert caught.value.detail["limit"] == "uploads"
    other.call(p.UploadAdapter(b""))
    many.close()
    other.close()


def test_an_adapter_that_waits_to_be_read_counts_as_an_upload(model: ServedModel) -> None:
    """Once they were asked to be loaded, any number of files waited behind another one, uncounted."""
    lanes, hold, got = Lanes(1, "text"), threading.Event(), list[Any]()
    lanes.submit(Piece("t", lambda: hold.wait(10), lambda ended: None))
    model.adapters.uploads = Uploads(30_000)
    sessions = [Session(SessionState({model.info.name: model}, "t", texts=lanes)) for _ in range(2)]
    for session in sessions:
        session.handle(1, p.UploadAdapter(b"w" * 20_000), got.append)
        if isinstance(got[-1], p.Upload):
            session.handle(2, p.LoadAdapter("a", config(), got[-1].upload), lambda reply: None)
    assert got[0] == p.Upload(1, 20_000)
    assert isinstance(got[1], p.LimitExceeded)
    assert got[1].detail["limit"] == "adapter_bytes"
    sessions[0].close()
    sessions[1].handle(3, p.UploadAdapter(b"w" * 20_000), got.append)
    assert isinstance(got[2], p.Upload), "a load that was given up holds nothing"
    hold.set()
    sessions[1].close()
    lanes.close()


def test_a_refused_adapter_is_let_go_at_once(model: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error held its frames, and these the error, with hundreds of megabytes, until a collection of garbage."""
    frames = list[weakref.ref[set[int]]]()

    def refuses(tenant: str) -> Callable[[AdapterFiles], ReadAdapter]:
        def read(content: AdapterFiles) -> ReadAdapter:
            local = {len(content.weights)}
            frames.append(weakref.ref(local))
            raise p.InvalidRequest("no")

        return read

    monkeypatch.setattr(model.adapters, "reader", refuses)
    lanes, got = Lanes(1, "text"), list[Any]()
    session = Session(SessionState({model.info.name: model}, "t", texts=lanes))
    session.handle(1, p.UploadAdapter(b"w" * 10_000), got.append)
    gc.disable()
    try:
        session.handle(2, p.LoadAdapter("a", config(), got.pop().upload), lambda reply: got.append(type(reply)))
        while not got:
            assert lanes.wait(10)
            lanes.poll()
        assert frames[0]() is None
    finally:
        gc.enable()
    assert got == [p.InvalidRequest]
    session.close()
    lanes.close()


def test_an_upload_is_used_up_well_or_not(caller: DirectSession) -> None:
    upload = caller.call(p.UploadAdapter(b"weights")).upload
    with pytest.raises(p.InvalidRequest, match="r"):
        caller.call(p.LoadAdapter("a", config(r=0), upload))
    with pytest.raises(p.NotFound, match=f"upload {upload}"):
        caller.call(p.LoadAdapter("a", config(), upload))
    assert names(caller) == []
    caller.close()


@pytest.mark.parametrize("name", ["", "a b", "../a", "-a", "a" * 65, "a/b", "a@b"])
def test_bad_names(caller: DirectSession, name: str) -> None:
    with pytest.raises(p.InvalidRequest, match="adapter name"):
        load(caller, name)
    caller.close()


def test_a_name_of_the_server_is_taken(caller: DirectSession, model: ServedModel) -> None:
    shared(model, "house")
    with pytest.raises(p.InvalidRequest, match="'house' is taken by the server"):
        load(caller, "house")
    caller.close()


def test_a_generation_that_does_not_start_keeps_nothing(caller: DirectSession) -> None:
    load(caller, "a")
    drafts = p.SpeculationSettings(["draft_model"])
    with pytest.raises(p.NotFound, match="no draft model"):
        caller.call(p.StartGenerate(caller.text(PROMPT), adapter="a", system_speculation=True, speculation=drafts))
    with pytest.raises(p.InvalidRequest, match="positions"):
        caller.call(p.Forward(caller.text(PROMPT), [65], positions=[1 << 20], adapter="a"))
    caller.call(p.DropAdapter("a"))
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    assert not driver.adapters
    caller.close()


def test_a_fork_shares_what_the_adapter_computed(caller: DirectSession) -> None:
    driver = caller.engine.driver
    assert isinstance(driver, NullDriver)
    load(caller, "a")
    context = caller.text(PROMPT)
    caller.call(p.FlushContext(context, adapter="a"))
    fork = caller.call(p.ForkContext(context)).context
    fed = driver.tokens_fed
    assert caller.generate(fork, adapter="a", max_tokens=1).tokens == fresh(caller, "a", max_tokens=1)
    assert driver.tokens_fed - fed <= 2 * driver.page_size
    caller.close()


def test_whatever_ends_an_operation_gives_its_adapter_back(model: ServedModel) -> None:
    driver = model.engine.driver
    assert isinstance(driver, NullDriver)
    for end in ("cancel", "close"):
        caller = DirectSession(model)
        load(caller, "a")
        flush, replies = caller.submit(p.FlushContext(caller.text(PROMPT), adapter="a"))
        if end == "cancel":
            caller.session.cancel(flush)
            assert isinstance(replies[0], p.Cancelled)
        else:
            caller.call(p.StartGenerate(caller.text("other"), adapter="a"))
        caller.call(p.DropAdapter("a"))
        assert bool(driver.adapters) == (end == "close")
        caller.close()
        assert not driver.adapters
