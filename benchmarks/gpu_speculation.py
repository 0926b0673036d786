"""Speculation end to end on a device, with the cost model that is measured there; and whether drafts change a token in bfloat16.

A model of random weights copies nothing by itself. So its embedding is made large and its head the embedding moved on by one
token: behind token t it says t + 1, by so much that no rounding changes it, while every layer computes and reads what it did
before. A prompt that counts is then copied by the answer, and what drafters bring can be set: one that knows the answer is right
in a given share of its tokens. Whether drafts change tokens is measured before that, on the random weights as they were.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from engine_arms import SPECIAL, random_prompts
from gpu_bench import Bench, Budget, Report
from gpu_ceilings import Ceilings
from gpu_model import Answered, Served, StreamArm
from measure import interleaved, ratios

from inferd_runtime.engine.scheduling.costs import measure_times
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NOTHING, Proposal
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.sources import SourceSet
from inferd_runtime.speculation.times import StepTimes

MATCHES = (2, 5, 3, 12, 2, 8, 4, 3)
"""Match lengths as lookups have them."""
LOUDER = 2500.0
"""So much larger than the layers' outputs the embedding is made."""
NOISE = 8
"""Tokens between the text of a prompt and the token from which its answer copies."""
FREE_ROWS = StepTimes.linear(1.0, 1e-6)
FIXED = 8
STREAMS = 32
ALONE = 4
COPY_TARGET, WRONG_TARGET = 5.0, 0.98
Prompts = list[list[int]]


class Recalling(Drafter):
    """Knows the answer; each of its tokens is right with a probability of ``right``, and it says that it is an n-gram source."""

    source = "ngram"

    def __init__(self, answer: Sequence[int], right: float, vocab: int, seed: int) -> None:
        chance = random.Random(seed)
        self._answer = [token if chance.random() < right else (token + 7) % vocab for token in answer]
        self._at = -1

    def observe(self, tokens: Sequence[int]) -> None:
        """The first call brings the prompt, the others what was said."""
        self._at = 0 if self._at < 0 else self._at + len(tokens)

    def propose(self, limit: int, ahead: Sequence[int] = ()) -> Proposal:
        """See :class:`Drafter`."""
        tokens = self._answer[self._at + len(ahead) :][:limit]
        return Proposal(tokens, match=MATCHES[self._at % len(MATCHES)]) if tokens else NOTHING


@torch.inference_mode()
def make_counting(model: Any) -> None:
    """Let the model say t + 1 behind t, in place: recorded steps stay valid."""
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    head.copy_(embedding.roll(1, 0))
    embedding.mul_(LOUDER)


def counting_prompts(batch: int, copied: int, vocab: int, seed: int) -> tuple[Prompts, Prompts]:
    """Prompts of a stretch of numbers, some random tokens, and the stretch's first token; and the answers, which copy it."""
    chance = random.Random(seed)
    prompts, answers = [], []
    for _ in range(batch):
        first = chance.randrange(SPECIAL, vocab - copied)
        stretch = list(range(first, first + copied))
        prompts.append([*stretch, *chance.choices(range(SPECIAL, vocab), k=NOISE), first])
        answers.append(stretch[1:])
    return prompts, answers


class SpeculationArm:
    """One kind of drafts behind an engine of its own, so that its experience is its own. Prompts are new in every run."""

    def __init__(self, bench: Bench, served: Served, times: StepTimes, batch: int, kind: str) -> None:
        self._arm = StreamArm(served.driver, times=copy.deepcopy(times))
        self._vocab = bench.sizes.model.vocab
        self._copied = bench.sizes.copied
        self._batch = batch
        self._kind = kind
        self.said: list[float] = []
        self.drafts: list[tuple[int, int]] = []

    def rate(self) -> float:
        """Tokens per second behind the prompts."""
        prompts, answers = counting_prompts(self._batch, self._copied, self._vocab, time.perf_counter_ns())
        done = self._arm.answers(prompts, self._copied - 1, partial(self._sources, answers))
        self.said.append(same_share(answers, done.tokens)[0])
        self.drafts.append((done.accepted, done.drafted))
        return done.rate

    def _sources(self, answers: Prompts, stream: int) -> SourceSet | None:
        if self._kind == "none":
            return None
        return self._arm.engine.draft_budget.sources([self._drafter(answers[stream], stream)])

    def _drafter(self, answer: Sequence[int], stream: int) -> Drafter:
        shares = {"right": 1.0, "mostly": 0.8, "wrong": 0.0}
        return NgramDrafter() if self._kind == "copy" else Recalling(answer, shares[self._kind], self._vocab, stream)


def measure_speculation(bench: Bench, report: Report, budget: Budget, served: Served, ceilings: Ceilings) -> None:
    """Over no speculation: n-grams that copy the prompt, drafters that know all and four fifths of the answer, and none of it.

    On an H200: 95 tokens of each stream at 4 to 8 ms a step, two of five arms at full length: 1 to 2 s a round, six rounds and
    batches: 60 s; measuring the times of steps and recording their shapes 10 s.
    """
    del ceilings
    print("\n== speculation: a model that counts; against none ==")
    make_counting(served.loaded.module)
    times = measure_times(served.driver)
    report.tables["step_times"] = profile_of(times)
    for batch in bench.sizes.batches:
        if budget.allows(f"batch {batch}"):
            one_batch(bench, report, served, times, batch)
    for kind, target in (("copy", COPY_TARGET), ("wrong", WRONG_TARGET)):
        found = {name: value for name, value in report.figures.items() if name.startswith(f"spec_{kind}_b")}
        print(f"{kind}: " + ", ".join(f"{name} {value:.3f}" for name, value in found.items()) + f"; target {target}")


def one_batch(bench: Bench, report: Report, served: Served, times: StepTimes, batch: int) -> None:
    """All kinds of drafts at one batch size."""
    arms = {
        kind: SpeculationArm(bench, served, times, batch, kind) for kind in ("none", "copy", "right", "mostly", "wrong")
    }
    rates = interleaved({kind: arm.rate for kind, arm in arms.items()}, bench.rounds)
    print(f"\nbatch {batch}")
    for kind, samples in rates.items():
        found = report.add(f"spec_{kind}_b{batch}_tok_s", samples)
        accepted, drafted = arms[kind].drafts[-1]
        gain = report.add(f"spec_{kind}_b{batch}", ratios(samples, rates["none"]))
        said = report.value(f"spec_{kind}_b{batch}_as_expected", min(arms[kind].said))
        print(f"  {kind:<8}{found} tok/s, x {gain}, {accepted} of {drafted} drafts, {said:.4f} as expected")


def profile_of(times: StepTimes) -> dict[str, Any]:
    """What the cost model was measured to be."""
    profile = times._profile
    rest = {"context": profile.context, "reread": profile.reread, "tree": profile.tree, "uneven": profile.uneven}
    return {
        "sequences": list(profile.sequences), "rows": list(profile.rows), "seconds": profile.seconds.tolist(), **rest
    }  # fmt: skip


def same_share(expected: Sequence[Sequence[int]], got: Sequence[Sequence[int]]) -> tuple[float, float]:
    """The share of tokens before the first that differs, and of streams that do not differ."""
    same = total = whole = 0
    for mine, other in zip(expected, got, strict=True):
        pairs = enumerate(zip(mine, other, strict=False))
        stands = next((at for at, (a, b) in pairs if a != b), min(len(mine), len(other)))
        same, total, whole = same + stands, total + len(mine), whole + (stands == len(mine) == len(other))
    return same / total, whole / len(expected)


# -- Equality ---------------------------------------------------------------------------------------------------------


def measure_equality(bench: Bench, report: Report, budget: Budget, served: Served, ceilings: Ceilings) -> None:
    """Greedy tokens on random weights, whose scores are close: with drafts against without, and what else might change them.

    On an H200: 32 streams of 64 tokens, ten runs at 5 to 8 ms a step, and four streams alone, twice: 10 s with recording.
    """
    del ceilings
    streams = min(STREAMS, max(bench.sizes.batches))
    prompts = random_prompts(bench.sizes.model.vocab, [bench.sizes.prompt] * streams, seed=11)
    print(f"\n== equality: {streams} greedy streams of {bench.sizes.equality} tokens, random weights ==")
    for fixed in (0, FIXED):
        if budget.allows(f"fixed width {fixed}"):
            one_width(bench, report, served, prompts, fixed)


def one_width(bench: Bench, report: Report, served: Served, prompts: Prompts, fixed: int) -> None:
    """Everything against a plain run of the same width: all streams at once, and a few of them each by itself. Side by side,
    streams with drafts end at different steps, and the last ones run in smaller batches than they would without.
    """
    say = partial(say_all, bench, served, fixed)
    plain = say(prompts).tokens
    check(report, f"again_fixed{fixed}", plain, say(prompts))
    check(report, f"simple_loop_fixed{fixed}", plain, say(prompts, overlap=False))
    for name in ("drafts", "drafts_again"):
        check(report, f"{name}_fixed{fixed}", plain, say(prompts, plain))
    alone = [say([prompt]).tokens[0] for prompt in prompts[:ALONE]]
    done = [say([prompt], [answer]) for prompt, answer in zip(prompts, alone, strict=False)]
    check(report, f"drafts_alone_fixed{fixed}", alone, together(done))


def check(report: Report, name: str, plain: Prompts, done: Answered) -> None:
    """Report what is equal."""
    tokens, whole = same_share(plain, done.tokens)
    report.value(f"equal_{name}_tokens", tokens)
    report.value(f"equal_{name}_streams", whole)
    drafts = f", {done.accepted} of {done.drafted} drafts accepted" if done.drafted else ""
    print(f"  {name:<24} {tokens:.4f} of the tokens, {whole:.3f} of the streams{drafts}")


def together(runs: Sequence[Answered]) -> Answered:
    """Several runs as one."""
    return Answered(
        [run.tokens[0] for run in runs], sum(run.seconds for run in runs),
        sum(run.drafted for run in runs), sum(run.accepted for run in runs),
    )  # fmt: skip


def say_all(
    bench: Bench, served: Served, fixed: int, prompts: Prompts, answers: Prompts | None = None, overlap: bool = True
) -> Answered:
    """All streams, with drafts of known ``answers`` that are right in four of five tokens."""
    arm = StreamArm(served.driver, overlap=overlap, times=FREE_ROWS, fixed=fixed)

    def sources(stream: int) -> SourceSet | None:
        if answers is None:
            return None
        drafter = Recalling(answers[stream], 0.8, bench.sizes.model.vocab, stream)
        return arm.engine.draft_budget.sources([drafter])

    return arm.answers(prompts, bench.sizes.equality, sources)
