"""The JSON Schema organisation's suite as a ratchet: what passes must not shrink, and nothing invalid may pass.

Refused schemas count as not passed. The one false accept of draft 7 is a reference with a sibling `$id`, which that
draft ignores and the library does not. The false rejects are deliberate: formats enforced, `1.0` no integer, key order.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inferd_grammar import GrammarCompiler, GrammarError, JsonSchema, TokenTable

SUITE = Path(__file__).parents[4] / "shared" / "conformance" / "json-schema-test-suite"


@pytest.mark.parametrize(
    ("draft", "passed", "false_accepts"), [("draft2020-12", 583, 0), ("draft7", 536, 1)], ids=["2020-12", "7"]
)
def test_required_tests(plain: GrammarCompiler, draft: str, passed: int, false_accepts: int) -> None:
    if not (SUITE / draft).exists():
        pytest.skip(f"no JSON-Schema-Test-Suite at {SUITE}")
    seen: Counter[str] = Counter()
    for file in sorted((SUITE / draft).glob("*.json")):
        for group in json.loads(file.read_text(encoding="utf-8")):
            run_group(plain, group, seen)
    assert seen["pass"] >= passed
    assert seen["false accept"] <= false_accepts


@pytest.fixture(scope="module")
def plain() -> GrammarCompiler:
    """Every byte is a token and nothing else: any text has one encoding."""
    alphabet = "".join(chr(n) for n in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)))
    vocabulary = {"<eos>": 0, **{char: n for n, char in enumerate(alphabet, 1)}}
    data = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "added_tokens": [
            {"id": 0, "content": "<eos>", "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        ],
    }
    return GrammarCompiler(TokenTable.from_tokenizer_json(json.dumps(data), eos_ids=[0]))


def run_group(compiler: GrammarCompiler, group: dict[str, Any], seen: Counter[str]) -> None:
    try:
        grammar = compiler.compile(JsonSchema(group["schema"]))
    except GrammarError:
        return
    ids = {token: i for i, token in enumerate(compiler.table.tokens)}
    for test in group["tests"]:
        text = json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False).encode()
        matcher = grammar.matcher()
        accepted = matcher.accept([ids[bytes([byte])] for byte in text]) == len(text) and matcher.may_end()
        seen["pass" if accepted == test["valid"] else "false accept" if accepted else "false reject"] += 1
