"""llama.cpp's grammar notation (GBNF), read here and written out for llguidance."""

from inferd_grammar.gbnf.parse import parse_gbnf
from inferd_grammar.gbnf.write import gbnf_to_lark

__all__ = ["gbnf_to_lark", "parse_gbnf"]
