"""The reference driver against transformers' own logits: chunked prefill, decoding, drafts cut off, any batch order."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from families import FAMILIES, VOCAB, make

from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.job import Planned
from inferd_runtime.engine.prepare import prepare
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.engine.stages import Work
from inferd_runtime.kv.pool import PagePool
from inferd_runtime.kv.table import PageTable
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.passes import fused
from inferd_runtime.models.passes.fused import fuse
from inferd_runtime.models.passes.plain import ModelPass, PlainPass
from inferd_runtime.models.weights.held import HoldingPlan, hold
from inferd_runtime.models.weights.host_products import LEAST_ROWS, Way

TOLERANCE = 1e-4


class Bench:
    """One model behind the driver, beside an untouched copy of it."""

    def __init__(self, family: str, way: str) -> None:
        self.plain = make(family)
        served = copy.deepcopy(self.plain)
        probed = attach(served, family)
        run: ModelPass | None = PlainPass(served)
        if way != "plain":
            run = fuse(served, probed.kv, probed.rules)
            assert run is not None, f"{family} has no fused pass"
        if way == "packed":
            run = hold(run, served, HoldingPlan.uniform(run, Way("packed", LEAST_ROWS[-1])))
        like = next(served.parameters())
        self.driver = TorchDriver(run, like, probed.kv, vocab_size=VOCAB, max_context=256, pages=128, page_size=4)
        self.pool = PagePool(self.driver.pages, self.driver.page_size)

    def feed(self, parts: list[tuple[PageTable, list[int]]]) -> list[np.ndarray]:
        """Run one batch; every row's logits, part by part."""
        for table, tokens in parts:
            self.driver.copy_pages(table.reserve(len(tokens)))
        plan = [Planned(None, Work(tokens, len(tokens)), table) for table, tokens in parts]  # type: ignore[arg-type]
        rows = self.driver.forward(prepare(plan, self.driver.page_size)).logits
        split = np.split(rows, np.cumsum([len(tokens) for _, tokens in parts])[:-1])
        for table, tokens in parts:
            table.advance(len(tokens))
        return split

    def expected(self, tokens: list[int]) -> np.ndarray:
        with torch.inference_mode():
            return self.plain(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()


FAST = [family for family in FAMILIES if family in fused.FAMILIES]
WAYS = [(family, "plain") for family in FAMILIES] + [(family, way) for family in FAST for way in ("fused", "packed")]


@pytest.fixture(scope="module", params=WAYS, ids=[f"{family}-{way}" for family, way in WAYS])
def bench(request: pytest.FixtureRequest) -> Bench:
    """``packed``: every product of the fused pass is packed, small as it is."""
    return Bench(*request.param)


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=count)


def test_prefill_in_chunks_and_fifty_decode_steps_equal_transformers(bench: Bench) -> None:
    tokens = random_tokens(87, 1)
    table = PageTable(bench.pool)
    got = [*bench.feed([(table, tokens[:20])]), *bench.feed([(table, tokens[20:37])])]
    for token in tokens[37:]:
        got += bench.feed([(table, [token])])
    table.release()
    assert np.abs(np.concatenate(got) - bench.expected(tokens)).max() < TOLERANCE


def test_a_ragged_batch_in_any_order_equals_transformers(bench: Bench) -> None:
    """Prefill chunks, decode rows and draft chains of several sequences share each batch, shuffled anew every step."""
    order = random.Random(7)
    texts = [random_tokens(length, seed) for seed, length in enumerate((75, 9, 33, 70, 18))]
    tables = [PageTable(bench.pool) for _ in texts]
    got: list[list[np.ndarray]] = [[] for _ in texts]
    while any(table.length < len(text) for table, text in zip(tables, texts, strict=True)):
        live = [i for i, text in enumerate(texts) if tables[i].length < len(text)]
        order.shuffle(live)
        parts = [(tables[i], texts[i][tables[i].length :][: order.choice((1, 1, 5, 17, 70))]) for i in live]
        for i, rows in zip(live, bench.feed(parts), strict=True):
            got[i].append(rows)
    for text, rows, table in zip(texts, got, tables, strict=True):
        table.release()
        assert np.abs(np.concatenate(rows) - bench.expected(text)).max() < TOLERANCE
    bench.pool.check_integrity([])


def test_rejected_drafts_and_forks_leave_no_trace(bench: Bench) -> None:
    tokens = random_tokens(40, 3)
    table = PageTable(bench.pool)
    bench.feed([(table, tokens[:18])])
    bench.feed([(table, random_tokens(9, 4))])
    table.truncate(18)
    fork = table.fork()
    (first,), (second,) = [bench.feed([(table, tokens[18:])])], [bench.feed([(fork, random_tokens(7, 5))])]
    assert np.abs(first[0] - bench.expected(tokens)[18:]).max() < TOLERANCE
    assert np.abs(second[0] - bench.expected(tokens[:18] + random_tokens(7, 5))[18:]).max() < TOLERANCE
    bench.pool.check_integrity([table.pages, fork.pages])
    table.release()
    fork.release()


def test_a_draft_tree_gives_each_path_its_own_logits_and_leaves_the_accepted_one(bench: Bench) -> None:
    prompt, tokens = random_tokens(13, 6), random_tokens(7, 7)
    parents = [-1, 0, 0, 2, -1, 4, 3]
    table = PageTable(bench.pool)
    bench.feed([(table, prompt[:-1])])
    start = table.length
    bench.driver.copy_pages(table.reserve(1 + len(tokens)))
    work = Work([prompt[-1], *tokens], 1 + len(tokens), placement=tree_placement(start, 1, parents))
    rows = bench.driver.forward(prepare([Planned(None, work, table)], bench.driver.page_size)).logits  # type: ignore[arg-type]
    for node in range(len(tokens)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        alone = bench.expected(prompt + [tokens[at] for at in path])
        assert np.abs(rows[1 + node] - alone[-1]).max() < TOLERANCE
    accepted = [0, 2, 3, 6]
    slots = [(table.slot(start + 1 + node), table.slot(start + 1 + at)) for at, node in enumerate(accepted)]
    bench.driver.move_tokens(*zip(*slots, strict=True))
    table.advance(1 + len(accepted))
    rest = random_tokens(5, 8)
    (after,) = bench.feed([(table, rest)])
    kept = prompt + [tokens[node] for node in accepted]
    assert np.abs(after - bench.expected(kept + rest)[len(kept) :]).max() < TOLERANCE
    table.release()


def test_no_wanted_rows_gives_no_logits(bench: Bench) -> None:
    table = PageTable(bench.pool)
    table.reserve(3)
    plan = [Planned(None, Work([5, 6, 7]), table)]  # type: ignore[arg-type]
    assert bench.driver.forward(prepare(plan, bench.driver.page_size)).logits.shape == (0, VOCAB)
    table.release()
