"""Regular expressions with look-arounds, as intersections: `(?=.*[0-9])(?!root)[a-z0-9]+` asks for three things."""

from __future__ import annotations

from inferd_grammar.constraints import AllOfGrammar, Constraint, ExactGrammar, RegexGrammar
from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.patterns import complement, looks_around, plain, split_look_aheads
from inferd_grammar.rewrites.regex_dialect import foreign
from inferd_grammar.rewrites.regex_syntax import NotUnderstood


def as_intersection(constraint: Constraint) -> Constraint:
    """Return such an expression as what the look-aheads that it begins with ask for, and the rest; others as they are.

    Raises GrammarError for a look-around that has no plain expression, or one that is too large.
    """
    if isinstance(constraint, ExactGrammar):
        return ExactGrammar(as_intersection(constraint.inner))
    if not isinstance(constraint, RegexGrammar) or not looks_around(constraint.pattern):
        return constraint
    require_known(constraint.pattern)
    rest, ahead = split_look_aheads(f"^{constraint.pattern.removeprefix('^')}")
    try:
        asked = [complement(wanted) if negated else _whole(wanted) for negated, wanted in ahead]
        members = [_plain(rest.removeprefix("^")), *asked]
    except NotUnderstood as error:
        raise GrammarError(f"this look-around is not supported: {error}") from error
    return AllOfGrammar(tuple(map(RegexGrammar, members))) if asked else RegexGrammar(members[0])


def require_known(pattern: str, pointer: str | None = None) -> None:
    """Raise GrammarError for what no expression of the library says."""
    if (name := foreign(pattern)) is not None:
        raise GrammarError(f"{name} is not supported in a regular expression", pointer)
    if pattern.startswith("/^") and pattern.endswith("$/"):
        raise GrammarError("no text matches: the slashes around this regular expression are characters of it", pointer)


def _plain(pattern: str) -> str:
    """Return an expression for whole texts without look-arounds; not ended by `$`, which may stand before a line end."""
    return plain(rf"^(?:{pattern})(?![\s\S])") if looks_around(pattern) else pattern


def _whole(wanted: str) -> str:
    """Return an expression for whole texts that begin with `^...`."""
    wanted = plain(wanted)
    ends = wanted.endswith("$") and not wanted.endswith(r"\$")
    return f"(?:{wanted[1:]})" if ends else rf"(?:{wanted[1:]})[\s\S]*"
