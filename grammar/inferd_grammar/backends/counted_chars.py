"""Lengths beside patterns and formats, where llguidance cannot tell whether any text has both: it looks at a bounded number of
places, and characters beyond ASCII are several of them.
"""

from __future__ import annotations

from typing import Any

from inferd_grammar.backends.text import UNSURE
from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.regex_syntax import (
    ASCII,
    Chars,
    NotUnderstood,
    RegexNode,
    intersection,
    parse,
    union,
    write,
)
from inferd_grammar.schema import map_schemas

_LENGTHS = ("minLength", "maxLength")
_BOUND = ("pattern", "format")


def is_unsure(refusal: GrammarError) -> bool:
    """Return True if a schema was refused because the library could not tell whether there are any texts."""
    return UNSURE in refusal.reason


def counted(schema: Any) -> Any:
    """Return a rewritten schema whose lengths beside patterns and formats are patterns, of characters of ASCII.

    The same schema where these have no others; else a narrower one.
    """
    return map_schemas(schema, _counted)


def _counted(schema: dict[str, Any]) -> dict[str, Any]:
    bound, lengths = ([key for key in keys if key in schema] for keys in (_BOUND, _LENGTHS))
    chars = _taken(schema["pattern"]) if "pattern" in schema else ASCII
    if not bound or not lengths or not chars:
        return schema
    least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
    times = f"{{{least},{'' if most is None else int(most)}}}"
    parts = [*schema.get("allOf", ()), *({key: schema[key]} for key in bound), {"pattern": f"^{write(chars)}{times}$"}]
    return {key: value for key, value in schema.items() if key not in (*bound, *lengths)} | {"allOf": parts}


def _taken(pattern: str) -> Chars:
    """Return the characters of ASCII that texts may have in which a pattern is found; none where it is not understood."""
    try:
        node, _ = parse(pattern)
    except NotUnderstood:
        return ()
    return intersection(union(_sets(node)), ASCII)


def _sets(node: RegexNode) -> list[Chars]:
    """Return the characters at each place of a text; look-arounds stand at none."""
    kind, parts = node
    match kind:
        case "chars":
            return [parts]
        case "then" | "either":
            return [chars for part in parts for chars in _sets(part)]
        case "loop":
            return _sets(parts)
        case "upto":
            return _sets(parts[0])
        case _:
            return []
