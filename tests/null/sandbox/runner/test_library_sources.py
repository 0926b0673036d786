"""Modules that are run again when their files are gone."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inferd_runtime.sandbox.runner.library_sources import keep_sources


@pytest.fixture
def gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that was imported, and whose files are no more."""
    folder = tmp_path / "kept_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import part\n")
    (folder / "part.py").write_text("VALUE = object()\n\n\ndef fail():\n    raise KeyError\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("kept_package")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    others = {name: module for name, module in sys.modules.items() if not name.startswith("kept_package")}
    with monkeypatch.context() as only:
        for name in others:
            only.delitem(sys.modules, name)
        keep_sources()
    for file in folder.iterdir():
        if file.is_file():
            file.unlink()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    importlib.invalidate_caches()
    yield
    for name in [name for name in sys.modules if name.startswith("kept_package")]:
        del sys.modules[name]


@pytest.mark.usefixtures("gone")
def test_a_copy_of_a_module_can_be_made() -> None:
    """The package markdown runs html.parser a second time, to change the copy."""
    import kept_package.part as part  # type: ignore[import-not-found]

    spec = importlib.util.find_spec("kept_package.part")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    assert copy.VALUE is not part.VALUE
    assert importlib.reload(part).VALUE is not None


@pytest.mark.usefixtures("gone")
def test_a_module_that_was_taken_out_is_imported_anew() -> None:
    """defusedxml takes xml.etree.ElementTree out of sys.modules, to import it without its C parts."""
    first = sys.modules.pop("kept_package.part")
    second = importlib.import_module("kept_package.part")
    assert second is not first
    for name in ("kept_package", "kept_package.part"):
        del sys.modules[name]
    assert importlib.import_module("kept_package").part.VALUE is not second.VALUE


@pytest.mark.usefixtures("gone")
def test_tracebacks_have_its_lines() -> None:
    import kept_package.part as part

    linecache.clearcache()
    assert linecache.getline(part.__file__, 5, vars(part)) == "    raise KeyError\n"
