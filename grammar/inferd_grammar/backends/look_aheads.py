"""Regular expressions that begin with look-aheads, as intersections: `(?=.*[0-9])(?!root)[a-z0-9]+` asks for three things."""

from __future__ import annotations

from inferd_grammar.constraints import AllOfGrammar, Constraint, ExactGrammar, RegexGrammar
from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.patterns import complement, split_look_aheads
from inferd_grammar.rewrites.regex_syntax import NotUnderstood


def as_intersection(constraint: Constraint) -> Constraint:
    """Return such an expression as what its look-aheads ask for and the rest; others as they are.

    Raises GrammarError for a negative look-ahead that has no complement.
    """
    if isinstance(constraint, ExactGrammar):
        return ExactGrammar(as_intersection(constraint.inner))
    if not isinstance(constraint, RegexGrammar):
        return constraint
    rest, ahead = split_look_aheads(f"^{constraint.pattern.removeprefix('^')}")
    if not ahead:
        return constraint
    try:
        asked = [complement(wanted) if negated else _whole(wanted) for negated, wanted in ahead]
    except NotUnderstood as error:
        raise GrammarError(f"this look-ahead is not supported: {error}") from error
    return AllOfGrammar(tuple(map(RegexGrammar, (rest.removeprefix("^"), *asked))))


def _whole(wanted: str) -> str:
    """Return an expression for whole texts that begin with `^...`."""
    ends = wanted.endswith("$") and not wanted.endswith(r"\$")
    return f"(?:{wanted[1:]})" if ends else rf"(?:{wanted[1:]})[\s\S]*"
