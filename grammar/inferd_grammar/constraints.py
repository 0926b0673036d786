"""What a caller may ask for. Plain frozen dataclasses: nothing is checked before `GrammarCompiler.compile`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class JsonSchema:
    """JSON text that is valid under `schema`: a schema as a mapping, as a bool, or as its JSON text.

    The text is compact (no white space outside strings), keys come in schema order. With mode "strict" a keyword that
    cannot be enforced is refused at compile time. With "best_effort" it is left out of the masks, named in
    `Compiled.checked`, and the finished text must be given to `Compiled.validate`.
    """

    schema: Mapping[str, Any] | bool | str
    mode: Literal["strict", "best_effort"] = "strict"


@dataclass(frozen=True)
class Regex:
    """Text that matches `pattern` as a whole. Rust `regex` syntax: no look-around, no back references."""

    pattern: str


@dataclass(frozen=True)
class AnyJson:
    """Any one JSON value, compact, of any depth."""


@dataclass(frozen=True)
class Choice:
    """Exactly one of `options`. An option may be empty or a prefix of another one."""

    options: tuple[str, ...]


@dataclass(frozen=True)
class Lark:
    """Text of a context-free grammar in llguidance's Lark variant, rule `start`.

    Refused by name: references to special tokens (`<|name|>`, `<[id]>`) and the rule attributes `max_tokens`, `stop`,
    `temperature`, `capture`.
    """

    text: str


Constraint = JsonSchema | Regex | AnyJson | Choice | Lark
