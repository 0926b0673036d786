"""Token healing: how far a prompt is cut back, and that the cut text is written again."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from inferd_grammar import ExactGrammar, GrammarCompiler, PrefixedGrammar, RegexGrammar, TokenTable
from inferd_grammar.conformance.matcher_checks import legal_ids
from inferd_grammar.healing import Healed, Healer


@pytest.fixture(scope="module")
def healer(table: TokenTable) -> Healer:
    return Healer(table)


def spelt(table: TokenTable, tokens: tuple[int, ...]) -> bytes:
    return b"".join(table.tokens[token] for token in tokens)


@pytest.mark.parametrize("text", ["the quick bro", "value tr", '{"name":"em', "no such ending zzz!", "é 🐢"])
def test_what_is_cut_is_the_prefix(healer: Healer, tokenizer: Tokenizer, table: TokenTable, text: str) -> None:
    tokens = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
    for back in range(6):
        healed = healer.heal(tokens, back=back)
        assert healed.tokens == tokens[: len(healed.tokens)]
        assert max(1, len(tokens) - back) <= len(healed.tokens)
        assert spelt(table, tokens) == spelt(table, healed.tokens) + healed.prefix.encode()
        longer = [
            t for t in table.tokens if t.startswith(healed.prefix.encode()) and len(t) > len(healed.prefix.encode())
        ]
        assert longer or not healed.prefix


def test_a_split_word_is_healed(
    healer: Healer, tokenizer: Tokenizer, compiler: GrammarCompiler, table: TokenTable
) -> None:
    """The whole word is one token, the prompt ends inside it: the token becomes legal again."""
    word = max((t for t in table.tokens if t.isalpha() and t.isascii()), key=len)
    prompt = [table.tokens.index(b"x"), table.tokens.index(word[:1]), table.tokens.index(word[1:2])]
    healed = healer.heal(prompt)
    assert (healed.tokens, healed.prefix) == (tuple(prompt[:1]), word[:2].decode())
    constraint = healed.constraint(RegexGrammar(word[2:].decode() + "[0-9]+"))
    assert constraint is not None
    matcher = compiler.compile(constraint).matcher()
    assert table.tokens.index(word) in legal_ids(matcher, table)
    assert matcher.accept([table.tokens.index(word)]) == 1
    assert set(b"".join(table.tokens[i] for i in legal_ids(matcher, table))) <= set(b"0123456789")


def test_special_tokens_and_the_first_token_are_never_cut(
    healer: Healer, tokenizer: Tokenizer, table: TokenTable
) -> None:
    start, letter = tokenizer.token_to_id("<|im_start|>"), table.tokens.index(b"t")
    assert healer.heal([letter]) == Healed((letter,), "")
    assert healer.heal([letter, start]) == Healed((letter, start), "")
    assert healer.heal([letter, start, letter]).tokens == (letter, start)
    assert healer.heal([]) == Healed((), "")


def test_characters_are_not_cut_in_two(healer: Healer, table: TokenTable) -> None:
    """A token that begins inside a character is cut only together with the rest of it."""
    tokens = [table.tokens.index(b"x"), *(table.tokens.index(bytes([byte])) for byte in "🐢".encode())]
    for back in range(1, 4):
        assert healer.heal(tokens, back=back).prefix == ""
    assert healer.heal(tokens, back=4).prefix in ("", "🐢")


def test_nothing_cut_leaves_the_constraint_alone() -> None:
    inner = ExactGrammar(RegexGrammar("a"))
    assert Healed((1,), "").constraint(inner) is inner
    assert Healed((1,), "").constraint() is None
    assert Healed((1,), "ab").constraint(inner) == PrefixedGrammar("ab", inner)


def test_nothing_is_cut_where_nothing_may_be(healer: Healer) -> None:
    assert healer.heal([0, 1, 2], back=0) == Healed((0, 1, 2), "")


@pytest.mark.parametrize(
    ("tokens", "back", "reason"), [([10**9], 1, "outside"), ([-1, 1], 1, "outside"), ([1], -1, "back")]
)
def test_wrong_arguments_are_named(healer: Healer, tokens: list[int], back: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        healer.heal(tokens, back=back)


def test_a_part_of_a_character_is_not_healed_alone(table: TokenTable) -> None:
    """Its bytes begin longer tokens, but they are no text that a constraint could begin with."""
    known = sorted({token for token in table.tokens if token})
    longer = {token[:1] for token in known if len(token) > 1}
    part = next(token for token in known if len(token) == 1 and token[0] >= 0xC2 and token in longer)
    text = table.tokens.index(b"x"), table.tokens.index(part)
    assert Healer(table).heal(text) == Healed(text, "")
