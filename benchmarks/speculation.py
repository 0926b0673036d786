"""Speculation against none, batch by batch, and against what transformers offers: prompt lookup and an assistant model.

    python benchmarks/speculation.py [--quick] [--model tiny] [--draft tiny-draft] [--threads 1]

Prints the ceiling first and one JSON line last. Arms have the same weights, prompts and threads, run interleaved, and are
compared round by round; every figure is the median of at least five rounds with its range. All arms of ours must bring the
same tokens in every round, or the benchmark fails. Compared with no speculation, prompts are found in the prefix cache from
the warm-up on, so that decoding is what is timed; compared with transformers, nothing is found and the prompts' time counts.
The column of processor time, in which a busy machine counts for less, compares the same way.

``--quick`` leaves out most prompts, batches 8 and 32 of all but the drafter that is always wrong, and batches above 16 of
the controller's traces.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import controller_traces
import speculation_prompts
import torch
import transformers
from controller import ROW_COST, SEEDS, compare, share_of_oracle
from lookup import measure_lookup
from measure import figure, ratios, read_bandwidth
from prompts import Prompt
from speculation_arms import Run, SpeculationArm, TransformersArm

from inferd_runtime.speculation.times import StepShape

ROUNDS = 5
BATCHES = (1, 8, 32)
LONGEST = 16
SHORT = 40
"""Tokens of each output for the drafter that is always wrong, with ``--quick``."""
LOOKUPS = (10, 16)
"""The documented example of ``prompt_lookup_num_tokens``, and our own longest draft."""
KEYS = {"copy": "copy_b1", "json": "json_b1", "code": "code_edit_b1", "agent": "agent_b1", "prose": "prose_b1"}
"""The kinds of prompts, and the key of each at batch 1."""
PEERED = ("copy", "json", "code")
Runs = dict[str, list[Run]]


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    quick: bool

    @property
    def rounds(self) -> int:
        """Rounds of every comparison."""
        return ROUNDS if self.quick else ROUNDS + 2

    def prompts(self, kind: str, batch: int) -> list[Prompt]:
        """The prompts of a kind for a batch: one for each place, and as many that take the places of those that end."""
        family: list[Prompt] = FAMILIES[kind]()
        if self.quick:
            family = family[1 : 2 if kind == "agent" else 3] if batch == 1 else family
            family = [replace(one, max_tokens=SHORT) for one in family] if kind == "adversarial" else family
        places = batch if self.quick or batch == 1 else 2 * batch
        return family * max(1, places // len(family))

    @property
    def batches(self) -> Sequence[int]:
        """The batches in which all kinds are measured."""
        return (1,) if self.quick else BATCHES


FAMILIES: dict[str, Callable[[], list[Prompt]]] = {
    "copy": speculation_prompts.copies,
    "json": speculation_prompts.records,
    "code": speculation_prompts.edits,
    "agent": speculation_prompts.agents,
    "prose": speculation_prompts.prose,
    "adversarial": speculation_prompts.prose,
}


def main() -> None:
    """Run everything and print."""
    options = parse()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    extent = Extent(options.quick)
    ours, theirs = (
        SpeculationArm(options.model, options.draft, options.threads),
        TransformersArm(options.model, options.draft),
    )
    print_ceiling(ours, theirs, options.threads)
    figures: dict[str, float] = {}
    print("\n== against no speculation ==")
    for kind in KEYS:
        for batch in extent.batches:
            figures |= against_none(ours, kind, batch, extent)
    print("\n== against transformers, batch 1 ==")
    for kind in PEERED:
        figures |= against_transformers(ours, theirs, kind, extent)
    figures["draft_model_vs_assistant"] = min(figures[f"{kind}_draft_model_vs_assistant"] for kind in PEERED)
    print("\n== a drafter that is always wrong: last, because the engine remembers it ==")
    for batch in BATCHES:
        figures |= against_wrong(ours, batch, extent)
    figures["wrong_drafter_min"] = min(figures[f"wrong_drafter_b{batch}"] for batch in BATCHES)
    figures |= lookups() | against_oracle(extent)
    print(json.dumps({"benchmark": "speculation", "quick": options.quick, "threads": options.threads, **figures}))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Figures of speculation.")
    parser.add_argument("--quick", action="store_true", help="end within 50 s")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--draft", default="tiny-draft", help="the assistant, with the model's vocabulary")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def print_ceiling(ours: SpeculationArm, theirs: TransformersArm, threads: int) -> None:
    """Memory bounds a step without drafts; what a row costs beside others bounds what drafts can bring."""
    size, bandwidth = theirs.weight_bytes, read_bandwidth()
    print(f"ceiling: {size / 1e6:.1f} MB of weights at {bandwidth / 1e9:.1f} GB/s = {bandwidth / size:.0f} tokens/s")
    print(f"         of one stream without drafts, {threads} thread(s) of {os.cpu_count()}")
    for batch in BATCHES:
        shape, learnt = StepShape(batch, batch, 64 * batch), ours.served.engine.draft_budget.controller.times
        times = learnt.times(shape, LONGEST * batch)
        gain, best = max(((1 + rows) * times[0] / times[rows * batch], rows) for rows in range(LONGEST + 1))
        step = f"batch {batch}: {times[0] * 1e3:.2f} ms a step"
        print(f"         {step}, as profiled; {best} drafts each that all hold make it {gain:.2f} times as fast")
    print("tok/s and ratios: median [lowest .. highest]")


def alternated(arms: Mapping[str, Callable[[], Run]], rounds: int) -> Runs:
    """Every arm once a round, each round in the opposite order of the last; the first round is warm-up."""
    runs: Runs = {name: [] for name in arms}
    for round_ in range(rounds + 1):
        for name in list(arms)[:: -1 if round_ % 2 else 1]:
            run = arms[name]()
            if round_:
                runs[name].append(run)
    return runs


def check_same(what: str, runs: Runs) -> None:
    """Fail when arms of ours have brought different tokens."""
    wanted = next(iter(runs.values()))[0].tokens
    for name, each in runs.items():
        if any(run.tokens != wanted for run in each):
            raise SystemExit(f"{what}: {name} changed the output")


def gain(runs: Runs, over: str, under: str) -> list[float]:
    """The rates of one arm over those of another, round by round."""
    return ratios([run.rate for run in runs[over]], [run.rate for run in runs[under]])


def show(runs: Runs, base: str) -> None:
    """One line for each arm: its rate, how it compares with ``base``, and what its drafts came to."""
    for name, each in runs.items():
        drafted, accepted, steps = ([getattr(run, field) for run in each] for field in ("drafted", "accepted", "steps"))
        drafts = f"{span(accepted)} of {span(drafted)} drafts, {span(steps)} steps" if any(steps) else ""
        ratio = "" if name == base else f"x {figure([round(value, 3) for value in gain(runs, name, base)])}"
        busy = statistics.median(ratios([run.processor for run in runs[base]], [run.processor for run in each]))
        print(f"  {name:<14}{figure([run.rate for run in each])} tok/s  {ratio:<28} {busy:6.2f}  {drafts}")


def span(counts: Sequence[int]) -> str:
    """All rounds' counts as one number or a range."""
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)}..{max(counts)}"


def against_none(ours: SpeculationArm, kind: str, batch: int, extent: Extent) -> dict[str, float]:
    """A kind of prompts with what a request gets by default, and without speculation."""
    prompts, each = extent.prompts(kind, batch), {"none": ours.none, "usual": ours.usual}
    if kind == "code":
        each["predicted"] = ours.predicted
    arms = {name: partial(ours.run, prompts, batch, sources) for name, sources in each.items()}
    runs = measure(f"{kind}, batch {batch}", arms, extent.rounds)
    figures = {KEYS[kind] if batch == 1 else f"{kind}_b{batch}": middle(gain(runs, "usual", "none"))}
    if kind == "code":
        figures[f"code_predict_b{batch}"] = middle(gain(runs, "predicted", "none"))
    return figures


def against_wrong(ours: SpeculationArm, batch: int, extent: Extent) -> dict[str, float]:
    """A drafter that is always wrong; in a full run also where the engine has just seen that n-grams are right."""
    prompts = extent.prompts("adversarial", batch)
    wrong = ours.recorded(ours.run(prompts, batch, ours.none).tokens, 1)
    none, always = partial(ours.run, prompts, batch, ours.none), partial(ours.run, prompts, batch, wrong)
    what = f"adversarial, batch {batch}"
    runs = measure(what, {"none": none, "wrong": always}, extent.rounds if extent.quick else 2 * extent.rounds)
    figures = {f"wrong_drafter_b{batch}": middle(gain(runs, "wrong", "none"))}
    if not extent.quick:
        copies = partial(ours.run, extent.prompts("copy", batch), batch, ours.usual)
        runs = measure(f"{what}, after copies", {"none": none, "wrong": partial(second, copies, always)}, extent.rounds)
        figures[f"wrong_after_copies_b{batch}"] = middle(gain(runs, "wrong", "none"))
    return figures


def second(first: Callable[[], Run], run: Callable[[], Run]) -> Run:
    """The run of the two that counts."""
    first()
    return run()


def measure(what: str, arms: Mapping[str, Callable[[], Run]], rounds: int) -> Runs:
    """The same prompts in every arm, of which ``none`` is the first; prints them."""
    runs = alternated(arms, rounds)
    check_same(what, runs)
    print(f"\n{what}: {sum(map(len, runs['none'][0].tokens))} tokens")
    show(runs, "none")
    return runs


def against_transformers(ours: SpeculationArm, theirs: TransformersArm, kind: str, extent: Extent) -> dict[str, float]:
    """Ours against prompt lookup, of which the better length counts, and the assistant model."""
    prompts = extent.prompts(kind, 1)
    ids, most = [ours.tokens(prompt) for prompt in prompts], prompts[0].max_tokens
    arms: dict[str, Callable[[], Run]] = {
        "ours": partial(ours.run, prompts, 1, ours.usual, cold=True),
        "draft model": partial(ours.run, prompts, 1, ours.draft_model, cold=True),
    }
    hows: dict[str, dict[str, Any]] = {f"lookup {count}": {"prompt_lookup_num_tokens": count} for count in LOOKUPS}
    hows["assistant"] = {"assistant_model": theirs.assistant}
    arms |= {name: partial(theirs.run, ids, most, how) for name, how in hows.items()}
    runs = alternated(arms, extent.rounds)
    check_same(kind, {name: runs[name] for name in ("ours", "draft model")})
    share = [same_share(runs["ours"][0].tokens, runs[name][0].tokens) for name in hows]
    print(f"\n{kind}: {min(share):.1%} of the tokens are those of transformers")
    show(runs, "ours")
    medians = {name: statistics.median(run.rate for run in runs[name]) for name in hows if name != "assistant"}
    best = max(medians, key=medians.__getitem__)
    return {
        f"{kind}_vs_prompt_lookup": middle(gain(runs, "ours", best)),
        f"{kind}_vs_assistant": middle(gain(runs, "ours", "assistant")),
        f"{kind}_draft_model_vs_assistant": middle(gain(runs, "draft model", "assistant")),
    }


def lookups() -> dict[str, float]:
    """Microseconds of a proposal that finds something."""
    found = measure_lookup(("1k", "128k"), ROUNDS)
    print("\nlookup, us a proposal: " + ", ".join(f"{name} tokens {found[name]}" for name in ("1k", "128k")))
    return {f"lookup_us_{name}": round(found[name].median, 2) for name in ("1k", "128k")}


def against_oracle(extent: Extent) -> dict[str, float]:
    """The controller on recorded drafts against one that knows every chance beforehand, at its worst."""
    recorded, batches = controller_traces.load(), [batch for batch in ROW_COST if not (extent.quick and batch > 16)]
    shares = share_of_oracle(
        {
            (batch, kind): compare(batch, traces, 1 if extent.quick else SEEDS, ("cost model", "oracle"))
            for batch in batches
            for kind, traces in recorded.items()
        }
    )
    worst = min(shares, key=shares.__getitem__)
    print(f"\ncontroller, at least {shares[worst]:.3f} of the oracle's speed: {worst[1]}, batch {worst[0]}")
    return {"controller_vs_oracle_min": round(shares[worst], 3)}


def same_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """The share of our tokens that stand before the first that differs."""
    same = 0
    for mine, other in zip(ours, theirs, strict=True):
        pairs = enumerate(zip(mine, other, strict=False))
        same += next((at for at, (a, b) in pairs if a != b), min(len(mine), len(other)))
    return same / sum(map(len, ours))


def middle(values: Sequence[float]) -> float:
    """The median, for the JSON line."""
    return round(statistics.median(values), 3)


if __name__ == "__main__":
    main()
