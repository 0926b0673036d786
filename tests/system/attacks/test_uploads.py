"""Sources that are slow to parse, or lie about themselves."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .arena import Arena
from .attack import OK, Attack, Conduct, Request, attacks, ending, withstood

PARSED = "ok client.invalid program limit unavailable program.syntax"
MAIN = "async def main(): pass\n"


def nested_f_strings(depth: int) -> str:
    """F-strings within f-strings, whose parser tries each twice."""
    text = "1"
    for _ in range(depth):
        text = 'f"{' + text + '!r:{x}}"' if "'" in text else "f'{" + text + "}'"
    return f"x = {text}\n{MAIN}"


SOURCES: dict[str, str | dict[str, str]] = {
    "nested f-strings": "x = " + "f'{" * 12_000 + "}'" * 12_000 + "\n" + MAIN,
    "f-strings of f-strings": nested_f_strings(140),
    "nested parentheses": "x = " + "(" * 40_000 + ")" * 40_000 + "\n" + MAIN,
    "nested brackets, unclosed": "x = " + "[" * 190 + "\n" + MAIN,
    "nested lambdas": "x = " + "lambda: " * 30_000 + "1\n" + MAIN,
    "a sum of 300,000 terms": "x = " + "+".join(["1"] * 300_000) + "\n" + MAIN,
    "a comparison of 100,000 terms": "x = " + "<".join(["1"] * 100_000) + "\n" + MAIN,
    "100 levels of if": "\n".join(" " * n + "if x:" for n in range(100)) + "\n" + " " * 100 + "pass\n" + MAIN,
    "240,000 lines": "x = 1\n" * 240_000 + MAIN,
    "240,000 comments": "#\n" * 240_000 + MAIN,
    "a line of a million letters": "x = '" + "a" * 1_000_000 + "'\n" + MAIN,
    "a number of 100,000 digits": "x = " + "9" * 100_000 + "\n" + MAIN,
    "20,000 functions": "\n".join(f"def f{n}(a: int, b: str = '') -> None: ..." for n in range(8_000)) + "\n" + MAIN,
    "a main of 20,000 parameters": "async def main(" + ", ".join(f"a{n}: int = 0" for n in range(8_000)) + "): pass\n",
    "an annotation nested 2,000 times": "async def main(x: " + "list[" * 2_000 + "int" + "]" * 2_000 + "): pass\n",
    "an annotation of 50,000 members": "async def main(x: " + " | ".join(["int"] * 40_000) + "): pass\n",
    "dataclasses that hold each other": "from dataclasses import dataclass\n"
    + "".join(f"@dataclass\nclass A{n}:\n    a: 'A{n + 1}'\n    b: 'A{n + 1}'\n" for n in range(60))
    + "@dataclass\nclass A60:\n    a: int\nasync def main(x: A0): pass\n",
    "a dataclass that holds itself": "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: 'A'\n"
    "async def main(x: A) -> A: pass\n",
    "nulls": "x = 1\0\n" + MAIN,
    "a coding of rot13": "# -*- coding: rot13 -*-\n" + MAIN,
    "a coding of nothing": "# -*- coding: " + "x" * 10_000 + " -*-\n" + MAIN,
    "form feeds and tabs": "\f\t\f" * 100_000 + "\n" + MAIN,
    "a script block that never ends": "# /// script\n" + "# a\n" * 26_000 + MAIN,
    "26,000 script blocks": "# /// script\n#\n" * 8_000 + MAIN,
    "a script block of spaces": "# /// script\n" + "#" + " " * 100_000 + "\n" + "# //" * 20_000 + "\n" + MAIN,
    "script blocks that nearly close": "# /// script\n" + "# ///x\n" * 15_000 + MAIN,
    "a docstring with a surrogate": "async def main():\n    '\\ud800'\n",
    "a default with a surrogate": "async def main(x: str = '\\ud800'): pass\n",
    "a name with a surrogate": '# /// script\n# [tool.inferd]\n# name = "\\ud800"\n# ///\n' + MAIN,
    "dotted keys": "# /// script\n# " + ".".join(["a"] * 30_000) + " = 1\n# ///\n" + MAIN,
    "deep arrays": "# /// script\n# a = " + "[" * 30_000 + "]" * 30_000 + "\n# ///\n" + MAIN,
    "deep inline tables": "# /// script\n# a = " + "{a = " * 20_000 + "1" + "}" * 20_000 + "\n# ///\n" + MAIN,
    "deep tables": "# /// script\n" + "".join(f"# [{'.'.join(['a'] * n)}]\n" for n in range(1, 300)) + "# ///\n" + MAIN,
    "a limit of 10**400": "# /// script\n# [tool.inferd.limits]\n# wall_s = 1" + "0" * 400 + "\n# ///\n" + MAIN,
    "a limit of nan": "# /// script\n# [tool.inferd.limits]\n# wall_s = nan\n# ///\n" + MAIN,
    "a limit below 0": "# /// script\n# [tool.inferd.limits]\n# memory_mb = -5\n# ///\n" + MAIN,
    "a thousand dependencies": "# /// script\n# dependencies = ["
    + ",".join(['"a[b]>=1;x"'] * 5_000)
    + "]\n# ///\n"
    + MAIN,
    "a version of a megabyte": "# /// script\n# [tool.inferd]\n# version = '" + "1." * 500_000 + "'\n# ///\n" + MAIN,
    "a project of dotted keys": {"main.py": MAIN, "pyproject.toml": ".".join(["a"] * 40_000) + " = 1\n"},
    "a project of deep arrays": {"main.py": MAIN, "pyproject.toml": "a = " + "[" * 60_000},
    "a project of 30,000 tables": {
        "main.py": MAIN,
        "pyproject.toml": "\n".join(f"[a.b{n}]\nx = 1" for n in range(20_000)),
    },
    "a project whose limits are dates": {
        "main.py": MAIN,
        "pyproject.toml": "[tool.inferd.limits]\nwall_s = 1979-05-27T07:32:00Z\n",
    },
    "a project that is no TOML": {"main.py": MAIN, "pyproject.toml": "[" * 100_000},
    "a project with a surrogate": {"main.py": MAIN, "pyproject.toml": '[tool.inferd]\nname = "\\ud800"\n'},
    "5,000 files": {"main.py": MAIN, **{f"a{n}.py": "" for n in range(5_000)}},
    "a file outside": {"main.py": MAIN, "../../etc/cron.d/x.py": "x = 1"},
    "an absolute file": {"main.py": MAIN, "/tmp/x.py": "x = 1"},
    "a file of dots": {"main.py": MAIN, "a/../../b.py": "x = 1"},
    "a file with a null": {"main.py": MAIN, "a\0.py": "x = 1"},
    "a file with backslashes": {"main.py": MAIN, "..\\a.py": "x = 1"},
    "a file named by 100 KB": {"main.py": MAIN, "a" * 100_000 + ".py": "x = 1"},
    "files a thousand folders deep": {"main.py": MAIN, "a/" * 1_000 + "b.py": "x = 1"},
    "a file that starts a child": {
        "main.py": MAIN,
        "bisect.py": "open('/tmp/owned', 'w')\n",
        "sitecustomize.py": "1 / 0\n",
    },
}


def upload(name: str) -> Callable[[Arena], str]:
    """Upload a source, which is not there yet."""
    return lambda arena: ending(arena.mallory.upload(SOURCES[name]))


def upload_together(arena: Arena) -> str:
    """Twenty clients upload what is slow."""
    source = "x = " + "f'{" * 9_000 + "}'" * 9_000 + "\n"
    with ThreadPoolExecutor(20) as threads:
        done = list(threads.map(lambda n: ending(arena.mallory.upload(f"{source}y = {n}\n{MAIN}")), range(20)))
    others = ending(arena.hostile["trudy"].upload(f"x = {time.time()}\n{MAIN}"))
    return others if others != OK else done[-1]


def upload_versions(arena: Arena) -> str:
    """Upload program after program."""
    ends = [ending(arena.mallory.upload(f"x = {n}\n{MAIN}", name="many")) for n in range(60)]
    return ends[-1]


def upload_large(arena: Arena) -> str:
    """Upload large programs until they are refused."""
    for n in range(15):
        end = ending(arena.mallory.upload(f"x = {n}\n" + f"# {'x' * 990}\n" * 240 + MAIN, name="large"))
        if end != OK:
            return end
    return OK


UPLOADS: list[Attack] = [
    *(Conduct(name, upload(name), PARSED) for name in SOURCES),
    Conduct("20 slow sources at once", upload_together, f"{PARSED} unavailable", seconds=90),
    Conduct("60 versions", upload_versions, PARSED),
    Conduct("15 programs of 240 KB", upload_large, PARSED),
    Request(
        "a body of 5 MB",
        "POST",
        "/v1/programs",
        "limit:body_bytes",
        b'{"files":{"main.py":"' + b"#" * (5 << 20) + b'"}}',
    ),
    Request("a body nested 400,000 times", "POST", "/v1/programs", "client.invalid", b'{"files":' + b'{"a":' * 400_000),
    Request(
        "a compressed body",
        "POST",
        "/v1/programs",
        "client.invalid",
        b"\x1f\x8b" + b"\0" * 1000,
        {"Content-Encoding": "gzip"},
    ),
]


@attacks(*UPLOADS)
def test_an_upload_is_parsed_within_bounds(arena: Arena, attack: Attack) -> None:
    withstood(arena, attack)
