"""What looking up a draft costs, from 1k to 128k tokens of context and in a corpus of a million.

``python benchmarks/lookup.py``. The text: words as frequent as Zipf's law says, a third of it copied from before, so that all
lengths of matches occur. Every proposal is timed by itself; those that find nothing are quicker and left out.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from measure import Figure, figure, interleaved, percentile, read_bandwidth

from inferd_runtime.speculation.corpus import Corpora
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.ngram import NgramDrafter
from inferd_runtime.speculation.predicted import PredictedText

CONTEXTS = {"1k": 1_000, "8k": 8_000, "32k": 32_000, "128k": 131_072}
CORPUS = 1_000_000
VOCABULARY = 32_000
STEPS = 400
ROUNDS = 5
LIMIT = 16
TARGET_US, BUILD_TARGET_US = 10.0, 0.2


def sample_text(length: int, seed: int = 0) -> list[int]:
    """Zipf-Mandelbrot words in random order, with stretches of 4 to 60 copied from anywhere before."""
    rng = np.random.default_rng(seed)
    chances = 1 / (np.arange(VOCABULARY) + 2.7)
    words = rng.choice(VOCABULARY, length, p=chances / chances.sum())
    at = 100
    while at + 160 < length:
        size = int(rng.integers(4, 60))
        start = int(rng.integers(0, at - size)) if at > size else 0
        words[at : at + size] = words[start : start + size]
        at += size + int(rng.integers(8, 120))
    return [int(word) for word in words]


def timed(call: Callable[[], object]) -> float:
    """Microseconds."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


class Stepper:
    """One drafter through the steps of a generation, again and again from the same context."""

    def __init__(self, make: Callable[[], Drafter], output: Sequence[int]) -> None:
        self._make = make
        self._output = output
        self.proposing: list[float] = []
        self.observing: list[float] = []

    def run(self) -> float:
        """Median microseconds of the proposals that found something, over one pass through the output, token by token."""
        drafter, found = self._make(), []
        for token in self._output:
            start = time.perf_counter_ns()
            drafter.observe([token])
            between = time.perf_counter_ns()
            proposal = drafter.propose(LIMIT)
            self.observing.append((between - start) / 1e3)
            if proposal.tokens:
                found.append((time.perf_counter_ns() - between) / 1e3)
        self.proposing += found
        return statistics.median(found)


def steppers(contexts: Sequence[str]) -> dict[str, Stepper]:
    """The arms: an n-gram drafter at each length, a corpus of a million tokens, and predicted text under edits."""
    text = sample_text(CORPUS + STEPS)
    arms: dict[str, Stepper] = {}
    for name in contexts:
        length = CONTEXTS[name]
        ngram = NgramDrafter()
        ngram.observe(text[:length])
        arms[name] = Stepper(ngram.fork, text[length : length + STEPS])
    corpora = Corpora(capacity=CORPUS)
    corpora.of("").add(text[:CORPUS])
    arms["corpus_1m"] = Stepper(lambda: begun(corpora.drafter(""), text[:100]), text[CORPUS:])
    edited = [token for at, token in enumerate(text[: 2 * STEPS]) if at % 20 > 2][:STEPS]
    arms["predicted_32k"] = Stepper(lambda: begun(PredictedText(text[: CONTEXTS["32k"]]), [0]), edited)
    return arms


def begun(drafter: Drafter, prompt: Sequence[int]) -> Drafter:
    """The drafter behind a prompt."""
    drafter.begin(prompt)
    return drafter


def measure_lookup(contexts: Sequence[str] = tuple(CONTEXTS), rounds: int = ROUNDS) -> dict[str, Figure]:
    """Microseconds per proposal that finds something, by arm; ``append`` per observed token at 128k, ``build`` per indexed
    token, and ``prompt_stall``, how long observing a prompt of 128k tokens holds up the engine's thread.
    """
    arms = steppers(contexts)
    samples = interleaved({name: arm.run for name, arm in arms.items()}, rounds)
    figures = {name: figure(values) for name, values in samples.items()}
    last = arms[contexts[-1]]
    figures["append"] = figure([statistics.median(last.observing[at::rounds]) for at in range(rounds)])
    figures["p99"] = figure([percentile(last.proposing[at::rounds], 0.99) for at in range(rounds)])
    prompt = sample_text(CONTEXTS["128k"])
    figures["build"] = figure([build_time(prompt) / len(prompt) for _ in range(rounds)])
    figures["prompt_stall"] = figure([prompt_stall(prompt) for _ in range(rounds)])
    return figures


def build_time(prompt: Sequence[int]) -> float:
    """Microseconds of the processor to index a prompt; nobody waits for them, so the clock of others does not count."""
    start = time.thread_time_ns()
    NgramDrafter().observe(prompt)
    return (time.thread_time_ns() - start) / 1e3


def prompt_stall(prompt: Sequence[int]) -> float:
    """Microseconds until the engine's thread goes on, while another thread builds."""
    with ThreadPoolExecutor(1) as builder:
        drafter = NgramDrafter(builder=builder)
        stall = timed(lambda: drafter.observe(prompt))
        drafter.wait_until_indexed()
    return stall


def keys(figures: dict[str, Figure]) -> dict[str, float]:
    """The medians under the names of the JSON line."""
    names = {name: f"lookup_us_{name}" for name in (*CONTEXTS, "corpus_1m", "predicted_32k")}
    names |= {"append": "append_us", "build": "build_us_per_token", "prompt_stall": "prompt_stall_us"}
    return {names[name]: round(value.median, 3) for name, value in figures.items() if name in names}


def main() -> None:
    """Print the ceiling, the figures, and one line of JSON."""
    scan = 4 * CONTEXTS["128k"] / read_bandwidth() * 1e6
    table = {(1, 2): 3}
    read = statistics.median(timed(lambda: table.get((1, 2))) for _ in range(2000))
    print(f"ceiling: one read of a dictionary in a Python call {read:.2f} us; reading 128k tokens once {scan:.0f} us")
    figures = measure_lookup()
    for name, value in figures.items():
        print(f"{name:>14} {value} us")
    worst = max(figures[name].median for name in CONTEXTS)
    print(f"slowest lookup {worst / TARGET_US:.2f} of the {TARGET_US:.0f} us allowed; ", end="")
    print(f"build {figures['build'].median / BUILD_TARGET_US:.2f} of {BUILD_TARGET_US} us per token")
    print(json.dumps(keys(figures)))


if __name__ == "__main__":
    main()
