"""What ``forward``, ``prompt_logprobs`` and ``embed`` send, refuse, and bring back."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from session_runtime import PlainDriver, SessionRuntime

import inferd
from inferd import (
    Context,
    Distribution,
    Entropy,
    InvalidRequest,
    Logits,
    Logprob,
    Logprobs,
    Model,
    NotFound,
    TokenLogprob,
    protocol,
)
from inferd.calls.forward_arguments import attention_runs
from inferd.protocol import Embed, Forward, Probe, PromptLogprobs
from inferd.protocol.floats import pack_floats, unpack_floats
from inferd.testing import FakeRuntime
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE

TOTAL = math.log(VOCAB_SIZE - 1 + math.e)


@given(st.lists(st.floats(width=32, allow_nan=False)))
def test_numbers_survive_packing(values: list[float]) -> None:
    assert unpack_floats(pack_floats(values)) == values


@given(st.lists(st.booleans(), max_size=12))
def test_runs_say_what_the_row_says(row: list[bool]) -> None:
    (runs,) = attention_runs([row], 1)
    assert [at % 2 == 1 for at, length in enumerate(runs) for _ in range(length)] == row
    assert all(runs[1:])


async def test_everything_crosses_the_wire_in_its_form() -> None:
    with SessionRuntime() as runtime:
        ctx = Context().append("ab")
        await ctx.forward(
            [1, 2],
            at=[1],
            probes=[Logits(), Distribution(0.5, 3), Logprob(7), Logprobs(iter([8, 9])), Entropy()],
            mask={5},
            bias={7: 1.5, 8: -2},
            attention_mask=[[True, False, True, False], (1, 0, 0, 1)],
            positions=(2, 2),
        )
        assert runtime.of_kind(Forward) == [
            Forward(
                1,
                [1, 2],
                [1],
                probes=[
                    Probe("logits"),
                    Probe("distribution", 0.5, 3),
                    Probe("logprobs", tokens=[7]),
                    Probe("logprobs", tokens=[8, 9]),
                    Probe("entropy"),
                ],
                mask=[5],
                bias_tokens=[7, 8],
                bias_values=[1.5, -2.0],
                attention_mask=[[0, 1, 1, 1, 1], [0, 1, 2, 1]],
                positions=[2, 2],
            )
        ]


async def test_rows_are_read_with_mask_bias_and_probes() -> None:
    with SessionRuntime(PlainDriver()):
        ctx = Context()
        rows = (await ctx.forward([1], probes=[Logits(), Distribution(k=2), Logprob(END), Entropy()], top=1)).rows
        logits, distribution, logprob, entropy = rows[0].probes
        assert (rows[0].token, rows[0].top_tokens) == (END, [END])
        assert (len(logits.values), logits.values[END]) == (VOCAB_SIZE, 1.0)
        assert distribution.tokens == [END, 0]
        assert distribution.values == pytest.approx([math.e / math.exp(TOTAL), 1 / math.exp(TOTAL)])
        assert logprob.value == pytest.approx(1 - TOTAL)
        assert entropy.value == pytest.approx(rows[0].entropy)
        masked = (await ctx.forward([1], mask=[3, 4], bias={4: 2.0}, probes=[Distribution(), Logits()])).rows[0]
        assert (masked.token, masked.probes[0].tokens) == (4, [4, 3])
        assert sum(masked.probes[0].values) == pytest.approx(1)
        assert masked.probes[1].values.count(-math.inf) == VOCAB_SIZE - 2
        sharp = (await ctx.forward([1], probes=[Distribution(0.1, k=1)])).rows[0]
        assert sharp.probes[0].value > 0.9


async def test_probes_cross_a_real_connection(wire: Any) -> None:
    async with wire(SessionRuntime(PlainDriver())) as server, inferd.connect(server.url):
        ctx = Context()
        row = (await ctx.forward([1], mask=[3], probes=[Logits(), Entropy()])).rows[0]
        assert (row.token, row.probes[0].values[3], row.probes[1].value) == (3, 0.0, 0.0)
        scores = await ctx.prompt_logprobs([5])
        assert isinstance(scores[0], TokenLogprob)
        model = await Model.load()
        assert len(await model.embed(["a", "b"])) == 2


async def test_prompt_logprobs_come_one_per_token() -> None:
    with SessionRuntime(PlainDriver()) as runtime:
        ctx = Context()
        first, end, other = await ctx.prompt_logprobs([9, END, 10], top=1)
        assert first == TokenLogprob(9)
        assert (end.rank, end.top_tokens, other.rank) == (1, [END], 2)
        assert end.logprob == pytest.approx(1 - TOTAL)
        assert other.logprob == pytest.approx(-TOTAL)
        assert ctx.length == 3
        with pytest.raises(NotFound, match="style"):
            await ctx.prompt_logprobs([9], adapter="style")
        (again,) = await ctx.prompt_logprobs([9])
        assert again.logprob == pytest.approx(-TOTAL)
        assert runtime.of_kind(PromptLogprobs)[0] == PromptLogprobs(1, [9, END, 10], 1)


async def test_embeddings_are_a_vector_per_input() -> None:
    with SessionRuntime(PlainDriver()) as runtime:
        model = await Model.load()
        assert await model.embed([[1, 2, 3]], normalize=False) == [[2.0, 0.0] + [0.0] * 6]
        assert await model.embed([[5], [0]], pooling="last") == [pytest.approx([0.5**0.5] * 2 + [0] * 6), [0.0] * 8]
        assert await model.embed([[1, 2]], pooling="none", normalize=False) == [[[1.0] + [0] * 7, [2.0] + [0] * 7]]
        assert await model.embed([[1, 2]], pooling="cls") == [[1.0] + [0] * 7]
        await model.embed(["text", "more"])
        assert runtime.of_kind(Embed)[-1] == Embed(["text", "more"], [], "mean", True, "null")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"probes": ["entropy"]}, r"^probes\[0\] must be"),
    ({"probes": [Entropy]}, r"^probes\[0\] must be"),
    ({"mask": []}, "^mask must allow"),
    ({"mask": [-1]}, r"^mask\[0\]"),
    ({"bias": [1]}, "^bias must map"),
    ({"bias": {1: math.inf}}, r"^bias\[1\] must be a finite"),
    ({"bias": {"a": 1.0}}, r"^bias\[0\] must be a whole"),
    ({"attention_mask": [[True]]}, "^attention_mask must hold one row"),
    ({"attention_mask": [[True], "xy"]}, r"^attention_mask\[1\]"),
    ({"attention_mask": [[True], [2]]}, r"^attention_mask\[1\]"),
    ({"positions": [1]}, "^positions must hold one"),
    ({"positions": [1, -1]}, r"^positions\[1\]"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
async def test_forward_names_the_argument_that_is_wrong(arguments: dict[str, Any], message: str) -> None:
    with FakeRuntime() as runtime:
        with pytest.raises(InvalidRequest, match=message):
            await Context().forward([1, 2], **arguments)
        assert runtime.requests == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Distribution(0), "^distribution: temperature must be finite and above 0"),
        (lambda: Distribution("warm"), "^temperature must be a number"),  # type: ignore[arg-type]
        (lambda: Distribution(k=-1), "^distribution: k must"),
        (lambda: Logprob(-1), r"^token\[0\]"),
        (lambda: Logprobs([]), "^logprobs: tokens must name"),
        (lambda: Logprobs("ab"), "^tokens must be a list"),  # type: ignore[arg-type]
    ],
)
def test_a_probe_names_what_is_wrong(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": "text"}, "^inputs must be a list"),
        ({"inputs": []}, "^inputs must be a list"),
        ({"inputs": ["a", [1]]}, "^inputs must be all"),
        ({"inputs": [[1], [-1]]}, r"^inputs\[1\]\[0\]"),
        ({"inputs": [1]}, r"^inputs\[0\] must"),
        ({"inputs": ["a"], "pooling": "max"}, "^pooling must"),
        ({"inputs": ["a"], "normalize": 1}, "^normalize must"),
        ({"inputs": ["a"], "adapter": 1}, "^adapter must"),
    ],
)
async def test_embed_names_the_argument_that_is_wrong(arguments: dict[str, Any], message: str) -> None:
    with FakeRuntime():
        model = await Model.load()
        with pytest.raises(InvalidRequest, match=message):
            await model.embed(**arguments)


async def test_a_released_context_scores_nothing() -> None:
    with FakeRuntime():
        ctx = Context()
        await ctx.release()
        with pytest.raises(InvalidRequest, match="released"):
            await ctx.prompt_logprobs([1])


NESTED = [
    protocol.ForwardResult([protocol.RowResult(0, 1, probes=[protocol.ProbeResult(pack_floats([0.5]))])], 3),
    protocol.Steps(
        [protocol.Step([1], sources=[protocol.SourceCount("ngram", 1)], logprobs=[TokenLogprob(1, -0.5, 1)])],
        "stop",
        [protocol.CheckedKeyword("not", "/a")],
    ),
    protocol.Exported(b"\x00\xff"),
    protocol.Models([]),
]


@pytest.mark.parametrize("reply", NESTED, ids=lambda reply: type(reply).__name__)
def test_nested_replies_are_built_from_plain_values(reply: Any) -> None:
    plain = protocol.to_plain(reply)
    if isinstance(reply, protocol.Exported):
        plain = {"data": base64.b64encode(reply.data).decode()}  # as JSON carries bytes
    assert protocol.reply_from_plain(type(reply), {**plain, "of a newer runtime": 1}) == reply


def test_what_a_probe_found_crosses_packed_is_unpacked_once_and_shows_its_numbers() -> None:
    """A list of 49,152 ids as JSON took the sandbox more than two thirds of the time of ``Distribution()``."""
    found = protocol.ProbeResult(pack_floats([0.5, 0.25]), "BwAAAP//AAA=")
    assert (found.tokens, found.values, found.value) == ([7, 65535], [0.5, 0.25], 0.5)
    assert found.values is found.values
    assert repr(found) == "ProbeResult(values=[0.5, 0.25], tokens=[7, 65535])"
    assert protocol.ProbeResult("").tokens == []
