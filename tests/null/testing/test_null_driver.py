"""The null driver finds what was computed behind other tokens than those that it is read behind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.forward_pass import Prefill
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.kv.table import PageCopy
from inferd_runtime.models.batch import Batch, Placement, Span
from inferd_runtime.testing.null_driver import MASKED, NullDriver, WrongHistory, checksums


def feed(
    driver: NullDriver, tokens: Sequence[int], pages: Sequence[int], start: int = 0, *, adapter: str = "",
    placement: Placement | None = None,
) -> None:  # fmt: skip
    """Feed tokens from ``start`` on into pages of four."""
    index = np.arange(start, start + len(tokens))
    batch = Batch(
        tokens=np.asarray(tokens),
        positions=index if placement is None else placement.positions[start:],
        slots=np.asarray(pages)[index // 4] * 4 + index % 4,
        logit_rows=np.asarray([len(tokens) - 1]),
        spans=[Span(0, len(tokens), start, pages, adapter)],
        placements={} if placement is None else {0: placement},
    )
    driver.forward(batch)


def test_a_page_behind_another_text_is_found() -> None:
    driver = NullDriver()
    feed(driver, [1, 2, 3, 4, 5, 6, 7, 8], [0, 1])
    feed(driver, [4, 3, 2, 1, 5, 6, 7, 8], [2, 3])
    feed(driver, [9], [0, 1, 4], 8)
    with pytest.raises(WrongHistory, match="token 4 "):
        feed(driver, [9], [2, 1, 4], 8)
    driver.copy_pages([PageCopy(3, 1)])
    feed(driver, [9], [2, 1, 4], 8)


@pytest.mark.parametrize("pages", [[1, 0, 4], [5, 6, 7]], ids=["in another order", "never written"])
def test_pages_that_do_not_follow_each_other_are_found(pages: Sequence[int]) -> None:
    driver = NullDriver()
    feed(driver, [1, 2, 3, 4, 5, 6, 7, 8], [0, 1])
    with pytest.raises(WrongHistory, match="token 0 "):
        feed(driver, [9], pages, 8)


def test_another_adapter_and_another_position_are_found() -> None:
    driver = NullDriver()
    driver.adapters["x"] = 1 << 40
    feed(driver, [1, 2, 3, 4], [0])
    with pytest.raises(WrongHistory, match="token 0 "):
        feed(driver, [5], [0, 1], 4, adapter="x")
    shifted = Placement(np.arange(5) + 1, np.ones((1, 5), np.bool_))
    with pytest.raises(WrongHistory, match="token 0 "):
        feed(driver, [5], [0, 1], 4, placement=shifted)


def test_a_branch_of_a_tree_is_a_chain_once_it_has_moved() -> None:
    for moved in (True, False):
        driver = NullDriver()
        feed(driver, [1, 2, 3], [0])
        # Behind 4: 5 and its sibling 6, which 7 follows.
        feed(driver, [4, 5, 6, 7], [0, 1], 3, placement=tree_placement(3, 1, [-1, -1, 1]))
        if moved:
            driver.move_tokens([5, 6], [4, 5])
            feed(driver, [8], [0, 1], 6)
        else:
            with pytest.raises(WrongHistory, match="token 5 "):
                feed(driver, [8], [0, 1], 6)


def test_a_mask_shows_in_the_checksum() -> None:
    values = np.asarray([3, 4, 5])
    seen = np.tril(np.ones((3, 3), np.bool_))
    whole = checksums(values, Placement(np.arange(3), seen), 3)
    assert (whole == checksums(values, None, 3)).all()
    seen[2, 1] = False
    masked = checksums(values, Placement(np.arange(3), seen), 3)
    assert (masked & MASKED).tolist() == [0, 0, 1]
    assert (masked[:2] == whole[:2]).all()
    assert (
        masked[2] | MASKED
        == checksums(values[[0, 2]], Placement(np.asarray([0, 2]), np.tril(seen[:2, :2])), 2)[1] | MASKED
    )


@pytest.mark.parametrize("parked", [False, True])
def test_a_context_whose_cache_holds_another_text_is_found(parked: bool) -> None:
    engine = Engine(NullDriver())
    contexts = [engine.create_context() for _ in range(2)]
    for at, context in enumerate(contexts):
        context.append([1, 2, 3, 4, 5 + at, 7])
        engine.submit(Prefill(context))
    while engine.step():
        pass
    engine.check_integrity()
    if parked:
        contexts[1].park()
    check(engine, contexts)
    contexts[1].tokens[3] = 5
    with pytest.raises(WrongHistory, match="token 3 "):
        check(engine, contexts)
    contexts[1].tokens[3] = 4


def check(engine: Engine, contexts: Sequence[CachedSequence]) -> None:
    """Check every context's cache."""
    assert isinstance(engine.driver, NullDriver)
    for context in contexts:
        engine.driver.check_sequence(context)
