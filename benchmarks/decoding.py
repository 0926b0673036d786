"""What it costs that a program chooses each token: the same generation with the runtime's sampler and with its own.

    python benchmarks/decoding.py [--quick] [--model smollm2-135m]

One program in the real sandbox runs all arms in turn, so that a slow spell of the machine hits all of them. Prints medians with
their range, and one JSON line last. The floor of each arm is argmax with the same number of streams: the same rows of the same
model, without a round trip per token.

ARM_N_ms       milliseconds per token of each of N streams that one program runs at the same time
own_N_ratio    a function that takes the best of 64 candidates over argmax, round by round
mask_*         a pass over as many tokens as fit up to 6,000, with a window of 512 as spans: its seconds, and what the program's
               memory came to at most
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics

import torch
from measure import figure, ratios
from sandbox_runtime import Place, open_place

from inferd_runtime.models.options import ModelOptions
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.settings.settings import EngineSettings

DECODE = """
import asyncio, time
from inferd import Context, CustomSampler, Entropy, Sampler
from inferd.samplers import Dry, Guided, Mirostat, Typical, Xtc, chain

PROMPT = "The three largest rivers of Europe are"


def best(candidates) -> int:
    return candidates.tokens[0]


def arms() -> dict:
    return {
        "argmax": Sampler.argmax(),
        "own": best,
        "own_k1024": CustomSampler.of(best, k=1024),
        "own_all": CustomSampler.of(best, k=0),
        "typical": chain(Typical(0.9), seed=1),
        "dry_xtc": chain(Dry(), Xtc(), seed=1),
        "mirostat": chain(Mirostat(4.0), seed=1),
        "guided": chain(Guided(Context().append("Rivers:"), 1.5), temperature=0),
        "probed": Sampler.argmax(),
    }


async def stream(name: str, at: int, tokens: int) -> int:
    probes = [Entropy()] if name == "probed" else []
    async with Context().append(f"{at}: {PROMPT}") as context:
        await context.flush()
        generator = context.generate(arms()[name], max_tokens=tokens, ignore_eos=True, probes=probes)
        return len(await generator.collect_tokens())


async def main(rounds: int, tokens: int, streams: list[int]) -> dict[str, list[float]]:
    told: dict[str, list[float]] = {}
    for turn in range(rounds + 1):
        for count in streams:
            for name in arms():
                began = time.perf_counter()
                made = await asyncio.gather(*(stream(name, at, tokens) for at in range(count)))
                if turn:
                    told.setdefault(f"{name}_{count}_ms", []).append(1e3 * (time.perf_counter() - began) / max(made))
    return told
"""
MASK = """
from inferd import AttentionMask, Context, Model


async def main() -> int:
    count = min(6000, (await Model.load()).max_context)
    mask = AttentionMask.window(512, sink=4).hide(100, 200)
    return (await Context().forward([5 + at % 200 for at in range(count)], attention_mask=mask)).length
"""


async def measured(options: argparse.Namespace) -> dict[str, float]:
    """Run both programs, print the figures, and return them."""
    engine = EngineSettings(threads=1)
    if options.model != "embedded":
        engine = EngineSettings(threads=1, model=(ModelOptions(options.model),))
    async with open_place(engine) as place:
        rounds, tokens, streams = (3, 8, [1, 8]) if options.quick else (7, 24, [1, 8])
        samples = await result(place, DECODE, rounds=rounds, tokens=tokens, streams=streams)
        figures = {name: statistics.median(times) for name, times in samples.items()}
        for count in streams:
            samples[f"own_{count}_ratio"] = ratios(samples[f"own_{count}_ms"], samples[f"argmax_{count}_ms"])
            figures[f"own_{count}_ratio"] = statistics.median(samples[f"own_{count}_ratio"])
        for name, times in samples.items():
            print(f"{name:20} {figure(times)}")
        return figures | await masked(place)


async def masked(place: Place) -> dict[str, float]:
    """Run the pass with the large mask once."""
    run = place.launch(await place.upload("masked", MASK))
    ending = await run.wait()
    assert ending.error is None, ending.error
    usage = ending.usage
    found = {"mask_tokens": run.result, "mask_s": usage.wall_ms / 1e3, "mask_program_mb": usage.peak_memory_mb}
    print(*(f"{name}: {value:.1f}" for name, value in found.items()), sep="\n")
    return found


async def result(place: Place, source: str, **arguments: object) -> dict[str, list[float]]:
    """Run a program to its end and return what it returns."""
    run = place.launch(await place.upload("decoding", source), **arguments)
    ending = await run.wait()
    assert ending.error is None, ending.error
    value: dict[str, list[float]] = run.result
    return value


def main() -> None:
    """Run all and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and tokens")
    parser.add_argument("--model", default="embedded", help="a served model's name")
    torch.set_num_threads(1)
    ensure_runner()
    print(json.dumps({"benchmark": "decoding", **asyncio.run(measured(parser.parse_args()))}))


if __name__ == "__main__":
    main()
