"""The JSON Schema organisation's test suite through the masks: what passes, keyword by keyword.

A test passes if the compact text of its instance is accepted exactly when it is valid, in the order of keys in which it
stands there. Tests of refused schemas do not pass.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferd_grammar.compiler import GrammarCompiler
from inferd_grammar.constraints import JsonSchemaGrammar
from inferd_grammar.errors import DeadEnd, GrammarError
from inferd_grammar.tokens import TokenTable

COLUMNS = ("pass", "false accept", "false reject", "refused")


def run_suite(folder: Path) -> dict[str, Counter[str]]:
    """Return the outcomes of the tests in each file of one draft's folder, by keyword (the file's name)."""
    compiler = GrammarCompiler(TokenTable.of_bytes())
    result = {}
    for file in sorted(folder.glob("*.json")):
        groups = json.loads(file.read_text(encoding="utf-8"))
        result[file.stem] = Counter[str]()
        for group in groups:
            result[file.stem].update(_outcomes(compiler, group))
    return result


def totals(outcomes: Mapping[str, Counter[str]]) -> Counter[str]:
    """Return the outcomes over all keywords."""
    return sum(outcomes.values(), Counter[str]())


def table(outcomes: Mapping[str, Counter[str]]) -> str:
    """Return the outcomes as a Markdown table, totals last."""
    lines = [f"| keyword | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    rows = [*outcomes.items(), ("**all**", totals(outcomes))]
    return "\n".join([*lines, *(_row(name, counts) for name, counts in rows)])


def _row(name: str, counts: Counter[str]) -> str:
    return f"| {name} | {' | '.join(str(counts[column]) for column in COLUMNS)} |"


def _outcomes(compiler: GrammarCompiler, group: dict[str, Any]) -> Counter[str]:
    tests = group["tests"]
    try:
        compiled = compiler.compile(JsonSchemaGrammar(group["schema"]))
    except GrammarError:
        return Counter({"refused": len(tests)})
    seen: Counter[str] = Counter()
    for test in tests:
        text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False).encode()
        matcher = compiled.matcher()
        try:
            accepted = matcher.accept([byte + 1 for byte in text]) == len(text) and matcher.may_end()
        except DeadEnd:
            accepted = False  # all names that an object may have are used up
        seen["pass" if accepted == test["valid"] else "false accept" if accepted else "false reject"] += 1
    return seen
