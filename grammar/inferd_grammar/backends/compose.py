"""One llguidance grammar out of several: tagged text, sequences, prefixes, intersections of regular expressions.

Every part becomes a grammar of its own in llguidance's list form, and refers to the others by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any

from inferd_grammar.backends.bare_texts import bare_text
from inferd_grammar.backends.inner_texts import lark_up_to, may_hold
from inferd_grammar.constraints import (
    AllOfGrammar,
    AnyOfGrammar,
    ChoiceGrammar,
    Constraint,
    ExactGrammar,
    JsonSchemaGrammar,
    PrefixedGrammar,
    RegexGrammar,
    RepeatedGrammar,
    SequenceGrammar,
    TaggedGrammar,
    TagGrammar,
    TextGrammar,
    UntilGrammar,
)
from inferd_grammar.errors import GrammarError
from inferd_grammar.limits import CompileLimits
from inferd_grammar.matchers.product import check_members, is_regular
from inferd_grammar.schema import require_size
from inferd_grammar.tokens import TokenTable

_ANY_TEXT = "TEXT: /(?s:.)*/"
_START_REGEX = "start: "
_NOTHING = '""'

_JOINED = (SequenceGrammar, AnyOfGrammar, RepeatedGrammar)
Leaf = Callable[[Constraint], str]


class Composer:
    """Collects the parts of one grammar. `leaf` gives llguidance's grammar text of a constraint that stands alone."""

    def __init__(self, leaf: Leaf, table: TokenTable, limits: CompileLimits, *, exact: bool) -> None:
        """`exact` turns off the forcing of canonical splits."""
        self._leaf = leaf
        self._table = table
        self._limits = limits
        self._exact = exact
        self._parts: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}
        self.named: set[int] = set()

    def grammar(self, constraint: Constraint) -> str:
        """Return the whole grammar as llguidance's JSON.

        Raises GrammarError for what cannot be composed. `named` then holds the special tokens that the grammar names.
        """
        top = self._add(constraint)
        options = '%llguidance {"no_forcing": true}\n' if self._exact else ""
        start = {"name": "whole", "lark_grammar": f"{options}start: @{top}"}
        try:
            text = json.dumps({"grammars": [start, *self._parts]}, allow_nan=False)
        except ValueError as error:
            raise GrammarError(f"constraint cannot be written as JSON: {error}") from error
        require_size(text, "constraint", self._limits)
        return text

    def _add(self, constraint: Constraint) -> str:
        if isinstance(constraint, JsonSchemaGrammar) and constraint.mode != "strict":
            raise GrammarError("a best_effort JSON schema stands alone: it cannot be a part of another constraint")
        if isinstance(constraint, ExactGrammar):
            if not self._exact:
                raise GrammarError("masks are exact for the whole of a constraint: put Exact outside")
            return self._add(constraint.inner)
        if isinstance(constraint, _JOINED) and self._is_regular(constraint):
            return self._append({"lark_grammar": self._lexeme(constraint)})
        if isinstance(constraint, TaggedGrammar):
            return self._append({"lark_grammar": self._tagged(constraint)})
        if isinstance(constraint, AllOfGrammar):
            return self._append({"lark_grammar": self._joined(constraint)})
        if isinstance(constraint, PrefixedGrammar):
            return self._append({"lark_grammar": self._prefixed(constraint)})
        if isinstance(constraint, TextGrammar):
            return self._append({"lark_grammar": f"start: {' '.join(self._spelling(constraint.text)) or _NOTHING}"})
        if isinstance(constraint, UntilGrammar):
            return self._append({"lark_grammar": self._until(constraint.end, constraint.inner)})
        if isinstance(constraint, RepeatedGrammar):
            return self._append({"lark_grammar": self._repeated(constraint)})
        if isinstance(constraint, SequenceGrammar | AnyOfGrammar):
            return self._append({"lark_grammar": self._side_by_side(constraint)})
        return self._append(_entry(self._leaf(constraint)))

    def _until(self, end: str, inner: Constraint | None) -> str:
        spelled = self._spelling(end)
        if not spelled or (len(spelled) > 1 and not spelled[0].startswith("<[")):
            raise GrammarError(f"the end {end!r} of a text must begin with a special token, or be plain text")
        if spelled[0].startswith("<["):
            if isinstance(inner, JsonSchemaGrammar):
                inner = bare_text(inner, "", self._limits)
            text = "TEXT" if inner is None else f"@{self._add(inner)}"
            return f"start: {text} {' '.join(spelled)}\n{_ANY_TEXT}"
        if inner is None:
            return f"start: head\nhead[lazy]: TEXT {spelled[0]}\n{_ANY_TEXT}"
        if isinstance(inner, JsonSchemaGrammar):
            return self._bare(end, inner)
        return self._first_end(end, inner) if self._is_regular(inner) else lark_up_to(end, inner, self._limits)

    def _bare(self, end: str, inner: JsonSchemaGrammar) -> str:
        """Return a text of a schema and its end as one lexeme, which ends at the first place where it can."""
        rules: list[str] = []
        text = self._expression(bare_text(inner, end[0], self._limits), rules)
        return "\n".join(["start: head", f"head[lazy]: {text} {_quoted(end)}", *rules])

    def _first_end(self, end: str, inner: Constraint) -> str:
        """Return a regular text and its end as one lexeme, without those that have the end before."""
        rules: list[str] = []
        text = self._expression(inner, rules)
        if not may_hold(inner, end[0]):
            return "\n".join(["start: TEXT", f"TEXT: {text} {_quoted(end)}", *rules])
        before = f"BEFORE: ANY {_quoted(end)} MORE\nANY: /(?s:.)*/\nMORE: /(?s:.)+/"
        return "\n".join(["start: TEXT", f"TEXT: ({text} {_quoted(end)}) & ~BEFORE", before, *rules])

    def _repeated(self, constraint: RepeatedGrammar) -> str:
        return f"start: item{_count(constraint)}\nitem: @{self._add(constraint.inner)}"

    def _side_by_side(self, constraint: SequenceGrammar | AnyOfGrammar) -> str:
        if not constraint.members:
            raise GrammarError("a sequence or an alternative needs at least one member")
        if isinstance(constraint, SequenceGrammar) and any(isinstance(m, TaggedGrammar) for m in constraint.members):
            raise GrammarError("tagged text has no end, so that nothing can follow it in a sequence")
        names = [f"@{self._add(member)}" for member in self._neighbours(constraint)]
        return f"start: {(' ' if isinstance(constraint, SequenceGrammar) else ' | ').join(names)}"

    def _neighbours(self, constraint: SequenceGrammar | AnyOfGrammar) -> list[Constraint]:
        """Return the members, regular ones that stand side by side as one."""
        kind = type(constraint)
        groups = [(regular, tuple(run)) for regular, run in groupby(constraint.members, self._is_regular)]
        return [m for regular, run in groups for m in ([kind(run)] if regular else run)]

    def _is_regular(self, constraint: Constraint) -> bool:
        """Return True for a text that one regular expression describes."""
        match constraint:
            case RegexGrammar() | ChoiceGrammar():
                return True
            case TextGrammar(text):
                return not any(isinstance(part, int) for part in self._table.split_special(text))
            case AllOfGrammar(members):
                return is_regular(members)
            case SequenceGrammar(members) | AnyOfGrammar(members):
                return bool(members) and all(map(self._is_regular, members))
            case RepeatedGrammar(inner):
                return self._is_regular(inner)
        return False

    def _lexeme(self, constraint: Constraint) -> str:
        rules: list[str] = []
        text = self._expression(constraint, rules)
        return "\n".join(["start: TEXT", f"TEXT: {text}", *rules])

    def _expression(self, constraint: Constraint, rules: list[str]) -> str:
        """Return a regular constraint as Lark writes a lexeme, whose parts are added to `rules`."""
        match constraint:
            case TextGrammar(text):
                return _quoted(text)
            case SequenceGrammar(members):
                return f"({' '.join(self._expression(member, rules) for member in members)})"
            case AnyOfGrammar(members):
                return f"({' | '.join(self._expression(member, rules) for member in members)})"
            case AllOfGrammar(members):
                check_members(members, self._limits)
                return f"({' & '.join(self._expression(member, rules) for member in members)})"
            case RepeatedGrammar(inner):
                return f"({self._expression(inner, rules)}){_count(constraint)}"
        rules.append(f"P{len(rules)}: {self._pattern(constraint)}")
        return f"P{len(rules) - 1}"

    def _append(self, entry: dict[str, Any]) -> str:
        """Return the name of a part, which stands once however often it is used."""
        text = json.dumps(entry, sort_keys=True)
        if text not in self._names:
            self._names[text] = f"part{len(self._parts)}"
            self._parts.append({**entry, "name": self._names[text]})
        return self._names[text]

    def _prefixed(self, constraint: PrefixedGrammar) -> str:
        prefix = _quoted(constraint.prefix) if constraint.prefix else ""
        if constraint.inner is None:
            return f"start: {prefix} TEXT\n{_ANY_TEXT}"
        return f"start: {prefix} @{self._add(constraint.inner)}"

    def _joined(self, constraint: AllOfGrammar) -> str:
        """Return regular expressions as one lexeme, `A & B`: the library's automaton of the intersection."""
        if not is_regular(constraint.members):
            raise GrammarError("inside another constraint AllOf takes regular expressions and choices only")
        return self._lexeme(constraint)

    def _pattern(self, member: Constraint) -> str:
        pattern: str = _entry(self._leaf(member))["lark_grammar"].removeprefix(_START_REGEX)
        return "/(?:)/" if pattern == "//" else pattern  # `//` would start a comment

    def _tagged(self, constraint: TaggedGrammar) -> str:
        _check_tags(constraint.tags, self._limits)
        rules = [rule for number, tag in enumerate(constraint.tags) for rule in self._tag(number, tag)]
        kinds = " | ".join(f"tag{number}" for number in range(len(constraint.tags)))
        return "\n".join([f"start: ({kinds})* TEXT", _ANY_TEXT, *rules])

    def _tag(self, number: int, tag: TagGrammar) -> list[str]:
        """Return the rules of one tag, the free text before it included."""
        first, *rest = self._spelling(tag.begin)
        if any(part.startswith("<[") for part in rest) and not first.startswith("<["):
            raise GrammarError(f"tag {tag.begin!r}: a special token must come first")
        content = self._add(tag.content)
        tail = " ".join([*rest, f"@{content}", *self._spelling(tag.end)])
        if first.startswith("<["):
            return [f"tag{number}: TEXT {first} {tail}"]
        # A lazy lexeme ends at the first place where it can: where the begin of the tag is complete.
        return [f"head{number}[lazy]: TEXT {first}", f"tag{number}: head{number} {tail}"]

    def _spelling(self, text: str) -> list[str]:
        """Return the Lark items of the text of a tag: special tokens by id, what is between them quoted."""
        parts = []
        for part in self._table.split_special(text):
            if isinstance(part, str):
                parts.append(_quoted(part))
                continue
            if part in self._table.eos_ids:
                raise GrammarError(f"tag {text!r} names the end of the text, token {part}")
            self.named.add(part)
            parts.append(f"<[{part}]>")
        return parts


def _count(constraint: RepeatedGrammar) -> str:
    least, most = constraint.least, constraint.most
    if least < 0 or (most is not None and most < max(least, 1)):
        raise GrammarError(f"no text is repeated from {least} to {most} times")
    return f"{{{least},{'' if most is None else most}}}"


def _check_tags(tags: tuple[TagGrammar, ...], limits: CompileLimits) -> None:
    if not tags:
        raise GrammarError("a tagged text needs at least one tag")
    if len(tags) > limits.max_tags:
        raise GrammarError(f"tagged text has {len(tags)} tags; max_tags is {limits.max_tags}")
    begins = [tag.begin for tag in tags]
    for number, begin in enumerate(begins):
        if not begin:
            raise GrammarError("the begin of a tag is empty")
        if clash := next((other for n, other in enumerate(begins) if n != number and begin in other), None):
            raise GrammarError(f"the begin {begin!r} of a tag is inside that of another, {clash!r}")
    for tag in tags:
        if isinstance(tag.content, TaggedGrammar):
            raise GrammarError(f"tag {tag.begin!r} holds a tagged text: tags do not nest")


def _entry(grammar: str) -> dict[str, Any]:
    """Return a grammar text of the library as one entry of its list form."""
    if not grammar.startswith("{"):
        return {"lark_grammar": grammar}
    (entry,) = json.loads(grammar)["grammars"]
    return {key: value for key, value in entry.items() if key != "name" and value is not None}


def _quoted(text: str) -> str:
    """Return text as a Lark literal: escapes are those of JSON."""
    return json.dumps(text)
