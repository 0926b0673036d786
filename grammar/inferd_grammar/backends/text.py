"""Text shared by the backends: a choice as a regular expression, and library messages as one line."""

from __future__ import annotations

import re

from inferd_grammar.constraints import ChoiceGrammar
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.schema import require_size

_IN_REGEX = re.compile(
    r"(?P<place>at \d+\(\d+\): )?(?:invalid regex .* \(in regex\): )?(?=regex parse error:|lookarounds not)"
)
_PARSE_ERROR = re.compile(
    r"regex parse error:\n    (?P<text>.*)\n    (?P<before> *)(?P<marks>\^+).*\nerror: (?P<why>.*)"
)
_EXCERPT = re.compile(r"\n +\d+ \| .*", re.DOTALL)
_EDGE = re.compile(r"lookarounds not supported yet; (?P<name>\w+) in regex")
_EDGES = {
    "Start": "'^' inside", "End": "'$' inside", "StartLF": "'^' at each line, (?m),", "EndLF": "'$' at each line, (?m),",
}  # fmt: skip
_SHOWN = 12
_UNSURE = "Unable to determine if regex is empty"
UNSURE = "it takes too much to tell whether any text has this pattern and this length"
_OF_ONE_REGEX = "at 1(8): "
"""Where the library's grammar of a single expression has it."""


def choice_pattern(choice: ChoiceGrammar, limits: CompileLimits) -> str:
    """Return a regular expression (Rust syntax) that matches exactly the options.

    Everything but ASCII letters and digits is written `\\x{...}`, which means the same in every dialect and flag.
    Raises GrammarError for no options, options that are not text, and more than the limits allow.
    """
    check_choice(choice, limits)
    return f"(?:{'|'.join(_literal(option) for option in choice.options)})"


def check_choice(choice: ChoiceGrammar, limits: CompileLimits) -> None:
    """Raise GrammarError for no options, options that are not text, and more than the limits allow."""
    options = choice.options
    if not options or not all(isinstance(option, str) for option in options):
        raise GrammarError("a choice needs at least one option, all of them text")
    if len(options) > limits.max_enum:
        raise GrammarError(f"choice has {len(options)} options; max_enum is {limits.max_enum}")
    require_size("".join(options), "choice", limits)


def one_line(message: str, limit: int = 400) -> str:
    """Return a library's message on one line, at most `limit` characters, without the calls that led to it."""
    text = " ".join(message.partition("<backtrace>")[0].replace("<non-verbose/>", "").split())
    return text if len(text) <= limit else f"{text[:limit]}..."


def library_reason(message: str) -> str:
    """Return what a library says of a grammar on one line; of an expression that it does not read, the piece and why."""
    message = _EXCERPT.sub("", message)  # its mark below a line means nothing on one line
    if _UNSURE in message:
        return f"{UNSURE}: leave the length out, or write it into the pattern"
    found = _IN_REGEX.match(message)
    if found is None:
        return f"llguidance: {one_line(message)}"
    place = "" if found["place"] in (None, _OF_ONE_REGEX) else found["place"]
    if error := _PARSE_ERROR.match(message, found.end()):
        at, size = len(error["before"]), len(error["marks"])
        piece = error["text"][at : at + (size if size > 1 else _SHOWN)]
        return f"{place}regex parse error: {error['why']}{f', at {piece!r}' if piece else ''}"
    if (edge := _EDGE.match(message, found.end())) and edge["name"] in _EDGES:
        return f"{place}{_EDGES[edge['name']]} is not supported in a regular expression"
    return f"llguidance: {place}{one_line(message[found.end() :])}"


def _literal(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)
