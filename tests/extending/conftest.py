"""The code of docs/extending, run as it stands there: a page's Python blocks in order are one module."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs" / "extending"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the module of the test's page defines: for ``test_grammar_backend.py``, that of ``grammar-backend.md``."""
    name = request.path.stem.removeprefix("test_")
    blocks = BLOCK.findall((PAGES / f"{name.replace('_', '-')}.md").read_text())
    assert blocks, "a page without code"
    path = tmp_path / f"extending_{name}.py"  # a file: transformers reads the source of a family's module
    path.write_text("\n\n".join(blocks))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return vars(module)
