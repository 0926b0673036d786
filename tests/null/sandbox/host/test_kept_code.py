"""What a worker keeps of programs' compiled code."""

from __future__ import annotations

import json

import pytest

from inferd_runtime.sandbox.host import kept_code
from inferd_runtime.sandbox.host.kept_code import KeptCode
from inferd_runtime.sandbox.messages import Bundle

LIB = "site-packages/lib/__init__.py"
BUNDLE = Bundle("p", {"main.py": ""}, packages={"lib/__init__.py": b""})


def said(**code: str) -> bytes:
    names = {"main": "main.py", "lib": LIB}
    return json.dumps({names.get(name, name): text for name, text in code.items()}).encode()


def test_later_runs_of_a_program_get_what_earlier_ones_compiled() -> None:
    kept = KeptCode()
    assert kept.of("p", "main.py") == b""
    kept.add("p", BUNDLE, said(main="a"))
    kept.add("p", BUNDLE, said(lib="b"))
    assert [kept.of("p", path) for path in ("main.py", LIB, "no.py")] == [b"a", b"b", b""]
    assert kept.of("other", "main.py") == b""


def test_a_run_does_not_replace_what_an_earlier_one_has_kept() -> None:
    """What was put in the place of a program's `main.py` by one of its runs, all later ones in that worker ran."""
    kept = KeptCode()
    kept.add("p", BUNDLE, said(main="a"))
    kept.add("p", BUNDLE, said(main="b" * (kept_code.MOST_OF_ONE - 100)))
    kept.add("p", BUNDLE, said(main="b", lib="c"))
    assert [kept.of("p", path) for path in ("main.py", LIB)] == [b"a", b"c"]


def test_a_program_that_comes_anew_with_each_run_keeps_nothing() -> None:
    kept = KeptCode()
    kept.add("", BUNDLE, said(main="a"))
    assert kept.of("", "main.py") == b""


def test_a_million_of_entries_are_not_even_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msgspec.json.decode", pytest.fail)
    KeptCode().add("p", BUNDLE, said(main="a", lib="b", one_more="c"))


@pytest.mark.parametrize("code", [b"no json", b"[1]", b'{"main.py": 1}', said(unknown="a"), b'{"main.py": "\xff"}'])
def test_what_is_no_code_of_the_program_is_not_kept(code: bytes) -> None:
    kept = KeptCode()
    kept.add("p", BUNDLE, code)
    assert not any(kept.of("p", path) for path in ("main.py", LIB, "unknown"))


def test_what_is_kept_is_bounded_for_each_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest may say as much as it likes, as often as it likes."""
    monkeypatch.setattr(kept_code, "MOST_OF_ONE", 200)
    monkeypatch.setattr(kept_code, "MOST_BYTES", 300)
    kept = KeptCode()
    kept.add("large", BUNDLE, said(main="a" * 201))
    kept.add("grows", BUNDLE, said(main="a" * 150))
    kept.add("grows", BUNDLE, said(lib="a" * 150))
    assert not kept.of("large", "main.py")
    assert (kept.of("grows", "main.py"), kept.of("grows", LIB)) == (b"a" * 150, b"")
    for program in ("first", "second"):
        kept.add(program, BUNDLE, said(main="a" * 150))
    assert kept.of("first", "main.py")
    kept.add("third", BUNDLE, said(main="a" * 150))
    assert [program for program in ("first", "second", "third") if kept.of(program, "main.py")] == ["first", "third"]
