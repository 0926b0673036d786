"""The vocabulary as one value."""

from __future__ import annotations

import pytest

from inferd import Model
from inferd.protocol import GetVocabulary, PackedVocabulary
from inferd.transport import current_transport
from inferd.vocabulary import TokenVocabulary
from inferd_runtime.testing.transport import DirectTransport, run_program


def test_every_token_and_the_special_ones() -> None:
    async def program() -> None:
        model = await Model.load()
        vocabulary = await model.tokenizer.vocabulary()
        assert len(vocabulary) == model.vocab_size == len(list(vocabulary))
        assert [vocabulary[token] for token in b"hi"] == [b"h", b"i"]
        assert list(vocabulary)[:256] == [bytes([token]) for token in range(256)] == list(vocabulary[:256])
        for name, token in vocabulary.special.items():
            assert vocabulary[token] == name.encode()
        assert set(model.eos_tokens) <= set(vocabulary.special.values())
        for outside in (-1, len(vocabulary)):
            with pytest.raises(IndexError, match=f"token id {outside} is outside"):
                vocabulary[outside]

    run_program(program)


def test_it_is_fetched_once_per_connection() -> None:
    async def program() -> None:
        first = await (await Model.load()).tokenizer.vocabulary()
        assert await (await Model.load()).tokenizer.vocabulary() is first
        transport = current_transport()
        assert isinstance(transport, DirectTransport)
        assert sum(isinstance(request, GetVocabulary) for request in transport.requests) == 1

    run_program(program)


def test_tokens_of_any_length_come_apart_again() -> None:
    pieces = [b"", b"a", bytes(70_000), b"", b"\xff\xfe"]
    lengths = b"".join(len(piece).to_bytes(4, "little") for piece in pieces)
    assert list(TokenVocabulary(PackedVocabulary(b"".join(pieces), lengths, [], []))) == pieces
