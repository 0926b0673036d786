"""A real model, SmolLM2-135M-Instruct, beside what people use today: transformers, llama.cpp, outlines.

    inferd pull smollm2-135m
    python benchmarks/real_model.py --prepare                 # once: llama.cpp's package and files, under the cache folder
    python benchmarks/real_model.py [--quick] [--only single,streams8,...] [--model smollm2-135m]

Prints ceilings first and one JSON line last. One thread each; arms run interleaved and are compared round by round; figures
are medians with their range. Rates are tokens per second of *processor* time (of the peer's own process where it has one),
in which other work on the machine counts for less; but programs in the sandbox wait for each other, and starts are what a
user waits for: those are wall-clock times. Prompts' time counts beside a peer; with speculation on and off prompts are found in
the prefix cache. All arms of ours must bring the same tokens, or the benchmark fails.

single_vs_transformers        one stream over ``generate``
single_vs_llamacpp_same_bits  one stream over llama.cpp with weights of as many bits: the least of float32, 8 and 4
streams8_vs_llamacpp          eight streams over llama.cpp's server, the least of the same
long_vs_llamacpp              a text of some 5,000 tokens, read and gone on with, over llama.cpp with 8 bits
streams32_vs_generate_batch   32 streams over transformers' continuous batching
*_on_vs_off                   speculation on over off, one stream; wrong_min: a drafter that is always wrong, the least of
                              batches 1, 8 and 32
edit_vs_prompt_lookup         a code edit over transformers' prompt lookup, the better of 10 and 16 tokens
json_vs_outlines              nested records under a schema over outlines with transformers
custom_speculator_b8          eight programs with a speculator that guesses nothing over eight without
run_start_s, serve_ready_s    wall seconds of ``inferd run`` of five lines, and of ``inferd serve`` until it is ready

``--quick`` ends within 50 s: shorter texts, one round, and what there is no time left for is left out, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial

import llamacpp_peer
import real_model_processes as processes
import torch
import transformers
from measure import figure, ratios
from named_options import listed, one_of
from prompts import Prompt
from real_model_peers import OutlinesArm, batched, is_valid
from real_model_prompts import of_kind, openings
from speculation import check_same, print_ceiling
from speculation_arms import Outputs, Run, SpeculationArm, TransformersArm

from inferd_runtime.models import host_memory
from inferd_runtime.models.store.pull import resolve

ROUNDS = 5
QUICK_SECONDS = 33.0
"""With ``--quick`` no part begins later than this."""
QUICK_TOKENS = 40
NEVER = 3600.0
KINDS = {"copy": "copy", "json": "json", "code": "code_edit", "agent": "agent", "prose": "prose"}
LOOKUPS = (10, 16)
LONG_TOKENS = 64
"""Behind a long text."""
F32 = "f32"
"""Everything in float32, as the peers that are compared with it compute."""
ROWS8 = "a8"
"""Rows of 8 bits before weights in blocks, as llama.cpp has them."""
Figures = dict[str, float]
Arms = Mapping[str, Callable[[], Run]]


class Bench:
    """What is measured with: each arm is made when a part first asks for it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.model: str = options.model
        self._weights: str = options.weights
        self.quick: bool = options.quick
        self.rounds: int = options.rounds or (1 if options.quick else ROUNDS)
        """Rounds of every comparison, behind a first one that does not count."""
        self._start = time.monotonic()
        self.ours_in = cache(self._ours_in)

    @property
    def late(self) -> bool:
        """True if no other part should begin."""
        return self.rounds < ROUNDS and time.monotonic() - self._start > QUICK_SECONDS

    def extent(self, full: int, quick: int) -> int:
        """How much of something is measured."""
        return quick if self.quick else full

    def prompts(self, kind: str) -> list[Prompt]:
        """The prompts of a kind."""
        all_of_it = of_kind(kind)
        first = all_of_it[0]
        return [replace(first, max_tokens=QUICK_TOKENS, more=first.more[:1])] if self.quick else all_of_it

    @property
    def ours(self) -> SpeculationArm:
        """Our engine as it comes, or as ``--weights`` says."""
        return self.ours_in(self._weights)

    def _ours_in(self, bits: str) -> SpeculationArm:
        options = {"": {}, F32: {"dtype": "float32"}, ROWS8: {"activations": "int8"}}.get(bits, {"weights": bits})
        return SpeculationArm(self.model, "", 1, **options)

    @cached_property
    def theirs(self) -> TransformersArm:
        """transformers."""
        return TransformersArm(self.model)


def main() -> None:
    """Run the parts and print."""
    options = parse()
    torch.set_num_threads(1)
    # What the engine does to its memory in the background, once, would count as time of whichever arm runs meanwhile.
    host_memory.DELAY_SECONDS = NEVER
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.prepare:
        llamacpp_peer.prepare(options.model)
        return
    bench, figures = Bench(options), Figures()
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, one thread each")
    print_ceiling(bench.ours, bench.theirs, 1)
    for name in options.only:
        if bench.late:
            print(f"\n{name} is left out: no time", flush=True)
            continue
        figures |= PARTS[name](bench)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}")
    print(json.dumps({"benchmark": "real_model", "model": bench.model, "quick": bench.quick, **figures}))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="A real model beside its peers.")
    parser.add_argument("--quick", action="store_true", help="end within 50 s")
    parser.add_argument("--rounds", type=int, default=0, help="default: 5, or 1 with --quick; more take their time")
    parser.add_argument("--prepare", action="store_true", help="fetch llama.cpp, make its files, and measure nothing")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument(
        "--weights",
        choices=(F32, ROWS8, "int8", "int4"),
        default="",
        help="what is ours where no peer has anything else: f32, a8, int8 or int4; default: inferd's own",
    )
    parser.add_argument("--only", type=listed(one_of(PARTS)), default=list(PARTS), help="parts, separated by commas")
    return parser.parse_args()


# -- Comparing ----------------------------------------------------------------------------------------------------


def alternated(arms: Arms, rounds: int) -> dict[str, list[Run]]:
    """Return the runs of every arm, once a round, in turn from either end; the first round is warm-up."""
    runs: dict[str, list[Run]] = {name: [] for name in arms}
    for round_ in range(rounds + 1):
        for name in list(arms)[:: -1 if round_ % 2 else 1]:
            run = arms[name]()
            if round_:
                runs[name].append(run)
    return runs


def compare(what: str, arms: Arms, rounds: int, ours: Sequence[str]) -> dict[str, list[Run]]:
    """Run and print. ``ours``: the arms that have to bring the same tokens."""
    runs = alternated(arms, rounds)
    if ours:
        check_same(what, {name: runs[name] for name in ours})
    print(f"\n{what}, tokens per second of processor time")
    for name, each in runs.items():
        drafts = f"{each[0].accepted} of {each[0].drafted} drafts, {each[0].steps} steps" if each[0].steps else ""
        print(f"  {name:<18}{figure([run.processor_rate for run in each])}   {drafts}", flush=True)
    return runs


def gain(runs: Mapping[str, list[Run]], over: str, under: str) -> float:
    """The median of one arm's rate over another's, round by round; prints it with its range."""
    values = ratios([run.processor_rate for run in runs[over]], [run.processor_rate for run in runs[under]])
    print(f"  {over} / {under} {figure(values)}", flush=True)
    return round(statistics.median(values), 3)


def distinct(count: int, tokens: int) -> list[Prompt]:
    """Greedy continuations of texts that share no beginning."""
    return [replace(one, raw=f"{at + 1}. {one.raw}") for at, one in enumerate(openings(count, 0.0, tokens))]


# -- Parts --------------------------------------------------------------------------------------------------------


def single(bench: Bench) -> Figures:
    """One stream beside transformers."""
    prompts, ours = distinct(1, bench.extent(24, 12)), bench.ours_in(F32)
    ids = [ours.tokens(prompt) for prompt in prompts]
    arms = {
        "ours": partial(ours.run, prompts, 1, ours.none, cold=True),
        "transformers": partial(bench.theirs.run, ids, prompts[0].max_tokens, {}),
    }
    runs = compare("one stream", arms, bench.rounds, ["ours"])
    return {"single_vs_transformers": gain(runs, "ours", "transformers")}


def beside_llamacpp(bench: Bench, streams: int, tokens: int) -> float | None:
    """The least of our rates over llama.cpp's with weights of as many bits, None where it is not here."""
    if reason := llamacpp_peer.missing(bench.model):
        print(f"\nllama.cpp is left out: {reason}")
        return None
    prompts, gains = distinct(streams, tokens), []
    ids = [bench.ours.tokens(prompt) for prompt in prompts]
    for bits in llamacpp_peer.BITS:
        ours = bench.ours_in(bits)
        with contextlib.closing(llamacpp_peer.LlamaCppArm(bench.model, bits, streams)) as theirs:
            arms = {
                "ours": partial(ours.run, prompts, streams, ours.none, cold=True),
                "llama.cpp": partial(theirs.run, ids, tokens),
            }
            runs = compare(f"{streams} stream(s), {bits}, llama.cpp: {theirs.features}", arms, bench.rounds, ["ours"])
        gains.append(gain(runs, "ours", "llama.cpp"))
    return min(gains)


def single_llamacpp(bench: Bench) -> Figures:
    """One stream beside llama.cpp."""
    least = beside_llamacpp(bench, 1, bench.extent(24, 12))
    return {} if least is None else {"single_vs_llamacpp_same_bits": least}


def streams8(bench: Bench) -> Figures:
    """Eight streams beside llama.cpp's server."""
    least = beside_llamacpp(bench, 8, bench.extent(12, 4))
    return {} if least is None else {"streams8_vs_llamacpp": least}


def long_text(bench: Bench) -> Figures:
    """Reading a long text and going on with it, beside llama.cpp with weights of as many bits."""
    if reason := llamacpp_peer.missing(bench.model):
        print(f"\nllama.cpp is left out: {reason}")
        return {}
    (start,), ours = distinct(1, LONG_TOKENS), bench.ours_in("int8")
    pieces = [f"{at}. {start.raw}" for at in range(bench.extent(200, 50))]
    prompts = [replace(start, raw="\n".join(pieces))]
    ids = [ours.tokens(prompts[0])]
    room = len(ids[0]) + LONG_TOKENS + 1
    with contextlib.closing(llamacpp_peer.LlamaCppArm(bench.model, "int8", 1, room)) as theirs:
        arms = {
            "ours": partial(ours.run, prompts, 1, ours.none, cold=True),
            "llama.cpp": partial(theirs.run, ids, LONG_TOKENS),
        }
        runs = compare(f"{LONG_TOKENS} tokens behind {len(ids[0])}", arms, bench.rounds, ["ours"])
    return {"long_vs_llamacpp": gain(runs, "ours", "llama.cpp")}


def streams32(bench: Bench) -> Figures:
    """32 streams beside transformers' continuous batching."""
    tokens = bench.extent(12, 3)
    prompts, ours = distinct(32, tokens), bench.ours_in(F32)
    ids = [ours.tokens(prompt) for prompt in prompts]
    theirs = batched(bench.model, 32, max(map(len, ids)) + tokens)
    arms = {
        "ours": partial(ours.run, prompts, 32, ours.none, cold=True),
        "generate_batch": partial(theirs, ids, tokens),
    }
    runs = compare("32 streams", arms, bench.rounds, ["ours"])
    return {"streams32_vs_generate_batch": gain(runs, "ours", "generate_batch")}


def speculation(kind: str, bench: Bench) -> Figures:
    """What a request gets that asks for speculation, for a kind of text."""
    prompts = bench.prompts(kind)
    arms = {
        "off": partial(bench.ours.run, prompts, 1, bench.ours.none),
        "on": partial(bench.ours.run, prompts, 1, bench.ours.usual),
    }
    runs = compare(kind, arms, bench.rounds, ["off", "on"])
    return {f"{KINDS[kind]}_on_vs_off": gain(runs, "on", "off")}


def wrong(bench: Bench) -> Figures:
    """A drafter that is always wrong, by batch."""
    gains = []
    for batch, tokens in ((1, 64), (8, 32), (32, 12)):
        prompts = openings(batch, tokens=bench.extent(tokens, 4))
        drafts = bench.ours.recorded(bench.ours.run(prompts, batch, bench.ours.none).tokens, 1)
        arms = {
            "off": partial(bench.ours.run, prompts, batch, bench.ours.none),
            "wrong": partial(bench.ours.run, prompts, batch, drafts),
        }
        runs = compare(f"always wrong, batch {batch}", arms, bench.rounds, ["off", "wrong"])
        gains.append(gain(runs, "wrong", "off"))
    return {"wrong_min": min(gains)}


def lookup(bench: Bench) -> Figures:
    """A code edit beside prompt lookup."""
    prompts = bench.prompts("code")
    ids, most = [bench.ours.tokens(prompt) for prompt in prompts], prompts[0].max_tokens
    arms: dict[str, Callable[[], Run]] = {"ours": partial(bench.ours.run, prompts, 1, bench.ours.usual, cold=True)}
    for count in LOOKUPS[: bench.extent(2, 1)]:
        arms[f"lookup {count}"] = partial(bench.theirs.run, ids, most, {"prompt_lookup_num_tokens": count})
    runs = compare("code edit", arms, bench.rounds, ["ours"])
    return {"edit_vs_prompt_lookup": min(gain(runs, "ours", name) for name in runs if name != "ours")}


def structured(bench: Bench) -> Figures:
    """Nested records beside outlines."""
    prompts = bench.prompts("json")
    peer, decode = OutlinesArm(bench.model), bench.ours.served.tokenizer.decode
    texts = [peer.tokenizer.decode(bench.ours.tokens(prompt)) for prompt in prompts]
    arms = {
        "ours": partial(bench.ours.run, prompts, 1, bench.ours.usual, cold=True),
        "outlines": partial(peer.run, prompts, texts),
    }
    runs = compare("nested records", arms, bench.rounds, ["ours"])
    answers: dict[str, Outputs] = {name: runs[name][0].tokens for name in runs}
    ends = bench.ours.served.tokenizer.eos_tokens
    for name, each in answers.items():
        made = [decode([token for token in tokens if token not in ends]) for tokens in each]
        valid = sum(is_valid(text, prompt.schema) for text, prompt in zip(made, prompts, strict=True))
        print(f"  {name}: {valid} of {len(made)} answers are valid, {sum(map(len, each))} tokens")
    return {"json_vs_outlines": gain(runs, "ours", "outlines")}


def starts(bench: Bench) -> Figures:
    """A cold ``inferd run``, beside what torch, transformers and the weights alone take."""
    runs, bare = [], []
    for _ in range(bench.extent(ROUNDS, 1)):
        runs.append(processes.run_start(bench.model))
        bare.append(processes.bare_start(resolve(bench.model)))
    for name, each in (("inferd run", runs), ("torch, transformers, weights", bare)):
        wall, processor = ([getattr(one, field) for one in each] for field in ("wall", "processor"))
        print(f"\n{name}: {figure(wall)} s wall, {figure(processor)} s processor", flush=True)
    return {"run_start_s": processes.middle_wall(runs)}


def served(bench: Bench) -> Figures:
    """A server's start, and programs with speculators of their own in it."""
    ready = []
    for _ in range(bench.extent(ROUNDS, 1) - 1):
        with processes.timed_server(bench.model) as (_, _, took):
            ready.append(took)
    with processes.timed_server(bench.model) as (client, server, took):
        ready.append(took)
        walls, processor = ([getattr(one, field) for one in ready] for field in ("wall", "processor"))
        print(f"\nserve, until ready: {figure(walls)} s wall, {figure(processor)} s processor", flush=True)
        ends = sorted(bench.ours.served.tokenizer.eos_tokens)
        programs = processes.DraftingPrograms(client, server, ends, bench.extent(24, 12))
        arms = {"none": partial(programs.run, False), "own": partial(programs.run, True)}
        runs = compare("eight programs", arms, bench.rounds, [])
        gain(runs, "own", "none")
    walls = ratios([run.rate for run in runs["own"]], [run.rate for run in runs["none"]])
    print(f"  own / none, by wall-clock time {figure(walls)}")
    return {"custom_speculator_b8": round(statistics.median(walls), 3), "serve_ready_s": processes.middle_wall(ready)}


PARTS: dict[str, Callable[[Bench], Figures]] = {
    "single": single, **{kind: partial(speculation, kind) for kind in KINDS}, "lookup": lookup, "outlines": structured,
    "llamacpp": single_llamacpp, "streams8": streams8, "streams32": streams32, "long": long_text,
    "starts": starts, "served": served, "wrong": wrong,
}  # fmt: skip
"""The drafter that is always wrong comes last, because the engine remembers it."""


if __name__ == "__main__":
    main()
