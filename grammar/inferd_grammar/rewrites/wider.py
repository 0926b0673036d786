"""Wider forms of a schema that no grammar holds as it is: what they leave out is held, or checked, elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from inferd_grammar.errors import GrammarError
from inferd_grammar.rewrites.base import Schema
from inferd_grammar.rewrites.inline import Joiner, loosened, parted
from inferd_grammar.rewrites.rewrite import Rewritten, rewrite

Form = Callable[[], Rewritten]
"""Makes a form. Raises GrammarError where there is none."""


def tight_forms(
    schema: Any, without_empty: Callable[[Rewritten], Rewritten], *, and_loosened: bool = False
) -> Iterator[Form]:
    """Yield the rewritten schema less what has no rewrite, and others that say as much; `and_loosened`, some that say less, too:
    without patterns of names, which the library wants to be disjoint, without counts of properties, and, the last one, without
    the references that it would have to write out.

    `without_empty` takes out what no value satisfies. Yields nothing for a schema that takes too much to rewrite.
    """
    changed = _less(schema)
    if changed is None:
        return
    yield lambda: changed
    named = _less(schema, always=True) if changed.schema is schema else changed
    if named is None:
        return
    yield lambda: without_empty(named)
    with suppress(GrammarError):
        joined = named._replace(schema=inlined(named.schema))
        yield lambda: without_empty(joined)
        if and_loosened:
            yield lambda: without_empty(joined._replace(schema=loosened(joined.schema)))
    if and_loosened:
        yield lambda: without_empty(named._replace(schema=loosened(parted(named.schema))))


def without_branches(schema: Any) -> Rewritten:
    """Return the loosest form, in which no branches are left for the library to multiply. Raises GrammarError."""
    changed = rewrite(schema, lenient=True, always=True)
    return changed._replace(schema=loosened(parted(changed.schema, alone=True)))


def inlined(schema: Schema) -> Schema:
    """Return a translated schema with definitions in the place of references that stand beside something."""
    return Joiner(schema).document() if isinstance(schema, dict) else schema


def _less(schema: Any, *, always: bool = False) -> Rewritten | None:
    try:
        return rewrite(schema, lenient=True, always=always)
    except GrammarError:
        return None
