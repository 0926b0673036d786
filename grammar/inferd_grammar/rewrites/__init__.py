"""Sound rewrites: a schema that a matcher would refuse -> an equal or narrower one that it takes.

`rewrite` is the entry. Each module holds the rewrites of one family of keywords as small functions, with the reason why
they are sound; `translate.py` applies them to every subschema, under `$ref` and `$defs` too. docs/grammar.md has the
table.
"""

from inferd_grammar.rewrites.base import CannotRewrite
from inferd_grammar.rewrites.dialect import KEYWORDS
from inferd_grammar.rewrites.rewrite import Rewritten, rewrite

__all__ = ["KEYWORDS", "CannotRewrite", "Rewritten", "rewrite"]
