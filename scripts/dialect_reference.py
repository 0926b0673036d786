"""The tables in docs/clients, from the code: ``python scripts/dialect_reference.py`` writes them anew.

A page has a table of fields between ``<!-- fields NAME -->`` and ``<!-- end -->``, one of routes behind ``<!-- routes TAG -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from inferd_runtime.server.dialects.anthropic.fields import COUNT_TOKENS_FIELDS, MESSAGES_FIELDS
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.chat_fields import CHAT_FIELDS
from inferd_runtime.server.dialects.openai.completion_fields import COMPLETION_FIELDS
from inferd_runtime.server.dialects.openai.embeddings import EMBEDDING_FIELDS
from inferd_runtime.server.dialects.openai.tokens import DETOKENIZE_FIELDS, TOKENIZE_FIELDS
from inferd_runtime.server.dialects.responses.fields import INPUT_TOKENS_FIELDS, RESPONSES_FIELDS
from inferd_runtime.server.openapi.operations import OPERATIONS

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "clients"
TABLES: Mapping[str, FieldTable] = {
    "messages": MESSAGES_FIELDS,
    "count_tokens": COUNT_TOKENS_FIELDS,
    "responses": RESPONSES_FIELDS,
    "input_tokens": INPUT_TOKENS_FIELDS,
    "chat": CHAT_FIELDS,
    "completions": COMPLETION_FIELDS,
    "embeddings": EMBEDDING_FIELDS,
    "tokenize": TOKENIZE_FIELDS,
    "detokenize": DETOKENIZE_FIELDS,
}
PLACE = re.compile(r"(<!-- (fields|routes) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return a page's text with its tables as they have to be. Raises KeyError for a name that has none."""
    return PLACE.sub(_written, page)


def _written(found: re.Match[str]) -> str:
    written = table(TABLES[found[3]]) if found[2] == "fields" else routes(found[3])
    return found[1] + written + found[4]


def routes(tag: str) -> str:
    """Return a table of the routes with a tag. Raises KeyError for a tag that none has."""
    lines = [f"| `{one.method} {one.path}` | {one.summary} |\n" for one in OPERATIONS if one.tag == tag]
    if not lines:
        raise KeyError(tag)
    return "| route | |\n|---|---|\n" + "".join(lines)


def table(fields: FieldTable) -> str:
    """Return a table: what works first, in the order in which it is declared."""
    ordered = sorted(fields.fields, key=lambda field: field.only is not None)
    return "| field | | |\n|---|---|---|\n" + "".join(map(_line, ordered))


def _line(field: RequestField) -> str:
    standing = field.standing
    if field.only:
        standing += " " + " or ".join(f"`{json.dumps(value)}`" for value in field.only)
    return f"| `{field.name}` | {standing} | {field.note} |\n"


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.md")):
        path.write_text(with_tables(path.read_text()))
