"""Results that are kept for the next start: found whole or not at all, and never in the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from inferd_runtime import kept_results
from inferd_runtime.kept_results import MOST_KEPT, KeptResults, key_of


@dataclass(frozen=True)
class Answer:
    value: float


@dataclass(frozen=True)
class OtherAnswer:
    name: str


def test_what_is_kept_is_found(tmp_path: Path) -> None:
    kept = KeptResults(tmp_path / "kept", Answer)
    assert kept.find("a") is None
    kept.keep("a", Answer(0.1))
    assert kept.find("a") == Answer(0.1)
    assert kept.find("b") is None


def test_what_is_damaged_or_of_another_type_is_not_found(tmp_path: Path) -> None:
    KeptResults(tmp_path / "kept", Answer).keep("a", Answer(1.0))
    assert KeptResults(tmp_path / "kept", OtherAnswer).find("a") is None
    (tmp_path / "kept" / "a.json").write_text('{"value": 2.0}')
    assert KeptResults(tmp_path / "kept", Answer).find("a") is None


def test_a_folder_that_cannot_be_used_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = KeptResults(tmp_path / "file" / "kept", Answer)
    kept.keep("a", Answer(1.0))
    assert kept.find("a") is None


def test_the_oldest_are_dropped(tmp_path: Path) -> None:
    kept = KeptResults(tmp_path / "kept", Answer)
    for number in range(MOST_KEPT + 3):
        kept.keep(str(number), Answer(number))
    assert len(list((tmp_path / "kept").glob("*.json"))) == MOST_KEPT


@pytest.mark.parametrize("kind", ["*.py", "*.c", "*.h"])
def test_a_key_depends_on_every_kind_of_source(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """What steps cost was kept while the products in C became a fifth faster."""
    before, read = key_of([], ["kernels"]), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"\n" * path.match(kind))
    assert key_of([], ["kernels"]) != before


def test_a_key_depends_on_parts_code_packages_and_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key_of(["a"], ["kv"]), key_of(["b"], ["kv"]), key_of(["a"], ["kv", "kernels"])}
    monkeypatch.setattr(kept_results, "processor", lambda: "another")
    keys.add(key_of(["a"], ["kv"]))
    monkeypatch.setattr(kept_results, "PACKAGES", ("torch",))
    keys.add(key_of(["a"], ["kv"]))
    assert len(keys) == 5
