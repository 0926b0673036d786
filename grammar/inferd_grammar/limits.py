"""Caps that are checked before a constraint reaches a library, because no library can be stopped once it compiles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompileLimits:
    """Largest constraint that is compiled. Each refusal names the limit and the value found.

    Fields:
        max_bytes: UTF-8 bytes of a schema, of a Lark grammar, or of all options of a choice together.
        max_depth: nesting of JSON arrays and objects in a schema.
        max_enum: members of one `enum`, or options of a choice.
        max_all_of: patterns in one `allOf`, or members of an intersection (llguidance needs more than 20 s for 50 patterns).
        max_branches: branches of one `allOf`.
        max_multiple_of: largest `multipleOf`, its decimal point taken away (0.25 counts as 25), also for the least
            common multiple of those that must hold together (llguidance needs 6.5 s and 280 MB at 10**6).
        max_regex: characters of one regular expression, in a schema or alone.
        max_rules: rules of one Lark or GBNF grammar (llguidance overflows its stack, and with it the process, on a
            chain of 3,000).
        max_tags: tags of a tagged text (the lexer of llguidance gives up at 500 that begin with 75 characters each).
        max_pointers: characters of the JSON pointers of all values in a schema together: a key counts for all that is under it.
        max_checked: bytes of the keywords that masks do not hold, with their JSON pointers, as JSON; where it were more, the
            pointers lead to schemas around them.
    """

    max_bytes: int = 2_000_000
    max_depth: int = 128
    max_enum: int = 10_000
    max_all_of: int = 16
    max_branches: int = 256
    max_multiple_of: int = 100_000
    max_regex: int = 10_000
    max_rules: int = 1000
    max_tags: int = 400
    max_pointers: int = 16_000_000
    max_checked: int = 500_000


DEFAULT_LIMITS = CompileLimits()
