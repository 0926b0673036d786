"""Text shared by the backends: a choice as a regular expression, and library messages as one line."""

from __future__ import annotations

from inferd_grammar.constraints import ChoiceGrammar
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.schema import require_size


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


def _literal(text: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)
