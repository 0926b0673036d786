"""Prompt tokens and cached tokens of a session: each once, and what is cached is what the engine did not compute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd import protocol as p
from inferd_runtime.engine.engine import EngineOptions
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.testing.byte_tokenizer import VOCAB_SIZE
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver
from inferd_runtime.testing.served import null_model

PAGE = 4
TEXT = "a prompt of some pages, and more"


class Rows:
    """Sessions on one engine, and the prompt rows that it computed for the last one."""

    def __init__(self, **settings: Any) -> None:
        self.driver = NullDriver(vocab_size=VOCAB_SIZE, page_size=PAGE, **settings)
        self.model = null_model(driver=self.driver, options=EngineOptions(token_budget=64))
        self.fed = 0
        self._opened: list[DirectSession] = []

    def session(self, **how: Any) -> DirectSession:
        self.fed = self.driver.tokens_fed
        self._opened.append(DirectSession(self.model, **how))
        return self._opened[-1]

    def close(self) -> None:
        for caller in self._opened:
            caller.session.close()
        self.model.engine.pool.check_integrity([])

    def prompt_rows(self, usage: p.Usage, again: int = 0) -> int:
        """Rows of prompts: all but those of generated tokens (the last one of each generation has none). ``again``: rows of
        tokens that had been computed, whose logits were wanted once more.
        """
        return self.driver.tokens_fed - self.fed - (usage.steps - 1) - again


@pytest.fixture
def rows() -> Iterator[Rows]:
    made = Rows()
    yield made
    made.close()


def used(caller: DirectSession) -> p.Usage:
    usage: p.Usage = caller.call(p.GetUsage())
    return usage


def salted(caller: DirectSession, salt: str, text: str = TEXT) -> int:
    context = int(caller.call(p.CreateContext(cache_salt=salt)).context)
    caller.call(p.AppendContext(context, [p.Part("text", text=text)]))
    return context


@pytest.mark.parametrize("tail", ["", " x", " of which the rest is new"])
def test_cached_tokens_are_those_that_the_engine_did_not_compute(rows: Rows, tail: str) -> None:
    first = rows.session()
    first.generate(first.text(TEXT), max_tokens=5)
    fresh = used(first)
    assert (fresh.prompt_tokens, fresh.cached_tokens) == (len(TEXT), 0)
    assert rows.prompt_rows(fresh) == len(TEXT)
    second = rows.session()
    second.generate(second.text(TEXT + tail), max_tokens=5)
    usage = used(second)
    assert usage.prompt_tokens == len(TEXT + tail)
    assert usage.cached_tokens == (len(TEXT + tail) - 1 if not tail else len(TEXT)) // PAGE * PAGE > 0
    assert rows.prompt_rows(usage) == usage.prompt_tokens - usage.cached_tokens


def test_a_second_turn_counts_only_what_it_adds(rows: Rows) -> None:
    caller = rows.session()
    context = caller.text(TEXT)
    caller.generate(context, max_tokens=6)
    caller.call(p.AppendContext(context, [p.Part("text", text=" go on")]))
    caller.generate(context, max_tokens=6)
    usage = used(caller)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.tokens) == (len(TEXT + " go on"), 0, 12)


def test_forks_of_a_computed_prompt_count_it_once(rows: Rows) -> None:
    caller = rows.session()
    context = caller.text(TEXT)
    caller.call(p.FlushContext(context))
    for _ in range(3):
        caller.generate(caller.call(p.ForkContext(context)).context, max_tokens=4)
    usage = used(caller)
    assert (usage.prompt_tokens, usage.cached_tokens) == (len(TEXT), 0)


def test_work_without_a_generation_counts_its_tokens(rows: Rows) -> None:
    first = rows.session()
    first.call(p.Forward(first.text(TEXT), list(b"xyz")))
    assert used(first).prompt_tokens == len(TEXT) + 3
    second = rows.session()
    second.call(p.FlushContext(second.text(TEXT)))
    usage = used(second)
    assert usage.prompt_tokens == len(TEXT)
    assert rows.driver.tokens_fed - rows.fed == usage.prompt_tokens - usage.cached_tokens - 1  # the last one waits


def test_a_restored_prompt_is_cached(rows: Rows, tmp_path: Path) -> None:
    store = SnapshotStore(SnapshotFolder(tmp_path, 1 << 20))
    caller = rows.session(snapshots=store)
    context = caller.text(TEXT)
    caller.generate(context, max_tokens=5)
    caller.call(p.SaveContext(context, "kept"))
    held = len(caller.tokens(context))
    elsewhere = Rows()  # an engine where nothing is found by prefix
    later = elsewhere.session(snapshots=store)
    opened = later.call(p.OpenSaved("kept"))
    assert used(later) == p.Usage()
    later.call(p.AppendContext(opened.context, [p.Part("text", text=" more")]))
    later.generate(opened.context, max_tokens=5)
    usage = used(later)
    assert (usage.prompt_tokens, usage.cached_tokens) == (held + len(" more"), opened.restored)
    assert elsewhere.prompt_rows(usage) == usage.prompt_tokens - usage.cached_tokens
    elsewhere.close()
    store.close()


def test_what_a_session_computed_itself_is_never_cached_for_it() -> None:
    """Contexts that are pushed out of the cache are computed or found again: neither counts."""
    rows = Rows(pages=24)
    caller = rows.session()
    contexts = [caller.text(f"{at} {TEXT}") for at in range(4)]
    for _ in range(3):
        for context in contexts:
            caller.generate(context, max_tokens=3)
    usage = used(caller)
    assert (usage.prompt_tokens, usage.cached_tokens) == (4 * (len(TEXT) + 2), 0)
    rows.close()


def test_embeddings_tell_their_tokens(rows: Rows) -> None:
    caller = rows.session()
    reply = caller.call(p.Embed(texts=["one", "twelve chars"]))
    assert reply.prompt_tokens == used(caller).prompt_tokens == 15


# -- Salts ------------------------------------------------------------------------------------------------------------


def test_contexts_of_different_salts_share_no_page(rows: Rows) -> None:
    caller = rows.session()
    pages: dict[str, set[int]] = {}
    for salt in ("", "a", "b"):
        context = salted(caller, salt)
        caller.generate(context, max_tokens=4)
        pages[salt] = set(caller.session._state.contexts[context].context.table.pages)
        assert used(caller).cached_tokens == 0
    assert sum(map(len, pages.values())) == len(set().union(*pages.values()))
    caller.generate(salted(caller, "a"), max_tokens=4)
    assert used(caller).cached_tokens == (len(TEXT) - 1) // PAGE * PAGE


def test_forks_and_saved_copies_keep_the_salt(rows: Rows, tmp_path: Path) -> None:
    store = SnapshotStore(SnapshotFolder(tmp_path, 1 << 20))
    caller = rows.session(snapshots=store)
    context = salted(caller, "a", "short")
    caller.call(p.SaveContext(context, "kept"))
    handles = [
        caller.call(p.ForkContext(context)).context,
        caller.call(p.OpenSaved("kept")).context,
        caller.call(p.ImportContext(caller.call(p.ExportContext(context)).data)).context,
    ]
    for handle in handles:
        caller.call(p.AppendContext(handle, [p.Part("text", text=TEXT)]))
        caller.generate(handle, max_tokens=4)
    assert used(caller).cached_tokens == 2 * ((len("short" + TEXT) - 1) // PAGE * PAGE), "they share with each other"
    found = used(caller).cached_tokens
    caller.generate(salted(caller, "", "short" + TEXT), max_tokens=4)
    assert used(caller).cached_tokens == found, "and with nobody else"
    store.close()


def test_a_long_salt_is_refused(rows: Rows) -> None:
    caller = rows.session()
    with pytest.raises(p.LimitExceeded, match="cache_salt"):
        caller.call(p.CreateContext(cache_salt="x" * 257))


def test_the_corpus_of_a_tenant_is_not_for_contexts_with_a_salt(rows: Rows) -> None:
    caller = rows.session()
    asked = p.SpeculationSettings(sources=["corpus"])
    with pytest.raises(p.InvalidRequest, match="corpus"):
        caller.generate(salted(caller, "a"), system_speculation=True, speculation=asked)
    caller.generate(salted(caller, ""), system_speculation=True, speculation=asked, max_tokens=2)
