"""The four kinds of prompts that the benchmarks share. None of them is in the toy model's training data.

The copy prompt is made of plain sentences, which the toy model repeats without error: what is measured is how fast
copying goes, not whether a toy can do it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Prompt:
    """A chat prompt, or raw text to continue when ``system`` and ``user`` are empty.

    ``more``: user messages that follow, each behind the answer to the one before. ``temperature`` 0 is greedy.
    """

    kind: str
    system: str = ""
    user: str = ""
    raw: str = ""
    schema: str = ""
    max_tokens: int = 160
    more: tuple[str, ...] = ()
    temperature: float = 0.0


COPY_TEXT = (
    "The ferry left the port at noon. The captain noted a light wind. The second engine was stopped for a while. "
    "The crew replaced a filter. The passengers waited on the deck."
)
CODE_TEXT = '''def moving_average(values, width):
    """Return the averages of all windows of the given width."""
    if width <= 0:
        raise ValueError("width must be positive")
    result = []
    total = sum(values[:width])
    for index in range(width, len(values) + 1):
        result.append(total / width)
        if index < len(values):
            total += values[index] - values[index - width]
    return result
'''
PEOPLE = ["name", "age", "city", "email"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
        "email": {"type": "string"},
    },
    "required": PEOPLE,
    "additionalProperties": False,
}
SCHEMA = json.dumps({"type": "array", "items": PERSON, "minItems": 3, "maxItems": 3})
TABLE = (
    "name,age,city,email\n"
    "Odessa Brandt,47,Port Ellery,odessa.brandt@ellery.example\n"
    "Teo Marchetti,29,Tamsin,teo.marchetti@tamsin.example\n"
    "Ingrid Solberg,63,Varnes,ingrid.solberg@varnes.example"
)
PROSE = "The statement raises an exception if the value cannot be converted. Otherwise, it returns"


def prompts() -> list[Prompt]:
    """Copy, JSON under a schema, a code edit, prose."""
    return [
        Prompt("copy", "Repeat the text.", COPY_TEXT, max_tokens=220),
        Prompt("json", "Extract the name, the age, the city and the email.", TABLE, schema=SCHEMA),
        Prompt("code", "Replace width by size.", CODE_TEXT, max_tokens=260),
        Prompt("prose", raw=PROSE, max_tokens=120),
    ]
