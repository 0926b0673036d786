"""``AttentionMask``: spans say what rows of bools say, in memory that grows with the spans."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples

from inferd import AttentionMask, Context, InvalidRequest, Logits
from inferd.calls.forward_arguments import attention_runs
from inferd.protocol import Forward
from inferd.transport import current_transport
from inferd_runtime.testing.transport import DirectTransport, run_program

SPAN = st.tuples(st.integers(0, 14), st.integers(0, 14)).map(lambda pair: (min(pair), max(pair)))
SPANS = st.lists(SPAN, max_size=4)


def dense(mask: AttentionMask, start: int, count: int) -> list[list[int]]:
    """The mask's rows by its description, as bools up to each token, and these as run lengths."""
    rows = []
    for token in range(start, start + count):
        spans = [(0, mask.sink), (0 if mask.nearest is None else token + 1 - mask.nearest, token + 1)]
        if mask.rows is not None:
            spans = list(mask.rows[token - start])
        seen = [any(low <= at < high for low, high in spans) for at in range(token + 1)]
        hidden = [any(low <= at < high for low, high in mask.hidden) for at in range(token + 1)]
        rows.append([each and not gone for each, gone in zip(seen[:-1], hidden[:-1], strict=True)] + [True])
    return attention_runs(rows, count)


@settings(max_examples=examples(200))
@given(
    st.one_of(
        st.just(AttentionMask.causal()),
        st.builds(lambda n, s: AttentionMask.window(n, sink=s), st.integers(1, 9), st.integers(0, 9)),
        st.lists(SPANS, min_size=4, max_size=4).map(AttentionMask.spans),
    ),
    SPANS, st.integers(0, 10),
)  # fmt: skip
def test_spans_say_what_bools_say(mask: AttentionMask, hidden: list[tuple[int, int]], start: int) -> None:
    for span in hidden:
        mask = mask.hide(*span)
    assert mask.to_wire(start, 4) == dense(mask, start, 4)


@given(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=3, max_size=3), st.integers(0, 8))
def test_runs_are_cut_where_the_token_stands(rows: list[list[int]], start: int) -> None:
    spread = [[at % 2 == 1 for at, run in enumerate(row) for _ in range(run)] for row in rows]
    bools = [[*(row + [False] * 99)[: start + at], True] for at, row in enumerate(spread)]
    assert AttentionMask.runs(rows).to_wire(start, 3) == attention_runs(bools, 3)


@pytest.mark.parametrize(
    "mask",
    [AttentionMask.window(3, sink=2), AttentionMask.causal().hide(2, 5), AttentionMask.spans([[(0, 2)], [(3, 9)], []])],
)
def test_a_pass_gets_what_it_gets_for_bools(mask: AttentionMask) -> None:
    async def program() -> None:
        rows = []
        for row in mask.to_wire(6, 3):
            seen = [at % 2 == 1 for at, run in enumerate(row) for _ in range(run)]
            rows.append(seen + [False] * (9 - len(seen)))
        results = []
        for given_mask in (mask, rows):
            ctx = Context().append("abcdef")
            done = await ctx.forward([*b"xyz"], at=[0, 1, 2], probes=[Logits()], attention_mask=given_mask)
            results.append([row.probes[0].values for row in done.rows])
        assert results[0] == results[1]
        assert (await ctx.forward([])).rows[0].token >= 0

    run_program(program)


def test_the_context_is_flushed_before_rows_are_counted() -> None:
    async def program() -> None:
        ctx = Context().user("hello")
        await ctx.forward([1, 2], attention_mask=AttentionMask.window(1))
        transport = current_transport()
        assert isinstance(transport, DirectTransport)
        sent = next(request for request in transport.requests if isinstance(request, Forward))
        assert sent.attention_mask == [[ctx.length - 2, 1], [ctx.length - 1, 1]]

    run_program(program)


def test_a_mask_of_six_thousand_tokens_takes_little() -> None:
    tracemalloc.start()
    rows = AttentionMask.window(512, sink=4).hide(100, 200).to_wire(0, 6000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rows) == 6000
    assert sum(rows[-1]) == 6000
    assert most < 4 << 20  # bools would take 36 million entries


BAD: list[Any] = [
    lambda: AttentionMask.window(0), lambda: AttentionMask.window(5, sink=-1), lambda: AttentionMask.causal().hide(5, 4),
    lambda: AttentionMask.causal().hide(-1, 4), lambda: AttentionMask.causal().hide(0, True),
    lambda: AttentionMask.spans([[(0,)]]), lambda: AttentionMask.spans([["ab"]]), lambda: AttentionMask.spans([[(1.0, 2)]]),
    lambda: AttentionMask.runs([[-1]]), lambda: AttentionMask.runs([[True]]), lambda: AttentionMask.runs([5]),
    lambda: AttentionMask.spans([[(0, 1)]]).to_wire(0, 2), lambda: AttentionMask.causal().to_wire(5, 0),
]  # fmt: skip


@pytest.mark.parametrize("make", BAD)
def test_what_is_no_mask_is_refused(make: Any) -> None:
    with pytest.raises(InvalidRequest):
        make()
