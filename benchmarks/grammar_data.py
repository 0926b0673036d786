"""What benchmarks/grammar.py measures on: a 32k tokenizer trained here, and schemas with random valid texts."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from inferd_grammar import TokenTable

VOCABULARY = 32_768
LINES = 12_000
WORDS = 60_000
END = "<|end|>"
SAMPLE = Path(__file__).resolve().parents[2] / "shared" / "conformance" / "maskbench" / "cases.jsonl"
Make = Callable[[random.Random], Any]


@dataclass(frozen=True)
class Case:
    """A schema and texts that are valid under it, compact and in schema order."""

    name: str
    schema: str
    texts: list[str]


def words() -> list[str]:
    """Made-up words, the same in every run."""
    rng = random.Random(0)
    syllables = [
        a + b for a in (*"bcdfghklmnprstvw", "st", "tr", "ch", "sh", "pl") for b in (*"aeiou", "ai", "er", "on")
    ]
    return ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))) for _ in range(WORDS)]


def lines() -> Iterator[str]:
    """Prose and JSON of those words, the common ones often."""
    rng, known = random.Random(1), words()
    for _ in range(LINES):
        yield " ".join(known[min(int(rng.paretovariate(0.6)), WORDS - 1)] for _ in range(40))
        values = [rng.randint(0, 99_999), rng.choice(known), [1, 2.5, True], {"id": rng.random()}]
        yield json.dumps({known[rng.randrange(3000)]: rng.choice(values) for _ in range(6)})


def tokenizer() -> Tokenizer:
    """A byte-level BPE tokenizer of 32,768 tokens, kept in the user's cache folder under the hash of this file."""
    name = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("INFERD_CACHE_DIR") or Path.home() / ".cache" / "inferd") / "benchmarks"
    kept = folder / f"bpe32k-{name}.json"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        )
        made.train_from_iterator(lines(), trainer)
        fresh = kept.with_suffix(f".{os.getpid()}")
        made.save(str(fresh))
        fresh.rename(kept)
    return Tokenizer.from_file(str(kept))


def table_of(made: Tokenizer) -> TokenTable:
    """The table of its tokens."""
    end = made.token_to_id(END)
    assert end is not None
    return TokenTable.from_tokenizer_json(made.to_str(), eos_ids=[end])


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _text(rng: random.Random, most: int = 6) -> str:
    return " ".join(rng.choice(_KNOWN) for _ in range(rng.randint(1, most)))


def _date(rng: random.Random) -> str:
    return f"20{rng.randint(10, 29)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def _tree(rng: random.Random, depth: int = 4) -> dict[str, Any]:
    return {"name": _text(rng, 2), "children": [_tree(rng, depth - 1) for _ in range(rng.randint(0, min(2, depth)))]}


_KNOWN = words()[:5000]
_STRING = {"type": "string"}
_COLORS = [f"{word} {n}" for n, word in enumerate(_KNOWN[:300])]
_PERSON = _object(
    name=_STRING, age={"type": "integer", "minimum": 0, "maximum": 150}, tags={"type": "array", "items": _STRING}
)
_NODE = _object(name=_STRING, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
MADE: dict[str, tuple[dict[str, Any], Make]] = {
    "person": (
        _PERSON,
        lambda rng: {"name": _text(rng), "age": rng.randint(0, 150), "tags": [_text(rng, 2) for _ in range(rng.randint(0, 5))]},
    ),
    "tree": ({"$ref": "#/$defs/node", "$defs": {"node": _NODE}}, _tree),
    "enums": (_object(color={"enum": _COLORS}, other={"enum": _COLORS[::2]}),
              lambda rng: {"color": rng.choice(_COLORS), "other": rng.choice(_COLORS[::2])}),
    "formats": (
        _object(day={"type": "string", "format": "date"}, code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,6}$"},
                mail=_STRING),
        lambda rng: {"day": _date(rng), "code": f"ABC-{rng.randint(10, 999_999)}", "mail": _text(rng, 1)},
    ),
    "numbers": (
        {"type": "array", "items": _object(x={"type": "number"}, y={"type": "integer", "multipleOf": 5}), "maxItems": 200},
        lambda rng: [{"x": round(rng.gauss(0, 50), 3), "y": 5 * rng.randint(-50, 50)} for _ in range(rng.randint(1, 20))],
    ),
    "bounded text": (
        _object(title={"type": "string", "maxLength": 200}, body={"type": "string", "minLength": 10, "maxLength": 2000}),
        lambda rng: {"title": _text(rng), "body": _text(rng, 40) + " and more"},
    ),
    "map": (
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
        lambda rng: {_text(rng, 1): [rng.randint(0, 999) for _ in range(rng.randint(0, 4))] for _ in range(5)},
    ),
    "actions": (
        {"anyOf": [_object(kind={"const": f"action {n}"}, value={"type": "integer"}, note=_STRING) for n in range(8)]},
        lambda rng: {"kind": f"action {rng.randrange(8)}", "value": rng.randint(0, 10**6), "note": _text(rng, 12)},
    ),
}  # fmt: skip


def made_cases(texts: int) -> list[Case]:
    """The schemas above with random texts."""
    rng = random.Random(5)
    return [
        Case(name, json.dumps(schema), [_compact(make(rng)) for _ in range(texts)])
        for name, (schema, make) in MADE.items()
    ]


def sampled_cases(count: int) -> list[Case]:
    """Schemas that people use, with their first two valid texts; none where the sample is absent."""
    if not SAMPLE.exists():
        return []
    cases = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]
    random.Random(3).shuffle(cases)
    return [
        Case(case["name"], json.dumps(case["schema"]), [_compact(t["data"]) for t in case["tests"] if t["valid"]][:2])
        for case in cases[:count]
    ]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
