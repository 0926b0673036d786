"""Special tokens that show in a text: the marks of calls and of reasoning, which a parser of the text needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from inferd_runtime.session.served_model import ServedModel

ALL = "*"


def shown_decoder(model: ServedModel, names: Sequence[str]) -> Callable[[int], str]:
    """Return a stream decoder that writes special tokens as their names: those in ``names``, all of the model's for ``*``."""
    decode = model.tokenizer.stream()
    shown = {token: model.bytes_of(token).decode() for token in _shown(model, names)}
    if not shown:
        return decode

    is_within = False

    def decoded(token: int) -> str:
        nonlocal decode, is_within
        if token not in shown:
            text = decode(token)
            is_within = not text
            return text
        if is_within:  # a character that nothing completes any more
            decode, is_within = model.tokenizer.stream(), False
        return shown[token]

    return decoded


def _shown(model: ServedModel, names: Sequence[str]) -> set[int]:
    table = model.grammars.table
    if ALL in names:
        return set(table.special_names.values())
    found = {part for name in names for part in table.split_special(name) if isinstance(part, int)}
    return found.difference(model.tokenizer.eos_tokens)
