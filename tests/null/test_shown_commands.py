"""The commands that the pages show are ones that the command line takes: verb, options and values, and a program's parameters."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inferd_runtime.cli import main
from inferd_runtime.cli.parsing import Parser, settings_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *ROOT.glob("docs/guides/*.md"),
    *ROOT.glob("docs/clients/*.md"),
    *ROOT.glob("inferlets/*/README.md"),
]
SHOWN = re.compile(r"^(?: {4,}|\$ )(?:\$ )?(inferd .*)", re.MULTILINE)
COMMENT = re.compile(r"\s+# .*")
APART = re.compile(r";\s+|\s+<\s+\S+")
STAND_IN = {"PROGRAM": "inferlets/extract", "my-pie-program": "inferlets/text-completion"}
ELSEWHERE = "cluster"
"""``test_deploy.py`` has these."""


class Taken(BaseException):
    """The command line was taken."""


def shown(page: Path) -> Iterator[list[str]]:
    """Yield what stands behind ``inferd`` in each command of a page."""
    for line in SHOWN.findall(page.read_text()):
        for command in filter(None, APART.split(COMMENT.sub("", line))):
            _, *words = shlex.split(command)
            if words[0] != ELSEWHERE:
                yield [STAND_IN.get(word, word) for word in words]


COMMANDS = [pytest.param(words, id=f"{page.relative_to(ROOT)}-{words[0]}") for page in PAGES for words in shown(page)]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_shown_is_taken(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(parsed: Namespace) -> Namespace:
        if words[0] == "run" and getattr(parsed, "rest", None):  # its own options: the program's parameters come next
            return parsed
        if any(name.startswith("setting_") for name in vars(parsed)):
            settings_of(parsed)
        raise Taken

    monkeypatch.chdir(ROOT)
    for way in ("parse_args", "parse_intermixed_args"):
        parse: Any = getattr(Parser, way)
        monkeypatch.setattr(Parser, way, lambda self, *given, parse=parse: stopped(parse(self, *given)))
    with pytest.raises(Taken):
        main(words)


def test_there_are_commands_of_every_kind() -> None:
    found = {words.values[0][0] for words in COMMANDS}
    assert {"run", "serve", "serve-draft", "launch", "token", "secret", "models"} <= found
