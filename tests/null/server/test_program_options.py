"""A program's parameters as command-line options."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferd.program.interface import describe_source
from inferd.protocol import InvalidRequest
from inferd_runtime.cli.parsing import Parser
from inferd_runtime.cli.program_options import ProgramInterface, add_program_options, arguments_of
from inferd_runtime.cli.run import read_command
from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.server.gateway.replies import program_json
from inferd_runtime.server.programs.bundles import make_program

SOURCE = '''
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

@dataclass
class Person:
    name: str

class Colour(Enum):
    RED = "red"
    BLUE = "blue"

async def main(
    text: str,
    max_tokens: int = 5,
    heat: float = 0.5,
    loud: bool = False,
    quiet: bool = True,
    tags: list[str] = [],
    sizes: list[int] = [],
    mode: Literal["a", "b", 3] = "a",
    colour: Colour = Colour.RED,
    person: Person | None = None,
    limit: int | None = None,
    either: int | str = 1,
    anything: Any = None,
    untyped=None,
    table: dict[str, int] = {},
    price: Decimal = Decimal(0),
    place: tuple[str, int] | None = None,
    names: set[str] = set(),
    said: Annotated[str, "how it is said"] = "hi",
):
    """Do it."""
'''


def parse(*argv: str, source: str = SOURCE) -> dict[str, Any]:
    interface = ProgramInterface.of(describe_source(source, "p.py"))
    parser = Parser("run p.py")
    add_program_options(parser, interface)
    return arguments_of(parser.parse_args(argv), interface)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--max-tokens", "7"], "max_tokens", 7),
        (["--max_tokens=7"], "max_tokens", 7),
        (["--heat", "1e-3"], "heat", 0.001),
        (["--loud"], "loud", True),
        (["--no-quiet"], "quiet", False),
        (["--tags", "a", "--tags", "b,c"], "tags", ["a", "b,c"]),
        (["--sizes", "1", "--sizes", "-2"], "sizes", [1, -2]),
        (["--mode", "b"], "mode", "b"),
        (["--mode", "3"], "mode", 3),
        (["--colour", "blue"], "colour", "blue"),
        (["--person", '{"name": "x"}'], "person", {"name": "x"}),
        (["--limit", "4"], "limit", 4),
        (["--either", "4"], "either", 4),
        (["--either", "four"], "either", "four"),
        (["--anything", "[1, null]"], "anything", [1, None]),
        (["--untyped", "plain text"], "untyped", "plain text"),
        (["--table", '{"a": 1}'], "table", {"a": 1}),
        (["--price", "1.50"], "price", "1.50"),
        (["--place", "1", "--place", "2"], "place", ["1", 2]),
        (["--names", "1", "--names", "2"], "names", ["1", "2"]),
        (["--said", "{not json"], "said", "{not json"),
    ],
)
def test_options_become_values_of_the_parameters_types(argv: list[str], name: str, value: Any) -> None:
    assert parse("--text", "t", *argv) == {"text": "t", name: value}


def test_what_is_left_out_is_not_sent() -> None:
    assert parse("--text", "") == {"text": ""}


def test_input_is_the_whole_object_and_options_win_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("--input", '{"text": "a", "limit": null}', "--text", "b") == {"text": "b", "limit": None}
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"text": "piped"}'))
    assert parse("--input", "-") == {"text": "piped"}


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "--text"),
        (["--text", "t", "--max-tokens", "many"], "--max-tokens"),
        (["--text", "t", "--heat", "nan"], "--heat"),
        (["--text", "t", "--mode", "c"], "one of a, b, 3"),
        (["--text", "t", "--person", "{"], "--person"),
        (["--text", "t", "--sizes", "x"], "--sizes"),
        (["--text", "t", "--place", "a", "--place", "b"], "--place: expected a whole number"),
        (["--text", "t", "--max", "1"], "--max 1"),
        (["--text", "t", "stray"], "stray"),
        (["--input", '{"text": "t", "nix": 1}'], "'nix'"),
        (["--input", "[]"], "JSON object"),
        (["--input", "{"], "--input"),
    ],
)
def test_what_is_wrong_is_named(argv: list[str], named: str) -> None:
    with pytest.raises(InvalidRequest, match=named):
        parse(*argv)


def test_a_parameter_may_have_the_name_of_an_option_of_ours() -> None:
    source = "async def main(input: str, help: bool = False): pass"
    interface = ProgramInterface.of(describe_source(source, "p.py"))
    parser = Parser("run p.py", add_help="help" not in interface.names)
    add_program_options(parser, interface)
    assert arguments_of(parser.parse_args(["--input", "x", "--help"]), interface) == {"input": "x", "help": True}


def test_a_flag_leaves_its_no_form_to_a_parameter_of_that_name() -> None:
    """argparse refused the second `--no-x`, which was shown as a bug in inferd."""
    source = "async def main(x: bool = False, no_x: int = 1): pass"
    assert parse("--x", "true", "--no-x", "2", source=source) == {"x": True, "no_x": 2}


HELP_THAT_STEERS = '''
from typing import Literal
async def main(place: Literal["a\\x1b[2J"] = "a\\x1b[2J"):
    """\x1b]0;owned\x07Done in 5%(prog)s: %d."""
'''


def test_the_help_of_a_strangers_program_cannot_steer_a_terminal_and_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its docstring and choices went to the terminal as they were; `%(prog)` beside another `%` ended the command as a bug."""
    program = tmp_path / "p.py"
    program.write_text(HELP_THAT_STEERS)
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", shown)
    with pytest.raises(SystemExit):
        read_command([str(program), "--help"])
    assert "\nDone in 5%(prog)s: %d.\n" in shown.getvalue()
    assert "--place {a}" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


def test_a_server_tells_the_same_interface() -> None:
    program = make_program(Bundle("p", {"main.py": SOURCE}))
    sent = msgspec.json.decode(msgspec.json.encode(program_json(program)))
    assert ProgramInterface.from_json(sent["interface"]) == ProgramInterface.of(program.interface)


@pytest.mark.parametrize(
    ("flags", "on"),
    [
        (["--timings"], True),
        (["--timings", "true"], True),
        (["--timings=false"], False),
        (["--timings", "false"], False),
        (["--model", "tiny", "--timings"], True),
        (["--json", "--timings", "--"], True),
    ],
)
def test_a_flag_does_not_take_the_program_for_its_value(tmp_path: Path, flags: list[str], on: bool) -> None:
    program = tmp_path / "p.py"
    program.write_text("async def main(timings: bool = False): ...")
    command, _ = read_command([*flags, str(program), "--timings"])
    assert command.settings.engine.timings is on
    assert command.arguments == {"timings": True}


def test_a_missing_program_is_named_alone() -> None:
    with pytest.raises(InvalidRequest, match=r"required: PROGRAM$"):
        read_command(["--timings"])


def test_help_says_which_options_are_given_once_for_each_item_and_not_as_a_list() -> None:
    parser = Parser("run p.py")
    add_program_options(parser, ProgramInterface.of(describe_source(SOURCE, "p.py")))
    told = {action.dest.removeprefix("parameter_"): action.help or "" for action in parser._actions}
    assert {name for name, text in told.items() if "several times" in text} == {"tags", "sizes", "place", "names"}
