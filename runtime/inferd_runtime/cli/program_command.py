"""``inferd VERB [own options] PROGRAM [the program's options and own ones]``: parsed in two parts.

What comes before PROGRAM is ours; what comes after belongs to the program, and to us where the program has no parameter of
that name.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from inferd.protocol import InvalidRequest
from inferd_runtime.cli.parsing import LIMIT_SETTINGS, Parser, settings_of
from inferd_runtime.cli.program_options import ProgramInterface, add_program_options, arguments_of
from inferd_runtime.settings.settings import Settings

HINT = """

inferd {verb} PROGRAM --help shows the program's own parameters. Where one has the name of an option below, write the
option before PROGRAM."""


NO_INPUT_HELP = "do not read messages for the program from standard input"
FILES_HELP = "write the files that the program sends into this folder; nothing there is overwritten"
SEND_HELP = "a file for the program's session.receive_file(); may be given several times"
JSON_INPUT_HELP = "a message that is JSON stands for its value; without, all are text"


@dataclass(frozen=True)
class TalkOptions:
    """``reads``: standard input has messages for the run, a line each. ``json_input``: a line that is JSON stands for its value.
    ``cancels``: Ctrl+C cancels the run. ``files``: the folder for files that it sends; None: they are only listed.
    ``sends``: files for it.
    """

    reads: bool = True
    json_input: bool = False
    cancels: bool = True
    files: Path | None = None
    sends: tuple[Path, ...] = ()

    @classmethod
    def of(cls, *parsed: argparse.Namespace, reads: bool = True) -> TalkOptions:
        """Return what the options of :func:`add_talk` say, in one or several parts. Raises InvalidRequest for what is no file."""
        folder = next((part.files_folder for part in parsed if getattr(part, "files_folder", None)), None)
        sends = [path for part in parsed for path in getattr(part, "sent_files", None) or []]
        for path in sends:
            if not path.is_file():
                raise InvalidRequest(f"--send-file: {path} is no file")
        reads = reads and not _given(parsed, "no_input")
        return cls(reads, _given(parsed, "json_input"), files=folder, sends=tuple(sends))


@dataclass(frozen=True)
class ProgramCommand:
    """What the command line says. ``limits`` holds only those that it sets."""

    arguments: dict[str, Any]
    settings: Settings
    limits: dict[str, float]
    as_json: bool
    detach: bool
    retry_safe: bool = False
    talk: TalkOptions = TalkOptions()
    mcp_file: Path | None = None
    """Servers of tools that the command brings along."""


@dataclass(frozen=True)
class CommandSyntax:
    """A verb's own part: ``before`` adds the options that may stand before PROGRAM, ``after`` those after it (except the
    names that the program takes); ``find`` gets the program's interface from what stands before.
    """

    verb: str
    description: str
    before: Callable[[Parser], None]
    after: Callable[[Parser, frozenset[str]], None]
    find: Callable[[argparse.Namespace], ProgramInterface]


def parse(grammar: CommandSyntax, argv: list[str]) -> ProgramCommand:
    """Parse a command line. Raises InvalidRequest that names what is wrong, and what ``find`` raises."""
    usage = f"inferd {grammar.verb} [options] PROGRAM [the program's parameters, options]"
    head = Parser(grammar.verb, grammar.description + HINT.format(verb=grammar.verb), usage=usage)
    grammar.before(head)
    head.add_argument("program", metavar="PROGRAM")
    head.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False
    first = head.parse_args(_flags_alone(head, argv))
    interface = grammar.find(first)
    verb = f"{grammar.verb} {first.program}"
    usage = f"inferd {verb} [parameters and options; --help lists them]"
    tail = Parser(verb, interface.doc, usage=usage, add_help="help" not in interface.names)
    add_program_options(tail, interface)
    grammar.after(tail, interface.names)
    second = tail.parse_args(first.rest[1:] if first.rest[:1] == ["--"] else first.rest)
    both = (first, second)
    settings = settings_of(*both)
    limits = {name: getattr(settings, name) for name in LIMIT_SETTINGS if _given(both, f"setting_{name}")}
    return ProgramCommand(
        arguments_of(second, interface), settings, limits,
        _given(both, "as_json"), _given(both, "detach"), _given(both, "retry_safe"),
        TalkOptions.of(*both, reads=getattr(second, "whole_input", None) != "-"),
        next((part.brought_file for part in both if getattr(part, "brought_file", None)), None),
    )  # fmt: skip


def _flags_alone(head: Parser, argv: Sequence[str]) -> list[str]:
    """Write ``=true`` behind flags before PROGRAM that stand alone: argparse would take PROGRAM for their value."""
    taken, left = list[str](), list(argv)
    while left and left[0].startswith("-") and left[0] != "--":
        option = left.pop(0)
        action = head.action(option)
        if action is not None and action.nargs == "?" and left[:1] not in (["true"], ["false"]):
            option = f"{option}={action.const}"
        taken.append(option)
        if action is not None and action.nargs is None:
            taken += left[:1]
            del left[:1]
    return taken + left


def add_talk(parser: Parser, taken: frozenset[str]) -> None:
    """Add the options for what is sent to a run, except names that are ``taken``."""
    if "no_input" not in taken:
        parser.add_argument("--no-input", dest="no_input", action="store_true", help=NO_INPUT_HELP)
    if "json_input" not in taken:
        parser.add_argument("--json-input", dest="json_input", action="store_true", help=JSON_INPUT_HELP)
    if "send_file" not in taken:
        parser.add_argument(
            "--send-file", dest="sent_files", type=Path, metavar="PATH", action="append", default=None, help=SEND_HELP
        )
    if "files" not in taken:
        parser.add_argument("--files", dest="files_folder", type=Path, metavar="DIR", help=FILES_HELP)


def message_of(text: str, json_input: bool) -> Any:
    """Return the message that a text stands for: with ``json_input`` the value of one that is JSON, else the text."""
    if json_input:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text, parse_constant=_no_constant)
    return text


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and infinities are Python's, not JSON's


def _given(parsed: Iterable[argparse.Namespace], name: str) -> bool:
    return any(getattr(part, name, None) for part in parsed)
