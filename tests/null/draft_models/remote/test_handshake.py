"""The hand-shake: only who knows the key gets through it, from either side, and both then have the same keys and terms."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from inferd_runtime.draft_models.remote.frames import Frame, Kind, MalformedFrame, pack, unpack
from inferd_runtime.draft_models.remote.handshake import (
    NONCE_BYTES,
    VERSION,
    DraftHandshake,
    DraftTerms,
    Hello,
    Outgoing,
    Proof,
    Refused,
    TargetHandshake,
    Welcome,
    refusal_text,
)

KEY = b"the key of both sides, long and random"
TERMS = DraftTerms("small", "abc", 12, [3], 512, 64, 4096, 60.0, "{}", "one")


def admit() -> DraftTerms:
    return TERMS


def frame(message: Outgoing | None) -> Frame:
    assert message is not None
    return Frame(message.kind, 0, message.payload)


def shake(target: TargetHandshake, draft: DraftHandshake) -> None:
    """Carry all frames."""
    message: Outgoing | None = target.begin()
    while message is not None:
        message = target.receive(frame(draft.receive(frame(message))))


def test_both_sides_have_the_same_keys_and_terms() -> None:
    target, draft = TargetHandshake(KEY), DraftHandshake(KEY, admit)
    shake(target, draft)
    assert target.keys == draft.keys
    assert target.keys is not None
    assert target.keys.from_draft != target.keys.from_target
    assert target.terms == TERMS


def test_every_connection_has_keys_of_its_own() -> None:
    keys = []
    for _ in range(3):
        target = TargetHandshake(KEY)
        shake(target, DraftHandshake(KEY, admit))
        keys.append(target.keys)
    assert len(set(keys)) == 3


def test_a_target_without_the_key_is_refused_and_learns_nothing() -> None:
    draft = DraftHandshake(KEY, admit)
    with pytest.raises(Refused, match="the key is wrong"):
        shake(TargetHandshake(b"another key"), draft)
    assert draft.keys is None


def test_a_draft_engine_without_the_key_is_found_out() -> None:
    target, impostor = TargetHandshake(KEY), DraftHandshake(KEY, admit)
    proof = target.receive(frame(impostor.receive(frame(target.begin()))))
    assert proof is not None
    forged = pack(Welcome(bytes(32), pack(TERMS)))
    with pytest.raises(MalformedFrame, match="does not know the key"):
        target.receive(Frame(Kind.WELCOME, 0, forged))
    assert target.terms is None


def test_terms_that_were_changed_on_the_way_are_found_out() -> None:
    target, draft = TargetHandshake(KEY), DraftHandshake(KEY, admit)
    proof = target.receive(frame(draft.receive(frame(target.begin()))))
    welcome = unpack(draft.receive(frame(proof)).payload, Welcome)
    changed = replace(welcome, terms=pack(replace(TERMS, vocab_size=9)))
    with pytest.raises(MalformedFrame):
        target.receive(Frame(Kind.WELCOME, 0, pack(changed)))


def test_a_recorded_hand_shake_is_of_no_use() -> None:
    target, draft = TargetHandshake(KEY), DraftHandshake(KEY, admit)
    hello = target.begin()
    proof = target.receive(frame(draft.receive(frame(hello))))
    again = DraftHandshake(KEY, admit)
    again.receive(frame(hello))
    with pytest.raises(Refused, match="key"):
        again.receive(frame(proof))


def test_a_vocabulary_that_the_target_has_is_not_sent_and_cannot_be_lied_about() -> None:
    target = TargetHandshake(KEY, ["x", "abc"])
    shake(target, DraftHandshake(KEY, admit))
    assert target.terms == replace(TERMS, tokenizer="")
    target, draft = TargetHandshake(KEY, ["x"]), DraftHandshake(KEY, admit)
    proof = unpack(frame(target.receive(frame(draft.receive(frame(target.begin()))))).payload, Proof)
    with pytest.raises(Refused):
        draft.receive(Frame(Kind.PROOF, 0, pack(replace(proof, known=["abc"]))))


def test_what_is_locked_is_all_but_the_session_and_the_text_of_the_tokenizer() -> None:
    assert replace(TERMS, session="two", tokenizer="").locked == TERMS.locked
    for change in ({"vocab_size": 13}, {"checksum": "d"}, {"max_context": 1}, {"eos_tokens": []}, {"model": "b"}):
        assert replace(TERMS, **change).locked != TERMS.locked  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        Outgoing(Kind.PROOF, pack(Proof(bytes(32)))),
        Outgoing(Kind.ASK, b"\x80"),
        Outgoing(Kind.HELLO, b""),
        Outgoing(Kind.HELLO, pack(Hello(VERSION, b"short"))),
        Outgoing(Kind.HELLO, pack(Hello(VERSION, bytes(NONCE_BYTES + 1)))),
    ],
)
def test_anything_but_a_hello_ends_the_connection(message: Outgoing) -> None:
    with pytest.raises(MalformedFrame):
        DraftHandshake(KEY, admit).receive(frame(message))


def test_another_version_is_refused_by_name_from_both_sides() -> None:
    later = pack(Hello(VERSION + 1, bytes(NONCE_BYTES)))
    with pytest.raises(Refused, match=f"version {VERSION}"):
        DraftHandshake(KEY, admit).receive(Frame(Kind.HELLO, 0, later))
    with pytest.raises(Refused, match=f"version {VERSION + 1}"):
        TargetHandshake(KEY).receive(Frame(Kind.CHALLENGE, 0, later))


def test_no_second_proof_and_no_endless_list_of_vocabularies() -> None:
    target, draft = TargetHandshake(KEY), DraftHandshake(KEY, admit)
    proof = target.receive(frame(draft.receive(frame(target.begin()))))
    welcome = draft.receive(frame(proof))
    with pytest.raises(MalformedFrame):
        draft.receive(frame(proof))
    target.receive(frame(welcome))
    with pytest.raises(MalformedFrame):
        target.receive(frame(welcome))
    other = DraftHandshake(KEY, admit)
    other.receive(frame(TargetHandshake(KEY).begin()))
    with pytest.raises(MalformedFrame, match="too many"):
        other.receive(Frame(Kind.PROOF, 0, pack(Proof(bytes(32), ["x"] * 17))))


@given(st.binary(max_size=3000))
def test_a_refusal_can_be_shown_whatever_it_says(payload: bytes) -> None:
    text = refusal_text(payload)
    assert text.isprintable()
    assert len(text) <= 200
