"""The fused sample, and the rejection verifier, beside what PyTorch makes of the same operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from gpu_bench import Bench, Budget, Call, Report, compare
from gpu_ceilings import Ceilings
from measure import ratios
from torch import Tensor

from inferd_runtime.kernels import sampling as reference, verify
from inferd_runtime.kernels.sampling import SampleRows
from inferd_runtime.kernels.verify import DraftRows, Drafts, Noise

KINDS: dict[str, tuple[float, int, float]] = {
    "greedy": (0.0, 0, 1.0),
    "temperature": (0.8, 0, 1.0),
    "top_p": (0.8, 0, 0.9),
    "top_k_top_p": (0.8, 50, 0.9),
    "mask": (0.8, 0, 1.0),
}
"""Temperature, top_k and top_p; ``mask`` allows half of the vocabulary, drawn anew for each row."""
TARGET_US = 50.0
TARGET_SHAPE = (8, 8)
MOST_CALLS = 32
FLASHSPEC_T4_MS = (0.785, 0.459, 1.248, 0.222)
"""Published for its four shapes on a T4, whichever is which: the source that is at hand does not say. Its kernel compares two
gathered numbers per draft token: both distributions must be there as log-probabilities, and nothing is drawn.
"""


def measure_sampling(bench: Bench, report: Report, budget: Budget, ceilings: Ceilings) -> None:
    """Microseconds of the fused sample by rows and kind of sampler: in a CUDA graph and launched one by one.

    On an H200: up to 320 rows of 152k logits in bfloat16, 97 MB. Ours at 25 to 150 us; the reference sorts twice in float64,
    up to 100 ms a call, of which there are some 20 per kind and shape: 20 shapes and kinds in 40 s.
    """
    sizes = bench.sizes
    print(f"\n== sampling: vocabulary {sizes.vocabulary}, rows = batch x (k + 1), logits in {sizes.dtype} ==")
    for batch, k in sizes.sampled:
        rows = batch * (k + 1)
        size = rows * sizes.vocabulary * sizes.dtype.itemsize
        floor = size / ceilings.bandwidth * 1e6
        print(f"\n{batch} x {k}: {rows} rows, {size / 1e6:.1f} MB, read in {floor:.1f} us")
        logits = [random_logits(bench, rows) for _ in range(bench.copies(size, MOST_CALLS))]
        for kind in KINDS:
            if budget.allows(f"{kind} at {batch} x {k}"):
                one_kind(bench, report, logits, kind, f"sample_{batch}x{k}_{kind}")
        del logits
    worst = [
        report.figures[name]
        for kind in KINDS
        if (name := f"sample_{TARGET_SHAPE[0]}x{TARGET_SHAPE[1]}_{kind}_graph_us") in report.figures
    ]
    if worst:
        print(
            f"\nslowest kind at 8 x 8: {report.value('sample_8x8_worst_us', max(worst)):.1f} us; target {TARGET_US:.0f} us"
        )


def one_kind(bench: Bench, report: Report, logits: Sequence[Tensor], kind: str, prefix: str) -> None:
    """All arms of one kind of sampler."""
    rows, vocab = logits[0].shape
    ours, plain = (sample_rows(bench, rows, vocab, kind, masks=masks) for masks in (True, kind == "mask"))
    temperature, top_k, top_p = KINDS[kind]
    fused: list[Call] = [partial(bench.kernels.sample, each, ours) for each in logits]
    chain: list[Call] = [partial(reference.sample, each, plain) for each in logits[:2]]
    arms = {"graph": bench.graph_arm(fused), "eager": bench.eager_arm(fused), "chain_eager": bench.eager_arm(chain)}
    arms |= optional(bench, report, f"{prefix}_chain", chain)
    if kind == "temperature":
        race: list[Call] = [partial(torch_race, each, temperature) for each in logits]
        arms["multinomial_eager"] = bench.eager_arm([partial(torch_multinomial, each, temperature) for each in logits])
        arms |= optional(bench, report, f"{prefix}_race", race)
    if top_p < 1:
        sorts: list[Call] = [partial(torch_sorted, each, temperature, top_k, top_p) for each in logits[:4]]
        arms["sorted_eager"] = bench.eager_arm(sorts)
        arms |= optional(bench, report, f"{prefix}_sorted", sorts)
    found = compare(bench, report, arms, prefix)
    for peer in found.keys() - {"graph", "eager"}:
        own = found["eager" if peer.endswith("eager") else "graph"]
        report.add(f"{prefix}_{peer}_over_ours", ratios(found[peer], own))


def optional(bench: Bench, report: Report, name: str, calls: Sequence[Call]) -> dict[str, Callable[[], float]]:
    """A peer's graph, where it can be recorded."""
    arm = report.attempt(f"{name}: graph", lambda: bench.graph_arm(calls))
    return {} if arm is None else {f"{name.rsplit('_', 1)[1]}_graph": arm}


def random_logits(bench: Bench, rows: int) -> Tensor:
    """Normal, spread as a model's are."""
    sizes = bench.sizes
    return (3 * torch.randn(rows, sizes.vocabulary, device=bench.device)).to(sizes.dtype)


def sample_rows(bench: Bench, rows: int, vocab: int, kind: str, *, masks: bool) -> SampleRows:
    """Samplers of one kind. ``masks``: whether there are any, as in a recorded step, where a row obeys none or its own."""
    temperature, top_k, top_p = KINDS[kind]
    like = {"device": bench.device}
    words = -(-vocab // 32)
    bits = torch.randint(-(2**31), 2**31, (rows if masks else 0, words), dtype=torch.int32, **like)
    own = (
        torch.arange(rows, dtype=torch.int32, **like)
        if kind == "mask"
        else torch.full((rows,), -1, dtype=torch.int32, **like)
    )
    return SampleRows(
        temperature=torch.full((rows,), temperature, dtype=torch.float64, **like),
        top_p=torch.full((rows,), top_p, dtype=torch.float64, **like),
        min_p=torch.zeros(rows, dtype=torch.float64, **like),
        top_k=torch.full((rows,), top_k, dtype=torch.int64, **like),
        keys=torch.randint(2**62, (rows,), **like),
        positions=torch.arange(rows, **like),
        mask_rows=own,
        masks=bits,
    )


def torch_multinomial(logits: Tensor, temperature: float) -> Tensor:
    """Softmax in float32 and ``torch.multinomial``, which waits for the device."""
    return torch.multinomial((logits.float() / temperature).softmax(-1), 1)


def torch_race(logits: Tensor, temperature: float) -> Tensor:
    """The same without waiting: the largest of probability over exponential noise."""
    likely = (logits.float() / temperature).softmax(-1)
    return likely.div_(torch.empty_like(likely).exponential_()).argmax(-1)


def torch_sorted(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """top_k and top_p in float32 by one sort, as libraries do it, then the race."""
    scores, order = (logits.float() / temperature).sort(-1)
    if top_k:
        scores = scores.masked_fill(scores < scores[:, -top_k].unsqueeze(1), float("-inf"))
    likely = scores.softmax(-1)
    scores = scores.masked_fill(likely.cumsum(-1) <= 1 - top_p, float("-inf"))
    likely = scores.softmax(-1)
    drawn = likely.div_(torch.empty_like(likely).exponential_()).argmax(-1, keepdim=True)
    return order.gather(-1, drawn)


# -- Rejection --------------------------------------------------------------------------------------------------------


def measure_rejection(bench: Bench, report: Report, budget: Budget, ceilings: Ceilings) -> None:
    """The rejection verifier and the agreement kernel, at the shapes of FlashSpec's benchmark.

    On an H200: 32 x 8 reads 72 MB, 17 us; the reference works in float64, some 5 ms. Six shapes in 5 s.
    """
    sizes = bench.sizes
    published = ", ".join(f"{value}" for value in FLASHSPEC_T4_MS)
    print(
        f"\n== rejection: vocabulary {sizes.reject_vocabulary}. FlashSpec on a T4, its four shapes: {published} ms =="
    )
    report.tables["flashspec_t4_ms"] = FLASHSPEC_T4_MS
    for batch, k in sizes.rejected:
        if budget.allows(f"{batch} x {k}"):
            one_rejection(bench, report, ceilings, batch, k)


def one_rejection(bench: Bench, report: Report, ceilings: Ceilings, batch: int, k: int) -> None:
    """All arms at one shape."""
    vocab, prefix = bench.sizes.reject_vocabulary, f"rejection_{batch}x{k}"
    size = batch * (2 * k + 1) * vocab * 4
    print(
        f"\n{batch} x {k}: {size / 1e6:.1f} MB of scores and probabilities, read in {size / ceilings.bandwidth * 1e6:.1f} us"
    )
    cases = [drafted(bench, batch, k, vocab) for _ in range(bench.copies(size, MOST_CALLS))]
    ours: list[Call] = [partial(bench.kernels.rejection, *case) for case in cases]
    chain: list[Call] = [partial(verify.rejection, *case) for case in cases[:4]]
    arms = {"graph": bench.graph_arm(ours), "eager": bench.eager_arm(ours), "chain_eager": bench.eager_arm(chain)}
    arms |= optional(bench, report, f"{prefix}_chain", chain)
    arms["agree_graph"] = bench.graph_arm([partial(bench.kernels.agree, *agreed(bench, batch, k, vocab))] * 2)
    found = compare(bench, report, arms, prefix)
    for peer in found.keys() & {"chain_graph", "chain_eager"}:
        own = found["eager" if peer.endswith("eager") else "graph"]
        report.add(f"{prefix}_{peer}_over_ours", ratios(found[peer], own))


def drafted(bench: Bench, batch: int, k: int, vocab: int) -> tuple[Tensor, Drafts, Noise]:
    """Target scores, and drafts drawn from a distribution that is near the target's."""
    target = 3 * torch.randn(batch, k + 1, vocab, device=bench.device)
    likely = (target[:, :k] + 0.5 * torch.randn(batch, k, vocab, device=bench.device)).softmax(-1)
    tokens = (likely / torch.empty_like(likely).exponential_()).argmax(-1)
    lengths = torch.full((batch,), k, device=bench.device)
    keys = torch.randint(2**62, (batch,), device=bench.device)
    positions = torch.full((batch,), 100, device=bench.device)
    return target, Drafts(tokens, lengths, None, likely), Noise(keys, positions)


def agreed(bench: Bench, batch: int, k: int, vocab: int) -> tuple[Tensor, DraftRows]:
    """Samples and chains that half agree."""
    samples = torch.randint(vocab, (batch * (k + 1),), device=bench.device)
    tokens = samples.view(batch, k + 1)[:, :k].to(torch.int32)
    tokens[:, k // 2 :] += 1
    chain = torch.arange(-1, k - 1, dtype=torch.int32, device=bench.device).expand(batch, k).contiguous()
    first = torch.arange(0, batch * (k + 1), k + 1, dtype=torch.int32, device=bench.device)
    return samples, DraftRows(first, torch.full_like(first, k), tokens, chain)
