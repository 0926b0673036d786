"""The modules of a program, as they are compiled in the sandbox."""

from __future__ import annotations

from base64 import b64encode

import pytest

from inferd_runtime.sandbox.runner.program import PACKAGES, BundleLoader, LoadedProgram, plainly


@pytest.mark.parametrize("named", ["euc-jp", "utf-7", "unicode_escape", "utf-16", "no-such-encoding"])
def test_no_encoding_that_a_source_names_makes_another_program_of_it_than_was_checked(named: str) -> None:
    source = f"# coding: {named}\r\nsaid = '日本 +AGE-'\r\n# \\nsaid = 'another'\r\n"
    code = BundleLoader(LoadedProgram("p", {"main.py": source}, "main.py"), "main.py", plainly).get_code("main")
    assert code is not None
    names: dict[str, str] = {}
    exec(code, names)
    assert names["said"] == "日本 +AGE-"


def test_a_module_of_a_package_is_read_in_the_encoding_that_it_names() -> None:
    class Library:
        def file(self, path: str) -> str:
            return b64encode(b"# coding: latin-1\nsaid = '\xe4'\n").decode()

        def code(self, path: str) -> str:
            return ""

    program = LoadedProgram("p", {}, "main.py", packages={"old.py"}, library=Library())
    assert BundleLoader(program, f"{PACKAGES}/old.py", plainly).get_source("old") == "# coding: latin-1\nsaid = 'ä'\n"
