"""``forward``, prompt log-probabilities and embeddings against transformers' own numbers."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from families import VOCAB, make
from family_table import HERE, SERVED
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from inferd import protocol as p
from inferd.calls.forward_arguments import attention_runs
from inferd.protocol.floats import unpack_floats
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.passes.fused import fuse
from inferd_runtime.models.passes.plain import PlainPass
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

TOLERANCE = 1e-4
MAX_CONTEXT = 200
# Grouped query heads (all), RoPE in both passes, a sliding window, soft-caps with a window, learned positions.
WAYS = [("llama", False), ("llama", True), ("mistral", False), ("mistral", True), ("gemma2", False), ("gpt2", False)]
TREE = [-1, 0, 0, 1, 1, 2, 3, 3]
# Whose decoder is where others have none, learned sinks, K and V of different widths, blocks instead of windows.
ODD = ["opt", "modernbert-decoder", "llama4_text", "gpt_oss", "deepseek_v3"]
OTHERS = [pytest.param(family, marks=pytest.mark.long) for family in HERE if family not in ODD]


class Bench:
    """A session on one model behind the driver, beside an untouched copy of the model."""

    def __init__(self, family: str, fast: bool, budget: int = 7, model: Any = None) -> None:
        self.plain: Any = model or make(family)
        served = copy.deepcopy(self.plain)
        probed = attach(served, family)
        run = fuse(served, probed.kv, probed.rules) if fast else PlainPass(served)
        assert run is not None
        like = next(served.parameters())
        driver = TorchDriver(run, like, probed.kv, vocab_size=VOCAB, max_context=MAX_CONTEXT, pages=128, page_size=4)
        model = null_model()
        info = dataclasses.replace(model.info, vocab_size=VOCAB, max_context=MAX_CONTEXT)
        engine = Engine(driver, EngineOptions(token_budget=budget))
        self.caller = DirectSession(dataclasses.replace(model, info=info, engine=engine))

    @torch.inference_mode()
    def logprobs(self, tokens: Sequence[int], positions: Sequence[int] | None = None) -> Tensor:
        """float32[T, V], transformers' own."""
        ids = torch.tensor([list(tokens)])
        at = None if positions is None else torch.tensor([list(positions)])
        # Without a mask of ones, transformers takes a jump in the positions for the beginning of another text.
        logits = self.plain(
            input_ids=ids, position_ids=at, attention_mask=torch.ones_like(ids), use_cache=False
        ).logits[0]
        return torch.log_softmax(logits, -1)

    def context(self, tokens: Sequence[int]) -> int:
        return self.caller.context(*([p.Part("tokens", tokens=list(tokens))] if tokens else []))

    def forward(self, context: int, tokens: Sequence[int], **fields: Any) -> Tensor:
        """float32[T, V], the log-probabilities of every token's row."""
        probes = [p.Probe("logits")]
        request = p.Forward(context, list(tokens), at=list(range(len(tokens))), probes=probes, **fields)
        rows = self.caller.call(request).rows
        return torch.log_softmax(torch.tensor([row.probes[0].values for row in rows]), -1)


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=count)


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.fixture(scope="module", params=WAYS, ids=[f"{family}-{'fused' if fast else 'plain'}" for family, fast in WAYS])
def bench(request: pytest.FixtureRequest) -> Any:
    bench = Bench(*request.param)
    yield bench
    bench.caller.close()


def test_probes_equal_torch_on_transformers_logits(bench: Bench) -> None:
    tokens, k, temperature = random_tokens(23, 1), 5, 0.7
    probes = [p.Probe("distribution", temperature, k), p.Probe("logprobs", tokens=[5, 90]), p.Probe("entropy")]
    context = bench.context(tokens[:9])
    rows = bench.caller.call(p.Forward(context, tokens[9:], at=[0, 13, 6], top=3, probes=probes)).rows
    expected = bench.logprobs(tokens)
    for row, at in zip(rows, (9, 22, 15), strict=True):
        distribution, some, entropy = row.probes
        heated = torch.softmax(expected[at] / temperature, -1).topk(k)
        assert distribution.tokens == heated.indices.tolist()
        assert distribution.values == pytest.approx(heated.values.tolist(), abs=TOLERANCE)
        assert some.values == pytest.approx(expected[at, [5, 90]].tolist(), abs=TOLERANCE)
        assert entropy.value == pytest.approx(
            float(torch.distributions.Categorical(logits=expected[at]).entropy()), abs=TOLERANCE
        )
        assert entropy.value == pytest.approx(row.entropy, abs=1e-5)
        assert row.top_tokens == expected[at].topk(3).indices.tolist()
        assert row.token == int(expected[at].argmax())


def test_mask_and_bias_come_before_everything_else(bench: Bench) -> None:
    tokens, allowed = random_tokens(12, 2), [7, 11, 50, 96]
    probes = [p.Probe("logits"), p.Probe("distribution"), p.Probe("entropy")]
    request = p.Forward(
        bench.context([]), tokens, top=9, probes=probes, mask=allowed, bias_tokens=[50, 3], bias_values=[4.0, 99.0]
    )
    row = bench.caller.call(request).rows[0]
    edited = bench.logprobs(tokens)[-1].clone()
    edited[50] += 4.0
    expected = torch.log_softmax(edited[allowed], -1)
    logits, distribution, entropy = row.probes
    assert [token for token, value in enumerate(logits.values) if value > -np.inf] == allowed
    assert far(torch.log_softmax(torch.tensor(logits.values)[allowed], -1), expected) < TOLERANCE
    order = expected.argsort(descending=True)
    assert row.top_tokens == distribution.tokens == [allowed[at] for at in order]
    assert distribution.values == pytest.approx(expected.exp()[order].tolist(), abs=TOLERANCE)
    assert row.token == row.top_tokens[0]
    assert entropy.value == pytest.approx(-float((expected.exp() * expected).sum()), abs=TOLERANCE)


def tree_rows(base: int, parents: Sequence[int]) -> tuple[list[list[bool]], list[int]]:
    """Attention rows over ``base`` tokens and the tree behind them, and each node's position."""
    rows: list[list[bool]] = []
    positions: list[int] = []
    for at, parent in enumerate(parents):
        row = list(rows[parent]) if parent >= 0 else [True] * base + [False] * len(parents)
        row[base + at] = True
        rows.append(row)
        positions.append(sum(row) - 1)
    return rows, positions


def path(at: int, parents: Sequence[int] = TREE) -> list[int]:
    return [] if at < 0 else [*path(parents[at], parents), at]


@pytest.mark.parametrize("base", [0, 17])
def test_a_tree_equals_each_branch_as_its_own_chain(bench: Bench, base: int) -> None:
    prompt, nodes = random_tokens(base, 3), random_tokens(len(TREE), 4)
    rows, positions = tree_rows(base, TREE)
    runs = attention_runs(rows, len(TREE))
    context = bench.context(prompt)
    got = bench.forward(context, nodes, attention_mask=runs, positions=positions)
    chains = [bench.logprobs([*prompt, *(nodes[i] for i in path(at))]) for at in range(len(TREE))]
    for at, chain in enumerate(chains):
        assert far(got[at], chain[-1]) < TOLERANCE
    follow_a_branch(bench, context, prompt, nodes)


@pytest.mark.parametrize(("family", "fast"), [("llama", True), ("gemma2", False)])
def test_trees_of_one_size_share_a_batch(family: str, fast: bool) -> None:
    """And a chain of that size, in one step."""
    bench = Bench(family, fast, budget=64)
    parents = {0: TREE, 1: [-1, -1, 1, 1, 0, 4, 4, -1], 2: list(range(-1, len(TREE) - 1))}
    prompts, nodes = (
        [random_tokens(9, 20 + at) for at in parents],
        [random_tokens(len(TREE), 30 + at) for at in parents],
    )
    waiting = []
    for at, shape in parents.items():
        rows, positions = tree_rows(9, shape)
        waiting.append(
            bench.caller.submit(
                p.Forward(
                    bench.context(prompts[at]), nodes[at], at=list(range(len(TREE))), probes=[p.Probe("logits")],
                    attention_mask=attention_runs(rows, len(TREE)), positions=positions,
                )
            )[1]
        )  # fmt: skip
    assert bench.caller.engine.step()
    for at, (replies,) in enumerate(waiting):
        for node, row in enumerate(replies.rows):
            branch = [nodes[at][i] for i in path(node, parents[at])]
            got = torch.log_softmax(torch.tensor(row.probes[0].values), -1)
            assert far(got, bench.logprobs([*prompts[at], *branch])[-1]) < TOLERANCE
    bench.caller.close()


def follow_a_branch(bench: Bench, context: int, prompt: list[int], nodes: list[int]) -> None:
    """More tokens behind one branch of a fork, from the cache and after everything has to be computed again."""
    branch = path(6)
    base, more = len(prompt), random_tokens(4, 5)
    chain = bench.logprobs([*prompt, *(nodes[i] for i in branch), *more])[-len(more) :]
    held = [True] * base + [at in branch for at in range(len(nodes))]
    rows = [[*held, *(before <= at for before in range(len(more)))] for at in range(len(more))]
    places = [base + len(branch) + at for at in range(len(more))]
    for recompute in (False, True):
        fork = bench.caller.call(p.ForkContext(context)).context
        if recompute:
            bench.caller.session._state.contexts[fork].context.uncompute(0)
        got = bench.forward(fork, more, attention_mask=attention_runs(rows, len(more)), positions=places)
        assert far(got, chain) < TOLERANCE
        bench.caller.call(p.ReleaseContext(fork))


def test_passes_in_the_same_batch_change_no_generation(bench: Bench) -> None:
    contexts = [random_tokens(length, length) for length in (5, 30)]
    alone = [bench.caller.generate(bench.context(tokens), max_tokens=15).tokens for tokens in contexts]
    rows, positions = tree_rows(9, TREE)
    waiting = [
        bench.caller.submit(request)[1]
        for request in (
            p.Embed(tokens=[random_tokens(40, 8), random_tokens(3, 9)]),
            p.PromptLogprobs(bench.context([]), random_tokens(60, 10)),
            p.Forward(
                bench.context(random_tokens(9, 11)),
                random_tokens(len(TREE), 12),
                attention_mask=attention_runs(rows, len(TREE)),
                positions=positions,
            ),
        )
    ]
    together = bench.caller.together([bench.context(tokens) for tokens in contexts], max_tokens=15)
    assert together == alone
    while not all(waiting):
        assert bench.caller.engine.step()
    assert not any(isinstance(replies[0], p.InferdError) for replies in waiting)


@pytest.mark.parametrize(("family", "fast"), [("llama", False), ("llama", True), ("gpt2", False)])
def test_explicit_positions_equal_transformers_with_these_positions(family: str, fast: bool) -> None:
    bench = Bench(family, fast)
    tokens, positions = random_tokens(20, 6), sorted(random.Random(6).sample(range(150), 12))
    places = [*range(8), *positions]
    context = bench.context(tokens[:8])
    got = bench.forward(context, tokens[8:], positions=positions)
    assert far(got, bench.logprobs(tokens, places)[8:]) < TOLERANCE
    generated = bench.caller.generate(context, max_tokens=5).tokens
    last = places[-1]
    everything = [*tokens, *generated]
    expected = bench.logprobs(everything, [*places, *range(last + 1, last + 1 + len(generated))])
    assert generated == expected[len(tokens) - 1 : -1].argmax(-1).tolist()
    bench.caller.call(p.TruncateContext(context, 8))
    assert far(bench.forward(context, tokens[8:]), bench.logprobs(tokens)[8:]) < TOLERANCE
    bench.caller.close()


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("base", [0, 1, 30])
def test_prompt_logprobs_equal_transformers_in_any_number_of_chunks(bench: Bench, base: int, computed: bool) -> None:
    tokens = random_tokens(75, 7 + base)
    computed = computed and base > 0
    context = bench.context(tokens[: base - computed])
    if computed:
        bench.forward(context, tokens[base - 1 : base])
    reply = bench.caller.call(p.PromptLogprobs(context, tokens[base:], top=2))
    assert reply.length == 75
    expected = bench.logprobs(tokens)
    scores = list(enumerate(reply.tokens, base))
    if base == 0:
        assert scores.pop(0)[1] == p.TokenLogprob(tokens[0])
    for at, score in scores:
        row = expected[at - 1]
        assert score.token == tokens[at]
        assert score.logprob == pytest.approx(float(row[tokens[at]]), abs=TOLERANCE)
        assert score.rank == 1 + int((row > row[tokens[at]]).sum())
        assert score.top_tokens == row.topk(2).indices.tolist()
        assert score.top_logprobs == pytest.approx(row.topk(2).values.tolist(), abs=TOLERANCE)
    again = bench.forward(context, tokens[:3])
    assert far(again, bench.logprobs([*tokens, *tokens[:3]])[-3:]) < TOLERANCE


@torch.inference_mode()
def last_hidden_state(bench: Bench, tokens: list[int]) -> Tensor:
    output: Tensor = bench.plain.base_model(input_ids=torch.tensor([tokens]), use_cache=False).last_hidden_state
    return output[0]


@pytest.mark.parametrize("pooling", ["mean", "last", "cls", "none"])
def test_embeddings_equal_pooled_last_hidden_states(bench: Bench, pooling: str) -> None:
    inputs = [random_tokens(count, count) for count in (1, 40, 9)]
    for normalize in (False, True):
        reply = bench.caller.call(p.Embed(tokens=inputs, pooling=pooling, normalize=normalize))
        for tokens, packed in zip(inputs, reply.packed, strict=True):
            states = last_hidden_state(bench, tokens)
            pooled = {"mean": states.mean(0, keepdim=True), "last": states[-1:], "cls": states[:1], "none": states}
            expected = pooled[pooling]
            if normalize:
                expected = torch.nn.functional.normalize(expected, dim=-1)
            got = torch.tensor(unpack_floats(packed)).view(-1, reply.size)
            assert got.shape == expected.shape
            assert far(got, expected) < TOLERANCE * max(1.0, float(expected.abs().max()))


@torch.inference_mode()
def outermost_states(model: Any, tokens: list[int]) -> Tensor:
    """float32[T, E], the last hidden state of whichever module gave one last, wherever the model keeps its decoder."""
    seen: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        if hasattr(output, "last_hidden_state"):
            seen.append(output.last_hidden_state[0])

    watched = [module.register_forward_hook(keep) for module in model.modules()]
    model(input_ids=torch.tensor([tokens]), use_cache=False)
    for watch in watched:
        watch.remove()
    return seen[-1]


@pytest.mark.parametrize("family", [*ODD, *OTHERS])
def test_every_family_gives_trees_and_hidden_states(family: str) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SERVED[family].base, **SERVED[family].settings})
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    bench = Bench(family, False, model=model)
    prompt, nodes = random_tokens(17, 3), random_tokens(len(TREE), 4)
    rows, positions = tree_rows(17, TREE)
    got = bench.forward(
        bench.context(prompt), nodes, attention_mask=attention_runs(rows, len(TREE)), positions=positions
    )
    for at in range(len(TREE)):
        assert far(got[at], bench.logprobs([*prompt, *(nodes[i] for i in path(at))])[-1]) < TOLERANCE
    reply = bench.caller.call(p.Embed(tokens=[prompt], pooling="none", normalize=False))
    states = torch.tensor(unpack_floats(reply.packed[0])).view(-1, reply.size)
    assert far(states, outermost_states(model, prompt)) < TOLERANCE
    bench.caller.close()
