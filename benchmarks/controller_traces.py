"""What drafts of the embedded model would have come to: for every place in a text, the match and how many tokens held.

The text is the model's own output (greedy; prose is sampled, because a small model's greedy prose only repeats itself), which no
draft can change, so one run tells what every policy would meet: at each place the n-gram source proposes 16 tokens, of
which those that the output goes on with would have been accepted.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prompts import Prompt, prompts

ROOT = Path(__file__).resolve().parents[1]
TRACES = ROOT / "docs" / "data" / "speculation_traces.json"
REAL_MODEL = "smollm2-135m"
REAL_TRACES = TRACES.with_name("speculation_traces_smollm2.json")
LENGTH = 16
HELD_OUT = {"copy": "copy", "json": "extract", "code": "edit", "prose": "prose"}
EACH = 15
MOST_TOKENS = 240
REAL_EACH, REAL_TOKENS = 10, 100


class Place(NamedTuple):
    """One place in an output: the source's ``match`` (0: it had nothing to say) and how many of its tokens held."""

    match: int
    held: int


Trace = Sequence[Place]


def load(path: Path = TRACES) -> dict[str, list[Trace]]:
    """The recorded traces by workload, one per request, and ``adversarial``: the drafts of ``copy``, none of which ever holds."""
    recorded = json.loads(path.read_text())
    traces: dict[str, list[Trace]] = {
        kind: [[Place(match, held) for match, held in one] for one in some] for kind, some in recorded.items()
    }
    traces["adversarial"] = [[Place(place.match, 0) for place in one] for one in traces["copy"]]
    return traces


def record() -> None:
    """Run the embedded model over the benchmarks' prompts and held-out ones of their kinds, and write what was seen."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from inferd_runtime.models.store.pull import resolve

    tokenizer: Any = AutoTokenizer.from_pretrained(resolve("tiny"))
    model: Any = AutoModelForCausalLM.from_pretrained(resolve("tiny")).eval()
    torch.manual_seed(7)
    traces = {
        kind: [_run(model, tokenizer, text, kind) for text in [_shared(tokenizer, kind), *_held_out(kind)]]
        for kind in HELD_OUT
    }
    _write(TRACES, traces)


def record_real() -> None:
    """The same with a real model, greedy, over the kinds of ``real_model_prompts.py`` and over texts that nobody tuned for."""
    import torch
    from generation_arms import EngineArm

    torch.set_num_threads(1)
    arm = EngineArm(REAL_MODEL, 1)
    _write(REAL_TRACES, {kind: [_luck(arm, prompt) for prompt in some] for kind, some in _real_prompts().items()})


def _real_prompts() -> dict[str, list[Prompt]]:
    from real_model_prompts import SYSTEM, of_kind

    sys.path.insert(0, str(ROOT / "scripts"))
    import tiny_data as data

    asked = {
        "copy (held out)": "Repeat this text word for word:",
        "edit (held out)": "Write this text again, but replace every name by Anna:",
        "summary (held out)": "Summarize this text in two sentences:",
    }
    texts = [document.text[:400] for document in data.held_out("prose", REAL_EACH, 707, data.load_corpus())]
    known = {kind: of_kind(kind) for kind in ("copy", "json", "code", "prose")}
    return known | {
        kind: [Prompt(kind, SYSTEM, f"{words}\n\n{text}", max_tokens=REAL_TOKENS) for text in texts]
        for kind, words in asked.items()
    }


def _luck(arm: Any, prompt: Prompt) -> list[Place]:
    output, _, _ = arm.run(prompt, speculation=False, grammar=bool(prompt.schema))
    return places(arm.tokens(prompt), output)


def _write(path: Path, traces: Mapping[str, Sequence[Trace]]) -> None:
    lines = [f'"{kind}": [\n' + ",\n".join(json.dumps(one) for one in some) + "\n]" for kind, some in traces.items()]
    path.write_text("{\n" + ",\n".join(lines).replace(", ", ",") + "\n}\n")


def _shared(tokenizer: Any, kind: str) -> str:
    prompt: Prompt = next(prompt for prompt in prompts() if prompt.kind == kind)
    if prompt.raw:
        return prompt.raw
    messages = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.user}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _held_out(kind: str) -> list[str]:
    """Prompts that the model was not trained on: a conversation's first turn, or the first half of a text."""
    sys.path.insert(0, str(ROOT / "scripts"))
    import tiny_data as data

    texts = [document.text for document in data.held_out(HELD_OUT[kind], EACH, 707, data.load_corpus())]
    opening = f"{data.IM_START}assistant\n"
    return [text[: text.index(opening) + len(opening)] if opening in text else text[: len(text) // 2] for text in texts]


def _run(model: Any, tokenizer: Any, text: str, kind: str) -> list[Place]:
    ids = tokenizer(text, return_tensors="pt")
    count = ids["input_ids"].shape[1]
    tokens = model.generate(**ids, max_new_tokens=MOST_TOKENS, do_sample=kind == "prose", top_k=0)[0].tolist()
    return places(tokens[:count], tokens[count:])


def places(prompt: Sequence[int], output: Sequence[int]) -> list[Place]:
    """The n-gram source's luck at every place of an output."""
    from inferd_runtime.speculation.bridge import common_prefix
    from inferd_runtime.speculation.ngram import NgramDrafter

    drafter = NgramDrafter(LENGTH, tree=False)
    drafter.observe(prompt)
    found = []
    for at, token in enumerate(output):
        proposal = drafter.propose(LENGTH)
        found.append(Place(proposal.match if proposal.tokens else 0, common_prefix(proposal.tokens, output[at:])))
        drafter.observe([token])
    return found


def synthetic(seed: int, requests: int = 12) -> list[Trace]:
    """Requests of 100 to 400 tokens that wander between a few random kinds of text: how often there is a draft, how long its
    matches are, and how likely its first token and the later ones hold.
    """
    rng = random.Random(seed)
    kinds = [(rng.random(), rng.choice((2, 3, 4, 6, 9, 14)), rng.random(), rng.uniform(0.3, 0.99)) for _ in range(4)]
    return [_wander(rng, kinds, rng.randint(100, 400)) for _ in range(requests)]


def _wander(rng: random.Random, kinds: Sequence[tuple[float, int, float, float]], length: int) -> Trace:
    trace: list[Place] = []
    share, match, first, later = rng.choice(kinds)
    while len(trace) < length:
        if rng.random() < 0.02:
            share, match, first, later = rng.choice(kinds)
        if rng.random() >= share:
            trace.append(Place(0, 0))
            continue
        held = 0
        while held < LENGTH and rng.random() < (later if held else first):
            held += 1
        trace.append(Place(match, held))
    return trace
