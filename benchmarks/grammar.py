"""The grammar's figures: against llguidance alone, masks and rollback in microseconds, and what a schema costs a stream.

    python benchmarks/grammar.py [--quick]

Prints the ceiling first (llguidance without anything of ours around it) and one JSON line last. Both arms take the same
tokens of the same texts from copies of equally warm templates, interleaved; every ratio is the median of at least five
rounds with its range. A fill is what a library call, its error check and the settling of EOS and special tokens take;
llguidance alone is the one call that writes the mask by pointer, without a check. Texts are JSON in schema order; with
``../shared/conformance`` present, schemas of the MaskBench sample are measured, too. ``--quick`` takes fewer of them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import llguidance
import numpy as np
from grammar_data import Case, made_cases, sampled_cases, table_of, tokenizer
from grammar_streams import stream_figures
from measure import Figure, figure, interleaved, percentile, ratios
from tokenizers import Tokenizer

from inferd_grammar import Compiled, GrammarCompiler, GrammarError, GrammarMatcher, JsonSchemaGrammar, TokenTable

ROUNDS = 7
TEXT_TOKENS = 400
ROLLBACKS = 4000


@dataclass(frozen=True)
class Subject:
    """A compiled schema with its texts as tokens, and llguidance's own matcher of the same grammar."""

    name: str
    compiled: Compiled
    bare: llguidance.LLMatcher
    texts: list[list[int]]


@dataclass
class Times:
    """Seconds of single calls."""

    fills: list[float] = field(default_factory=list)
    accepts: list[float] = field(default_factory=list)


def main() -> None:
    """Run everything and print."""
    parser = argparse.ArgumentParser(description="Figures of the grammar.")
    parser.add_argument("--quick", action="store_true", help="end within 50 s")
    quick = parser.parse_args().quick
    made = tokenizer()
    table = table_of(made)
    compiler = GrammarCompiler(table)
    library = llguidance.LLTokenizer(table.source, n_vocab=table.vocab_size, eos_token=list(table.eos_ids))
    cases = made_cases(4) + sampled_cases(30 if quick else 150)
    subjects = [subject for case in cases if (subject := prepare(case, compiler, library, made)) is not None]
    tokens = sum(len(text) for subject in subjects for text in subject.texts)
    print(f"{len(subjects)} schemas, {tokens} tokens, vocabulary {table.vocab_size}")
    figures = calls(subjects, table) | rollbacks(subjects)
    figures |= stream_figures(quick)
    print(json.dumps({"benchmark": "grammar", "quick": quick, **figures}))


def prepare(case: Case, compiler: GrammarCompiler, library: llguidance.LLTokenizer, made: Tokenizer) -> Subject | None:
    """Compile a case and warm both templates with its last text; None where no text of it is taken."""
    try:
        compiled = compiler.compile(JsonSchemaGrammar(case.schema))
    except GrammarError:
        return None
    texts = [made.encode(text).ids[:TEXT_TOKENS] for text in case.texts]
    texts = [ids for ids in texts if compiled.matcher().accept(ids) == len(ids)]
    if not texts:
        return None
    bare = llguidance.LLMatcher(
        library, grammar_of(compiled.recipe), log_level=0, limits=llguidance.LLParserLimits(max_items_in_row=20_000)
    )
    warm = compiled.matcher()
    row = np.empty(compiler.table.words, np.int32)
    for token in texts[-1]:
        warm.fill(row)
        warm.accept([token])
        bare.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        bare.try_consume_tokens([token])
    bare.rollback(len(texts[-1]))
    compiled.learn(warm)
    return Subject(case.name, compiled, bare, texts)


def grammar_of(recipe: str | None) -> str:
    """Return the library's part of what a constraint was compiled to."""
    assert recipe is not None
    parts = json.loads(recipe)
    return grammar_of(parts["inner"]) if isinstance(parts, dict) else str(parts[0])


def calls(subjects: list[Subject], table: TokenTable) -> dict[str, float]:
    """Fills and accepts of both arms, round by round."""
    row = np.empty(table.words, np.int32)
    arms = {"llguidance": _Arm(lambda subject: _bare(subject, row)), "ours": _Arm(lambda subject: _ours(subject, row))}
    interleaved({name: (lambda arm=arm: arm.round(subjects)) for name, arm in arms.items()}, ROUNDS)  # type: ignore[misc]
    ceiling, ours = arms["llguidance"].rounds[1:], arms["ours"].rounds[1:]
    show("llguidance alone (the ceiling)", ceiling)
    show("ours", ours)
    figures: dict[str, float] = {}
    for kind in ("fills", "accepts"):
        ratio = figure(ratios([sum(getattr(r, kind)) for r in ceiling], [sum(getattr(r, kind)) for r in ours]))
        print(f"{kind}: speed against llguidance alone {ratio}")
        figures[f"{kind[:-1]}_vs_llguidance"] = round(ratio.median, 3)
    for share in (50, 90, 99):
        own = micros(ours, "fills", share / 100)
        figures[f"mask_p{share}_us_32k"] = round(own.median, 1)
    return figures


class _Arm:
    """One way of walking all texts; ``rounds`` keeps the times of each round."""

    def __init__(self, walk: Callable[[Subject], Times]) -> None:
        self._walk = walk
        self.rounds: list[Times] = []

    def round(self, subjects: list[Subject]) -> float:
        times = Times()
        for subject in subjects:
            walked = self._walk(subject)
            times.fills += walked.fills
            times.accepts += walked.accepts
        self.rounds.append(times)
        return sum(times.fills)


def _ours(subject: Subject, row: Any) -> Times:
    times = Times()
    for text in subject.texts:
        matcher = subject.compiled.matcher()
        fill, accept = matcher.fill, matcher.accept
        fill(row)  # the first mask comes with the template
        accept(text[:1])
        for token in text[1:]:
            start = time.perf_counter()
            fill(row)
            filled = time.perf_counter()
            accept([token])
            times.accepts.append(time.perf_counter() - filled)
            times.fills.append(filled - start)
    return times


def _bare(subject: Subject, row: Any) -> Times:
    times, address, size = Times(), row.ctypes.data, row.nbytes
    for text in subject.texts:
        matcher = subject.bare.deep_copy()
        fill, accept = matcher.unsafe_compute_mask_ptr, matcher.try_consume_tokens
        fill(address, size)
        accept(text[:1])
        for token in text[1:]:
            start = time.perf_counter()
            fill(address, size)
            filled = time.perf_counter()
            accept([token])
            times.accepts.append(time.perf_counter() - filled)
            times.fills.append(filled - start)
    return times


def micros(rounds: list[Times], kind: str, share: float) -> Figure:
    """A percentile of the calls, in microseconds, over the rounds."""
    return figure([percentile(getattr(times, kind), share) * 1e6 for times in rounds])


def show(name: str, rounds: list[Times]) -> None:
    """Print one arm's percentiles."""
    print(f"\n{name}, us: median of the rounds [lowest .. highest]")
    for kind in ("fills", "accepts"):
        print("  " + kind + "".join(f"  p{int(s * 100)} {micros(rounds, kind, s)}" for s in (0.5, 0.9, 0.99)))


def rollbacks(subjects: list[Subject]) -> dict[str, float]:
    """Undoing four tokens, anywhere in the texts."""
    rounds = []
    for number in range(ROUNDS):
        rng, taken = random.Random(number), list[float]()
        while len(taken) < ROLLBACKS // ROUNDS:
            subject = rng.choice(subjects)
            taken += _undo(subject.compiled.matcher(), rng.choice(subject.texts))
        rounds.append(percentile(taken, 0.99) * 1e6)
    print(f"\nrollback(4), us, p99: {figure(rounds)}")
    return {"rollback4_p99_us": round(figure(rounds).median, 2)}


def _undo(matcher: GrammarMatcher, text: list[int]) -> list[float]:
    times = []
    for at in range(0, len(text) - 4, 4):
        matcher.accept(text[at : at + 4])
        start = time.perf_counter()
        matcher.rollback(4)
        times.append(time.perf_counter() - start)
        matcher.accept(text[at : at + 4])
    return times


if __name__ == "__main__":
    main()
