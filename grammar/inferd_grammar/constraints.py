"""Constraints that a caller may ask for. Plain frozen dataclasses: nothing is checked before `GrammarCompiler.compile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class JsonSchemaGrammar:
    """JSON text that is valid under `schema`: a schema as a mapping, as a bool, or as its JSON text.

    The text is compact (no white space outside strings), keys come in schema order. With mode "strict" a keyword that
    cannot be enforced is refused at compile time. With "best_effort" it is left out of the masks, named in
    `Compiled.checked`, and the finished text must be given to `Compiled.validate`.

    `soft_max_length` and `soft_max_items` end strings and arrays for which the schema says no end (0: it stays open).
    """

    schema: Mapping[str, Any] | bool | str
    mode: Literal["strict", "best_effort"] = "strict"
    soft_max_length: int = 0
    soft_max_items: int = 0


@dataclass(frozen=True)
class RegexGrammar:
    """Text that matches `pattern` as a whole. Rust `regex` syntax: no look-around, no back references.

    `\\w` and `\\s` mean what they mean in Python's `re`. Refused by name is what Python reads as other texts: sets and classes
    inside of a class, and counts of counts (`a++`).
    """

    pattern: str


@dataclass(frozen=True)
class AnyJsonGrammar:
    """Any one JSON value, compact, of any depth."""


@dataclass(frozen=True)
class ChoiceGrammar:
    """Exactly one of `options`. An option may be empty or a prefix of another one."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class LarkGrammar:
    """Text of a context-free grammar in llguidance's Lark variant, rule `start`.

    Refused by name: references to special tokens (`<|name|>`, `<[id]>`), to other grammars (`@name`), `%llguidance`
    options, and the rule attributes `max_tokens`, `stop`, `temperature`. Names of captures and empty options change nothing.
    """

    text: str


@dataclass(frozen=True)
class GbnfGrammar:
    """Text of a context-free grammar in llama.cpp's notation (an EBNF, `::=`), rule `root`."""

    text: str


@dataclass(frozen=True)
class TagGrammar:
    """One kind of tagged span: `begin`, then text of `content`, then `end`.

    `begin` and `end` are plain text in which the names of special tokens stand for these tokens, as they do for the
    tokenizer: `"<tool_call>\\n"` is one special token and a line feed where the tokenizer has that token, and twelve
    characters where it has not.
    """

    begin: str
    content: Constraint
    end: str


@dataclass(frozen=True)
class TaggedGrammar:
    """Free text with tagged spans, e.g. tool calls: any text; where the `begin` of a tag is complete its content must
    follow, then its `end`, then free text again. The text may end wherever it is free.

    Refused: no tags, an empty `begin`, one `begin` inside another, a tagged text inside a tag.
    """

    tags: tuple[TagGrammar, ...]


@dataclass(frozen=True)
class AllOfGrammar:
    """Text that satisfies all `members` at once (intersection).

    Regular expressions and choices are joined into one automaton, which knows its dead ends. Other kinds run side by
    side: a token is legal if it is for each of them, so members that contradict each other further on lead to a state
    without a legal token, reported as GrammarFailure when it is reached.
    """

    members: tuple[Constraint, ...]


@dataclass(frozen=True)
class ExactGrammar:
    """`inner` with exact masks: every token whose bytes continue the text is legal, whatever the split.

    Without it, forced bytes are masked to their canonical tokens, which is what a model expects to see.
    """

    inner: Constraint


@dataclass(frozen=True)
class PrefixedGrammar:
    """`prefix`, then text of `inner` (any text for None), with exact masks: a token may cover the border.

    For token healing: see `inferd_grammar.healing`.
    """

    prefix: str
    inner: Constraint | None = None


@dataclass(frozen=True)
class TextGrammar:
    """Exactly `text`, in which the names of special tokens stand for these tokens."""

    text: str


@dataclass(frozen=True)
class UntilGrammar:
    """Any text up to the first `end` in it, and that. The names of special tokens in `end` stand for these tokens.

    With `inner`, a regular expression, a choice, a Lark grammar or the schema of a text, which then stands without quotes, the
    text before the end is one of its own. Refused by name is a Lark grammar in whose texts the first two characters of the end
    may stand side by side, such as the `</` of `</value>`.
    """

    end: str
    inner: Constraint | None = None


@dataclass(frozen=True)
class JsonTextGrammar:
    """A JSON string whose value is a text of `inner`: a regular expression, a choice, a Lark grammar, or an intersection of the
    first two.

    What JSON has to escape is written in the shortest way (`\\n`, `\\u001f`), and nothing else is. A Lark grammar is read as the
    Lark library does, without what llguidance knows beyond it; what it ignores may stand at the end, too.
    """

    inner: Constraint


@dataclass(frozen=True)
class SequenceGrammar:
    """Text of each of `members`, one behind the other. None of them may hold tagged text, which has no end of its own."""

    members: tuple[Constraint, ...]


@dataclass(frozen=True)
class AnyOfGrammar:
    """Text of one of `members`."""

    members: tuple[Constraint, ...]


@dataclass(frozen=True)
class RepeatedGrammar:
    """Texts of `inner`, one behind the other: at least `least` of them, at most `most` (None: any number)."""

    inner: Constraint
    least: int = 1
    most: int | None = None


Constraint = (
    JsonSchemaGrammar
    | RegexGrammar
    | AnyJsonGrammar
    | ChoiceGrammar
    | LarkGrammar
    | GbnfGrammar
    | TaggedGrammar
    | AllOfGrammar
    | ExactGrammar
    | PrefixedGrammar
    | TextGrammar
    | UntilGrammar
    | JsonTextGrammar
    | SequenceGrammar
    | AnyOfGrammar
    | RepeatedGrammar
)
