"""The pages about clients: what they show runs as it stands there, against a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .conftest import ROOT, TOKEN, LiveServer

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "clients").glob("*.md"))]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:7070"
PROGRAM, NAME = "# /// script\n", re.compile(r'^# name = "(.+)"$', re.MULTILINE)


def in_shell(text: str, folder: Path) -> None:
    """Run commands as a user would, in a folder."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {key: value for key, value in os.environ.items() if not key.startswith("INFERD_")}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env={**kept, "PATH": path, "TOKEN": TOKEN},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass(frozen=True)
class ShownPage:
    """What a page's blocks have left: their names, what they printed, and files."""

    names: dict[str, Any]
    printed: str
    folder: Path


@pytest.mark.filterwarnings(
    "ignore:connect..:DeprecationWarning"
)  # openai opens it as older versions of websockets want it
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_the_page_shows_runs(
    server: LiveServer, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert blocks, "a page without anything to try"
    names: dict[str, Any] = {"TOKEN": TOKEN}
    for language, text in blocks:
        shown = text.replace(ADDRESS, server.url)
        if text.startswith(PROGRAM):
            (tmp_path / f"{NAME.findall(text)[0]}.py").write_text(text)
        elif language == "bash":
            in_shell(shown, tmp_path)
        else:
            exec(compile(shown, str(page), "exec"), names)
    if "client" in names:
        names["client"].close()
    printed = capsys.readouterr()
    assert printed.err == ""
    CHECKS.get(page.stem, lambda page: None)(ShownPage(names, printed.out, tmp_path))


def check_model(page: ShownPage) -> None:
    """The program wrote both of its answers, and the other one failed with what it raised."""
    said = page.names["answer"].choices[0].message
    assert said.content
    assert said.reasoning
    assert said.content != said.reasoning
    (failed,) = [line for line in page.printed.splitlines() if line.startswith("500 server_error")]
    assert "no luck today" in failed


def check_described(page: ShownPage) -> None:
    assert '"openapi":"3.1.0"' in (page.folder / "openapi.json").read_text()


CHECKS = {"write-a-model": check_model, "other-routes": check_described}
