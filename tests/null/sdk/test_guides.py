"""The code of the guides, run as a program: every block in order, in one namespace, against a real session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guide_pages import GUIDES, indented, run_block
from tokenizers import Tokenizer

import inferd
import inferd_runtime.models
from inferd import Sampler
from inferd_runtime.testing.transport import run_program


@pytest.mark.parametrize(
    ("guide", "least"),
    [
        ("contexts.md", 50), ("sampling.md", 18), ("speculation.md", 50), ("forward.md", 25), ("structured-output.md", 40),
        ("constraints.md", 20),
    ],
)  # fmt: skip
def test_every_block_of_the_guide_runs(guide: str, least: int, capsys: pytest.CaptureFixture[str]) -> None:
    page = (GUIDES / guide).read_text()
    found = indented(guide)
    assert sum(bool(line) for _, source in found for line in source.splitlines()) == page.count("\n    ") > least
    names: dict[str, Any] = given() if guide == "constraints.md" else {}

    async def program() -> None:
        for block in found:
            await run_block(guide, block, names)

    run_program(program)
    assert capsys.readouterr().err == ""
    CHECKS[guide](names)


def check_sampling(names: dict[str, Any]) -> None:
    """The loop brought the generation's tokens, and every token was scored."""
    assert names["done"].length >= len("tick tock tick ") + len(names["plain"])
    assert names["made"] >= len(names["plain"]) > 10
    assert names["text"]
    assert "-" not in names["text"]
    assert all(logprob < 0 and len(top) == 3 for _, logprob, _, top in names["scores"])
    assert names["scores"]


def check_speculation(names: dict[str, Any]) -> None:
    """What the guide claims about what it ran."""
    stats = names["stats"]
    assert stats.emitted == stats.steps + stats.accepted - stats.truncated
    assert [cycle.step for cycle in names["cycles"]] == list(range(1, len(names["cycles"]) + 1))


def check_forward(names: dict[str, Any]) -> None:
    """Each probe told something, an answer was chosen, and texts became vectors."""
    assert len(names["rows"].rows[0].probes[1].tokens) == 20
    assert names["scores"][0].logprob is None
    assert names["best"][1] in ("yes", "no")
    assert len(names["vectors"]) == 2


def check_structured_output(names: dict[str, Any]) -> None:
    """The answers are what the guide says they are."""
    assert isinstance(names["person"], names["Person"])
    assert [checked.keyword for checked in names["generator"].checked] == ["uniqueItems"]
    assert len(set(names["answer"]["tags"])) == len(names["answer"]["tags"])
    assert names["matcher"].depth > 0


def given() -> dict[str, Any]:
    """What the guide to constraints takes for granted: a tokenizer, and a prompt that ends inside a word."""
    text = (Path(inferd_runtime.models.__path__[0]) / "tiny" / "target" / "tokenizer.json").read_text()
    tokenizer = Tokenizer.from_str(text)
    width = tokenizer.get_vocab_size()
    return {
        "text": text, "model_width": width, "row": np.empty(-(-width // 32), np.int32),
        "token": tokenizer.token_to_id("1"), "prompt_tokens": tokenizer.encode("def main(self):\n    retur").ids,
    }  # fmt: skip


def check_constraints(names: dict[str, Any]) -> None:
    """An integer's mask was filled and its token taken back, both demands hold, and the prompt was cut and is written again."""
    matcher, both, token, row = (names[name] for name in ("matcher", "both", "token", "row"))
    assert (matcher.depth, row[token // 32] >> token % 32 & 1) == (0, 1)
    both.accept([token])
    both.fill(row)
    allowed = [at for at in range(names["model_width"]) if row[at // 32] >> at % 32 & 1]
    assert allowed
    assert min(allowed) > token
    assert len(names["healed"].tokens) < len(names["prompt_tokens"])
    assert names["healed"].prefix


def test_every_example_of_the_table_of_constraints_compiles() -> None:
    examples = re.findall(r"^\|[^|]*\| `[A-Z]\w*` \| `(.*)` \|$", (GUIDES / "constraints.md").read_text(), re.MULTILINE)
    names = {
        **{name: getattr(inferd, name) for name in inferd.__all__},
        "call": {"type": "object"},
        "schema": {"type": "object"},
    }
    found = [eval(example.replace("\\|", "|"), names) for example in examples]

    async def program() -> None:
        for each in found:
            await inferd.Context().append("a").generate(Sampler.argmax(), max_tokens=1, constrain=each).collect_text()

    run_program(program)
    assert len(found) == 10


def check_contexts(names: dict[str, Any]) -> None:
    """The votes decided, the time-out left a context that goes on, and every prompt has its answer."""
    assert max(names["votes"].values()) == 4
    assert all(task.done() for task in names["tasks"])
    assert names["draft"].length > names["start"]
    assert names["short"]
    assert names["generator"].stop_token is not None
    assert 0 < len(names["written"]) <= 12
    assert len(names["answers"]) == 100


CHECKS = {
    "contexts.md": check_contexts,
    "constraints.md": check_constraints,
    "sampling.md": check_sampling,
    "speculation.md": check_speculation,
    "forward.md": check_forward,
    "structured-output.md": check_structured_output,
}
