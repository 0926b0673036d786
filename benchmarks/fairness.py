"""One stream beside fifty: how much slower it gets when they are another tenant's, and when they are its own tenant's.

``python benchmarks/fairness.py``. The ceiling is the fair share: two tenants, half of the machine each, twice the time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from measure import figure

from inferd.protocol import Sampling
from inferd_runtime.engine.engine import Engine
from inferd_runtime.engine.jobs.generation import Generation, GenerationSpec
from inferd_runtime.engine.jobs.text import TextAssembler
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings

CROWD = 50
TOKENS = 100
ROUNDS = 5


class Bench:
    """The embedded model with streams of random prompts."""

    def __init__(self) -> None:
        model = serve_model(EngineSettings())
        self.engine: Engine = model.engine
        self._vocab = model.info.vocab_size
        self._tokenizer = model.tokenizer
        self._made = 0

    def start(self, tenant: str, tokens: int) -> Generation:
        """A greedy generation behind a prompt of its own."""
        self._made += 1
        context = self.engine.create_context(tenant)
        context.append([(self._made * 7 + at) % self._vocab for at in range(20)])
        spec = GenerationSpec(RowSampler.resolve(Sampling(), seed=0, lineage=0), tokens, ())
        generation = Generation(context, spec, TextAssembler(self._tokenizer.stream(), ()))
        self.engine.submit(generation)
        return generation

    def lone_stream(self, crowd: Sequence[Generation]) -> float:
        """Seconds that one stream of tenant "one" takes beside the crowd."""
        stream = self.start("one", TOKENS)
        start = time.perf_counter()
        while not stream.finished():
            self.engine.step()
            for generation in (stream, *crowd):
                generation.take()
        seconds = time.perf_counter() - start
        release([stream])
        return seconds

    def beside(self, tenant: str) -> float:
        """The same beside a crowd of that tenant."""
        crowd = [self.start(tenant, 4 * TOKENS) for _ in range(CROWD)]
        while any(generation.context.pending > 1 for generation in crowd):
            self.engine.step()
        seconds = self.lone_stream(crowd)
        release(crowd)
        return seconds


def release(generations: Sequence[Generation]) -> None:
    """Close them and give their pages back."""
    for generation in generations:
        generation.close()
        generation.context.release()


def main() -> None:
    """Rounds of the three in turn; ratios within a round."""
    bench = Bench()
    bench.lone_stream([])
    print("ceiling: two tenants share the machine, so 2.0 times as long as alone is fair; the aim is at most 4.0")
    others, own = [], []
    for _ in range(ROUNDS):
        alone = bench.lone_stream([])
        others.append(bench.beside("many") / alone)
        own.append(bench.beside("one") / alone)
    figures = {"beside_50_of_another_tenant": figure(others), "beside_50_of_its_own": figure(own)}
    for name, value in figures.items():
        print(f"{name.replace('_', ' ')}: {value} times as long as alone")
    print(json.dumps({"benchmark": "fairness", **{name: round(f.median, 2) for name, f in figures.items()}}))


if __name__ == "__main__":
    main()
