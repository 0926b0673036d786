"""Twenty extractions on a real model: is every answer valid JSON of its schema, and how fast beside outlines on the same weights.

    python benchmarks/extraction.py [--model smollm2-135m] [--arms inferd,outlines] [--max-tokens 160] [--only NAME]

Each case of `extraction_cases.py` is asked greedily and at temperature 0.8, through a session as `collect_json` asks. The arm
``outlines`` is outlines over transformers in this process, with the same weights and prompts. One thread; times are processor
seconds, a constraint's compilation included. Prints a Markdown table, and one JSON object last.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import torch
from extraction_cases import CASES, ExtractionCase
from named_options import listed, one_of

from inferd import protocol as p
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.server.engine_process.serving import serve_model
from inferd_runtime.settings.settings import EngineSettings
from inferd_runtime.testing.direct import DirectSession

SYSTEM = "Extract the data from the text as JSON."
SEED = 7


class Answer(NamedTuple):
    """One answer: its text, whether it is valid, tokens, and processor seconds."""

    text: str
    problem: str
    tokens: int
    seconds: float


class Ours:
    """A session over the engine in this process."""

    name = "inferd"

    def __init__(self, model: str, *, speculation: bool) -> None:
        self._session = DirectSession(serve_model(EngineSettings(model=(ModelOptions(model),), threads=1)))
        self._speculation = speculation

    def prompt(self, case: ExtractionCase) -> list[int]:
        """Return the prompt's tokens, for the peer."""
        return self._session.tokens(self._session.chat(SYSTEM, case.text))

    def answer(self, case: ExtractionCase, temperature: float, max_tokens: int) -> tuple[str, int]:
        """Return the text and how many tokens it has."""
        context = self._session.chat(SYSTEM, case.text)
        done = self._session.generate(
            context, max_tokens=max_tokens, on_length="complete", system_speculation=self._speculation,
            constraint=p.ConstraintSpec("json_schema", json.dumps(case.schema)),
            sampling=p.Sampling(temperature, seed=SEED if temperature else None),
        )  # fmt: skip
        return done.text, len(done.tokens)


class Outlines:
    """outlines over transformers, with the stored model's own files."""

    name = "outlines"

    def __init__(self, model: str, prompt: Callable[[ExtractionCase], list[int]]) -> None:
        import outlines
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = str(_folder(model))
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._model = outlines.from_transformers(weights, self._tokenizer)
        self._outlines = outlines
        self._prompt = prompt

    def answer(self, case: ExtractionCase, temperature: float, max_tokens: int) -> tuple[str, int]:
        """Return the text and how many tokens it has."""
        text = self._tokenizer.decode(self._prompt(case))
        output = self._outlines.types.JsonSchema(json.dumps(case.schema))
        torch.manual_seed(SEED)
        sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        answer = self._model(text, output, max_new_tokens=max_tokens, **sampling)
        return answer, len(self._tokenizer(answer).input_ids)


def _folder(model: str) -> Path:
    found = ModelStore().find(model)
    if found is None:
        raise SystemExit(f"{model} is not here: inferd pull {model}")
    return found.folder


def asked(arm: Ours | Outlines, case: ExtractionCase, temperature: float, max_tokens: int) -> Answer:
    """Return one answer with what is wrong with it."""
    start = time.process_time()
    try:
        text, tokens = arm.answer(case, temperature, max_tokens)
    except (TypeError, ValueError, RuntimeError) as error:  # the peer does not take every schema
        return Answer("", f"{type(error).__name__}: {error}"[:80], 0, time.process_time() - start)
    seconds = time.process_time() - start
    try:
        jsonschema.Draft202012Validator(case.schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return Answer(text, str(error).split("\n")[0][:80], tokens, seconds)
    return Answer(text, "", tokens, seconds)


def main() -> None:
    """Ask every case of every arm, and print."""
    parser = argparse.ArgumentParser(description="Twenty extractions on a real model.")
    names = [case.name for case in CASES]
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--only", type=listed(one_of(names)), default=names, help="cases, separated by commas")
    arms_type = listed(one_of(("inferd", "outlines")))
    parser.add_argument("--arms", type=arms_type, default="inferd", help="inferd, outlines, or both with a comma")
    parser.add_argument("--temperatures", type=listed(float), default="0.0,0.8")
    parser.add_argument("--speculation", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ours = Ours(options.model, speculation=options.speculation)
    arms = [ours if name == "inferd" else Outlines(options.model, ours.prompt) for name in options.arms]
    rows: dict[str, list[Answer]] = {}
    for case in (case for case in CASES if case.name in options.only):
        for temperature in options.temperatures:
            for arm in arms:
                answer = asked(arm, case, temperature, options.max_tokens)
                rows.setdefault(f"{arm.name} {temperature}", []).append(answer)
                line = (case.name, temperature, arm.name, answer.tokens, f"{answer.seconds:.2f}")
                print(
                    f"| {' | '.join(map(str, line))} | {answer.problem or 'valid'} |\n    {answer.text[:300]}",
                    flush=True,
                )
    sums = {name: figures(found) for name, found in rows.items()}
    print(json.dumps({"benchmark": "extraction", "model": options.model, **sums}))


def figures(answers: list[Answer]) -> dict[str, Any]:
    """Return the sums of one arm."""
    tokens, seconds = sum(answer.tokens for answer in answers), sum(answer.seconds for answer in answers)
    valid = sum(not answer.problem for answer in answers)
    return {
        "valid": valid,
        "of": len(answers),
        "tokens": tokens,
        "cpu_s": round(seconds, 1),
        "tokens_per_cpu_s": round(tokens / seconds, 1),
    }


if __name__ == "__main__":
    main()
