"""Programs in a newer Python than the server's: what they say of themselves is read all the same."""

from __future__ import annotations

import ast

import pytest

from inferd.protocol import ProgramSyntaxError
from inferd_runtime.server.programs.bundles import check_syntax
from inferd_runtime.server.programs.newer_syntax import older

NEWER = '''
# it's a comment with def f[T]
type Ids = list[int]
type Table[T] = dict[str, T]
class Box[T: (int, str)](list):
    def put[X, *Ts, **P](self, x: "X[1]" = 1) -> X:
        return f"{x["a"]:#x} {f'{x!r:>{w}}'} {{'}}" "tail" rf"\\d{x:'>9}"
async def main(ids: Ids, text: str = f"{d["x"]}", more: str = 'it\\'s def f[') -> Table[int]:
    try: pass
    except ValueError, TypeError: pass
    s = f"""{
        ids["a"]  # }
    } text"""
    type = [3]
    type[0] = 5
    return t"{ids}"
'''


def test_what_an_old_parser_cannot_read_is_taken_away_and_lines_stay() -> None:
    module = ast.parse(older(NEWER))
    assert older(NEWER).count("\n") == NEWER.count("\n")
    *_, main = module.body
    assert isinstance(main, ast.AsyncFunctionDef)
    assert [arg.arg for arg in main.args.args] == ["ids", "text", "more"]
    assert main.lineno == NEWER[: NEWER.index("async def main")].count("\n") + 1
    check_syntax(NEWER, "main.py")


def test_other_source_stays_as_it_is() -> None:
    source = "x = {'a': [1]}  # f'{'\nasync def main(type: int = 3) -> str:\n    return 'f\"{x[' + rb'a'.decode()\n"
    assert older(source) == source


@pytest.mark.parametrize("source", ["async def main(:\n", 'f"{', "type X =", "def f[T", 'x = f"{a["b"', "except a, b"])
def test_what_no_python_reads_is_refused_still(source: str) -> None:
    with pytest.raises(ProgramSyntaxError):
        check_syntax(source, "main.py")
