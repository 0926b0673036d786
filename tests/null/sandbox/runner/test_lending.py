"""What packages import and the sandbox has not."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from inferd_runtime.sandbox.runner.lending import Lender

ABSENT = {"absent_one", "json.absent"}
LENDER = Lender(ABSENT)


def code(text: str, found: dict[str, object] | None = None) -> Callable[[], None]:
    return lambda: exec(text, {} if found is None else found)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import absent_one as lent", "absent_one"),
        pytest.param(
            "from json import absent as lent", "json.absent",
            marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="an ImportError names what was imported from 3.12 on"),
        ),
        ("import json.absent; lent = sys.modules['json.absent']", "json.absent"),
        ("import absent_one.part; lent = sys.modules['absent_one.part']", "absent_one.part"),
    ],
)  # fmt: skip
def test_a_module_that_needs_an_absent_one_loads_and_is_told_when_it_uses_that(text: str, name: str) -> None:
    """PyJWT imports ssl for keys that it would fetch, and could not be imported at all."""
    found: dict[str, object] = {"sys": sys}
    LENDER.run(code(text, found))
    with pytest.raises(OSError, match="the sandbox has no"):
        found["lent"].anything()  # type: ignore[attr-defined]
    assert not {"absent_one", name} & sys.modules.keys()


def test_code_that_looks_whether_there_is_one_sees_that_there_is_none() -> None:
    found: dict[str, object] = {}
    LENDER.run(code("try:\n    import absent_one\nexcept ImportError:\n    absent_one = None", found))
    assert found["absent_one"] is None


def test_what_is_missing_elsewhere_and_other_errors_are_passed_on() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        LENDER.run(code("import no_such_module"))
    with pytest.raises(ImportError, match="nothing"):
        LENDER.run(code("from json import nothing"))
    with pytest.raises(KeyError):
        LENDER.run(code("{}[1]"))


def test_a_module_that_uses_what_it_lacks_at_once_is_told_that_it_lacks_it() -> None:
    with pytest.raises(ModuleNotFoundError, match="absent_one"):
        LENDER.run(code("import absent_one\nif absent_one.VERSION >= (1, 1): pass"))
    assert "absent_one" not in sys.modules


def test_what_is_lent_to_one_module_is_not_seen_by_those_that_it_imports() -> None:
    """stripe imports ssl, and then urllib3, which does without it where it sees that there is none."""
    seen: list[object] = []

    def inner() -> None:
        LENDER.run(lambda: seen.append("absent_one" in sys.modules))

    def outer() -> None:
        import absent_one  # type: ignore[import-not-found]

        inner()
        seen.append(sys.modules["absent_one"] is absent_one)

    LENDER.run(outer)
    assert seen == [False, True]
    assert "absent_one" not in sys.modules
