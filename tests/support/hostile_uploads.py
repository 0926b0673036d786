"""Uploads that are made to cost a parser time or memory, or to break it: request bodies by what they try."""

from __future__ import annotations

import json
import sys
from base64 import b64encode

MAIN = "async def main(): pass\n"


def body(source: str, **more: str) -> bytes:
    """The JSON of an upload with one file and perhaps a pyproject.toml."""
    return json.dumps({"files": {"main.py": source, **more}, "name": "p"}).encode()


def project(text: str) -> bytes:
    """The JSON of an upload with this pyproject.toml."""
    return body(MAIN, **{"pyproject.toml": text})


def script(*lines: str) -> bytes:
    """The JSON of an upload with these lines in its script block."""
    return body("\n".join(["# /// script", *(f"# {line}" for line in lines), "# ///", MAIN]))


def pie(text: str) -> bytes:
    """The JSON of an upload for Pie with this Pie.toml."""
    files = {"main.py": "import inferlet\nasync def main(input: dict): pass\n"}
    return json.dumps({"files": files, "data": {"Pie.toml": b64encode(text.encode()).decode()}}).encode()


def nested_f_strings(depth: int) -> str:
    text = "1"
    for _ in range(depth):
        text = f"f'''{{{text}}}'''" if "'''" not in text else f'f"""{{{text}}}"""'
    return text


def doubling_aliases(count: int) -> str:
    lines = ["A0 = list[int] | str"] + [f"A{n} = dict[str, A{n - 1}] | list[A{n - 1}]" for n in range(1, count)]
    return "\n".join([*lines, f"async def main(x: A{count - 1}): pass"])


FSTRING = "f'{" * 12_000 + "1" + "}'" * 12_000
MANY_FILES = b'{"files":{' + b",".join(b'"%d":""' % n for n in range(330_000)) + b"}}"
SURROGATE = b'{"files":{"main.py":"' + b"\\ud800" + b'"}}'

HOSTILE: dict[str, bytes] = {
    "nested f-strings": body(f"x = {FSTRING}\n{MAIN}"),
    "f-strings side by side": body("x = (" + "f'{1}{2}{3}' " * 70_000 + ")\n" + MAIN),
    "script blocks that do not end": body("# /// script\n" * 8_000 + MAIN),
    "script blocks of other types": body("# /// a\n# ///\n" * 30_000 + "# /// script\n" + MAIN),
    "a script block of empty comments": body("# /// script\n" + "#\n" * 52_000 + "x\n" + MAIN),
    "dotted keys in a script block": script("a" + ".a" * 31_000 + " = 1"),
    "dotted keys in a project": project("a" + ".a" * 32_000 + " = 1"),
    "deep arrays": project("x = " + "[" * 30_000 + "]" * 30_000),
    "deep inline tables": project("x = " + "{a=" * 15_000 + "1" + "}" * 15_000),
    "arrays in a script block": script("x = " + "[" * 30_000 + "]" * 30_000),
    "digits in TOML": project("x = " + "9" * 60_000),
    "digits as a limit": project("[tool.inferd.limits]\ncpu_s = " + "9" * 4_000),
    "infinity as a limit": project("[tool.inferd.limits]\ncpu_s = inf"),
    "a project of a MiB": project("#" * (1 << 20)),
    "240,000 lines": body("\n" * 240_000 + MAIN),
    "240,000 names": body("a\n" * 240_000 + MAIN),
    "a row of names": body("a;" * 500_000 + "\n" + MAIN),
    "parentheses": body("x = " + "(" * 500_000 + "\n" + MAIN),
    "brackets": body("x = " + "[" * 150 + "]" * 150 + "\n" + "[" * 400_000),
    "closed brackets": body("x = " + "[" * 5_000 + "]" * 5_000 + "\n" + MAIN),
    "attributes": body("x" + ".a" * 500_000 + "\n" + MAIN),
    "calls": body("x" + "()" * 400_000 + "\n" + MAIN),
    "minus signs": body("x = " + "-" * 900_000 + "1\n" + MAIN),
    "nots": body("x = " + "not " * 200_000 + "1\n" + MAIN),
    "lambdas": body("x = " + "lambda:" * 100_000 + "1\n" + MAIN),
    "a sum": body("x = 1" + "+1" * 400_000 + "\n" + MAIN),
    "comparisons": body("x = 1" + "<1" * 400_000 + "\n" + MAIN),
    "conditional expressions": body("x = " + "1 if 1 else " * 50_000 + "1\n" + MAIN),
    "a list of numbers": body("x = [" + "1," * 520_000 + "]\n" + MAIN),
    "indentation": body("".join(" " * n + "if 1:\n" for n in range(1_300)) + MAIN),
    "decimal digits": body("x = " + "9" * 900_000 + "\n" + MAIN),
    "unclosed strings": body("'" * 900_001 + "\n" + MAIN),
    "a NUL": body("x = 1\0\n" + MAIN),
    "half a surrogate pair in the source": SURROGATE,
    "half a surrogate pair in a docstring": body('async def main():\n    "\\ud800"\n'),
    "half a surrogate pair in the module's docstring": body('"\\udfff"\n' + MAIN),
    "a byte order mark": body("\ufeff" + MAIN),
    "a long docstring": body('async def main():\n    "' + "a" * 900_000 + '"\n'),
    "long literals": body("from typing import Literal\nasync def main(x: Literal['" + "a" * 600_000 + "']): pass"),
    "many literals": body("async def main(x: Literal[" + ",".join(f"'{n}'" for n in range(60_000)) + "]): pass"),
    "a million parameters": body("async def main(" + ",".join(f"a{n}" for n in range(130_000)) + "): pass"),
    "257 parameters": body("async def main(" + ",".join(f"a{n}" for n in range(257)) + "): pass"),
    "a deep annotation": body("async def main(x: " + "list[" * 90 + "int" + "]" * 90 + "): pass"),
    "aliases that double": body(doubling_aliases(40)),
    "a class that is its own base": body("class A(A): pass\nclass B(A): pass\nasync def main(x: A): pass"),
    "classes with doubled bases": body(
        "@dataclass\nclass C0: pass\n" + "".join(f"@dataclass\nclass C{n}(C{n - 1}, C{n - 1}): pass\n" for n in range(1, 40))
        + "async def main(x: C39): pass"
    ),
    "a deep default": body("async def main(x=" + "[" * 90 + "]" * 90 + "): pass"),
    "no main": body("def other(): pass"),
    "files without number": MANY_FILES,
    "a path without end": b'{"files":{"' + b"a/" * 500_000 + b'.py":""}}',
    "a path out of the program": b'{"files":{"../main.py":""},"entry":"../main.py"}',
    "a path with escapes": b'{"files":{"\\u001b[2J.py":""},"entry":"\\u001b[2J.py"}',
    "a file that is a folder": json.dumps({"files": {"main.py": MAIN, "main.py/x.py": ""}}).encode(),
    "an entry that is a project": json.dumps({"files": {"pyproject.toml": ""}, "entry": "pyproject.toml"}).encode(),
    "a name without end": json.dumps({"files": {"main.py": MAIN}, "name": "a" * 100_000}).encode(),
    "a version without end": json.dumps({"files": {"main.py": MAIN}, "version": "1" * 100_000}).encode(),
    "deep JSON": b'{"files":' + b"[" * 1_000_000,
    "no JSON": b"\xff\xfe" * 1000,
    "zipped": b"PK\x03\x04" + bytes(1000),
    "nothing": b"",
}  # fmt: skip

HARMLESS: dict[str, bytes] = {
    "many dotted keys": project("\n".join(f"{'a.' * 50}b{n} = 1" for n in range(600))),
    "dotted tables": project("\n".join(f"[{'a.' * 300}b{n}]" for n in range(100))),
    "attributes in an annotation": body("async def main(x: a" + ".b" * 900 + "): pass"),
    "deep text annotations": body("async def main(x: '" + "list[" * 5_000 + "int" + "]" * 5_000 + "'): pass"),
    "a long annotation": body("async def main(x: '" + "a" * 900_000 + "'): pass"),
    "powers": body("x = 9**9**9\ny = 'a' * 10**9\nz = (1 << 10**9,) * 10**9\n" + MAIN),
    "a power as a default": body("async def main(x=9**9**9, y='a' * 10**10): pass"),
    "hexadecimal digits": body("async def main(x=0x" + "f" * 100_000 + "): pass"),
    "a number beyond 64 bits": body(f"async def main(x={1 << 70}, y: Literal[{1 << 70}] = 1): pass"),
    "infinity": body("async def main(x=1e999, y: Literal[1e999] = 1): pass"),
    "half a surrogate pair as a default": body("async def main(x='\\ud800'): pass"),
    "a coding line": body("# -*- coding: utf-7 -*-\n" + MAIN),
    "an odd coding line": body("# coding: rot13\n" + MAIN),
    "a coding that is none": body("# coding: " + "x" * 10_000 + "\n" + MAIN),
    "an alias of itself": body("A = list[A]\nB = A | B\nasync def main(x: A, y: B): pass"),
    "aliases in a ring": body("A = B\nB = A\nasync def main(x: A): pass"),
    "a class that holds itself": body("@dataclass\nclass A:\n    a: list[A]\nasync def main(x: A): pass"),
    "text annotations in text": body("async def main(x: \"'" + "int" + "'\"): pass"),
}
if sys.version_info < (3, 12):  # From then on they are parsed as fast as anything else.
    HOSTILE["f-strings in f-strings"] = body("x = " + nested_f_strings(60) + "\n" + MAIN)
"""Uploads that look like those above and are programs."""

MANIFESTS: dict[str, tuple[bytes, str]] = {
    "a Python of 9s": (project(f"[project]\nrequires-python = '>={'9' * 20_000}'"), "requires-python has 20002 characters"),
    "a Python of dots": (script(f"requires-python = '>={'1.' * 20_000}1'"), "requires-python has 40003 characters"),
    "a Python of commas": (script("requires-python = '" + ",".join([">=3"] * 9_000) + "'"), "requires-python has"),
    "a name of control characters": (
        json.dumps({"files": {"main.py": MAIN, "pyproject.toml": "a="}, "name": "\x1b[31m\n"}).encode(),
        "cannot be a program's name",
    ),
    "a name of two million letters": (
        json.dumps({"files": {"main.py": MAIN, "pyproject.toml": "a="}, "name": "n" * 2_000_000}).encode(),
        "cannot be a program's name",
    ),
    "a name that ends in a line": (project('[tool.inferd]\nname = "a\\n"'), "cannot be a program's name"),
    "a name that looks like another": (project("[tool.inferd]\nname = '\u0430dmin'"), "cannot be a program's name"),
    "a version of other digits": (script("[tool.inferd]", "version = '\u0661'"), "cannot be a program's version"),
    "a key that looks like another": (script("[tool.inferd]", '"n\u0430me" = "x"'), r"\[tool.inferd\] has no key"),
    "a key of 60,000 letters": (project(f"[tool.inferd]\n{'k' * 60_000} = 1"), r"\[tool.inferd\] has no key"),
    "two keys": (script("[tool.inferd]", "name = 'a'", "name = 'b'"), "Cannot overwrite"),
    "a table in a list": (project("[[tool.inferd]]\nname = 'x'"), "inferd must be a table"),
    "a server of tools out of its folder": (script("[tool.inferd]", "mcp = ['../x']"), "server of tools must match"),
    "an origin of two lines": (script("[tool.inferd]", 'http = ["a.com\\r\\nHost: b"]'), "a.com"),
    "an option as a dependency": (script("dependencies = ['--index-url=http://x']"), "dependency '--index-url"),
    "a parameter of control characters": (pie('[parameters]\n"a\\u0000b" = "str"'), "is no parameter's name"),
    "a parameter without a name": (pie('[parameters]\n"" = "str"'), "is no parameter's name"),
    "a parameter of 60,000 letters": (pie(f"[parameters]\n{'n' * 60_000} = 'str'"), "is no parameter's name"),
    "a parameter of a date": (pie("[parameters]\nx = 1979-05-27"), "x: type must be text"),
    "a description that is none": (pie("[parameters.x]\ndescription = nan"), "x: description must be text"),
}  # fmt: skip
"""Uploads with a hostile manifest, and what of it is named."""
