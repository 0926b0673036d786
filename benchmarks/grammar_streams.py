"""What a schema costs a running stream: the embedded model in this process, with and without one."""

from __future__ import annotations

import json
import time

import torch
from measure import figure, interleaved, ratios

from inferd import protocol as p
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

ROUNDS = 7
BATCH = 32
# It has no short text, so that both arms generate as many tokens.
LONG = {
    "type": "array",
    "minItems": 500,
    "items": {
        "type": "object",
        "properties": {
            "identifier": {"type": "integer"},
            "description": {"type": "string", "maxLength": 40},
            "measurements": {"type": "array", "items": {"type": "number"}, "maxItems": 4},
            "confirmed": {"type": "boolean"},
        },
        "required": ["identifier", "description", "measurements", "confirmed"],
        "additionalProperties": False,
    },
}


class Streams:
    """Streams on one engine, greedy: sampling costs least then, and a mask the largest share."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._caller = DirectSession(serve_model(EngineSettings(threads=1)))

    def rate(self, count: int, tokens: int, *, schema: bool, speculation: bool = False) -> float:
        """Tokens per second of that many streams; their prompts are computed before."""
        contexts = [self._caller.text(f"{number}. A list of measurements in JSON: ") for number in range(count)]
        constraint = p.ConstraintSpec("json_schema", json.dumps(LONG)) if schema else None
        for context in contexts:
            self._caller.call(p.FlushContext(context))
        start = time.perf_counter()
        made = self._caller.together(contexts, max_tokens=tokens, constraint=constraint, system_speculation=speculation)
        seconds = time.perf_counter() - start
        for context in contexts:
            self._caller.call(p.ReleaseContext(context))
        if {len(tokens_) for tokens_ in made} != {tokens} and schema:
            raise SystemExit(f"a stream under a schema without a short text ended after {sorted(map(len, made))}")
        return sum(map(len, made)) / seconds


def stream_figures(quick: bool) -> dict[str, float]:
    """Tokens per second with a schema over without, and with forced drafts over without them."""
    streams, figures = Streams(), dict[str, float]()
    for count, tokens in ((1, 96 if quick else 192), (BATCH, 48 if quick else 96)):
        arms = {
            "without": lambda count=count, tokens=tokens: streams.rate(count, tokens, schema=False),
            "with": lambda count=count, tokens=tokens: streams.rate(count, tokens, schema=True),
            "drafts": lambda count=count, tokens=tokens: streams.rate(count, tokens, schema=True, speculation=True),
        }
        samples = interleaved(arms, ROUNDS)
        share = figure(ratios(samples["with"], samples["without"]))
        gain = figure(ratios(samples["drafts"], samples["with"]))
        print(
            f"\n{count} stream(s): without {figure(samples['without'])} tok/s, with a schema {figure(samples['with'])}"
        )
        print(f"  with over without {share}; forced and found drafts over none {gain}")
        figures |= {f"with_schema_vs_without_b{count}": round(share.median, 3)}
        figures |= {f"drafts_vs_none_b{count}": round(gain.median, 3)}
    return figures
