"""Frames: whole ones come through pieces of any size, and nothing else does."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DropDraft
from inferd_runtime.draft_models.remote.frames import (
    HEADER,
    SEAL_BYTES,
    Frame,
    FrameReader,
    FrameWriter,
    Kind,
    MalformedFrame,
    pack,
    unpack,
)
from inferd_runtime.draft_models.remote.handshake import DraftTerms, Hello, Proof, Welcome

KEY = bytes(range(32))
MOST = 4096
MESSAGES = st.lists(
    st.tuples(st.sampled_from(Kind), st.binary(max_size=200), st.integers(0, (1 << 32) - 1)), max_size=6
)


def pair(key: bytes = KEY) -> tuple[FrameWriter, FrameReader]:
    writer, reader = FrameWriter(), FrameReader()
    writer.rekey(key)
    reader.rekey(key, MOST)
    return writer, reader


def read_all(reader: FrameReader, data: bytes, size: int) -> list[Frame]:
    frames = []
    for start in range(0, len(data), size):
        reader.feed(data[start : start + size])
        while (frame := reader.next()) is not None:
            frames.append(frame)
    return frames


@given(messages=MESSAGES, size=st.integers(1, 300))
def test_frames_come_whole_and_in_order_from_pieces_of_any_size(
    messages: list[tuple[Kind, bytes, int]], size: int
) -> None:
    writer, reader = pair()
    data = b"".join(writer.write(kind, payload, ticket) for kind, payload, ticket in messages)
    assert read_all(reader, data, size) == [Frame(kind, ticket, payload) for kind, payload, ticket in messages]
    assert not reader.inside


@given(payload=st.binary(max_size=50), place=st.integers(0), change=st.integers(1, 255))
def test_a_frame_that_was_changed_anywhere_never_comes_through(payload: bytes, place: int, change: int) -> None:
    writer, reader = pair()
    data = bytearray(writer.write(Kind.ASK, payload, 7))
    data[place % len(data)] ^= change
    reader.feed(bytes(data))
    try:
        assert reader.next() is None, "its length says that more comes"
    except MalformedFrame:
        return


@pytest.mark.parametrize("order", [[0, 0], [1], [0, 2], [2, 1, 0]])
def test_frames_that_are_repeated_left_out_or_moved_are_malformed(order: list[int]) -> None:
    writer, reader = pair()
    frames = [writer.write(Kind.ASK, b"%d" % at) for at in range(3)]
    with pytest.raises(MalformedFrame, match="seal"):
        read_all(reader, b"".join(frames[at] for at in order), 1 << 10)


def test_the_frames_of_another_connection_or_direction_are_malformed() -> None:
    writer, _ = pair(b"another key of this length here.")
    _, reader = pair()
    reader.feed(writer.write(Kind.PING))
    with pytest.raises(MalformedFrame, match="seal"):
        reader.next()


@given(data=st.binary(max_size=400), size=st.integers(1, 100))
def test_noise_is_malformed_or_waits_for_more_and_is_never_a_frame(data: bytes, size: int) -> None:
    _, reader = pair()
    try:
        assert read_all(reader, data, size) == []
    except MalformedFrame:
        return


def test_a_length_is_refused_before_anything_of_that_length_is_kept() -> None:
    _, reader = pair()
    reader.feed(HEADER.pack(MOST + 1, Kind.ASK, 1))
    with pytest.raises(MalformedFrame, match="4097 bytes, where 4096 are allowed"):
        reader.next()
    writer, reader = pair()
    reader.feed(writer.write(Kind.ASK, bytes(MOST)))
    assert reader.next() is not None


def test_an_unknown_kind_is_malformed() -> None:
    writer, reader = pair()
    reader.feed(writer.write(99, b""))  # type: ignore[arg-type]
    with pytest.raises(MalformedFrame, match="kind 99"):
        reader.next()


def test_a_frame_costs_a_header_and_a_seal() -> None:
    assert len(FrameWriter().write(Kind.PING)) == HEADER.size + SEAL_BYTES == 25


@pytest.mark.parametrize("kind", [AskDraft, DraftAnswer, DropDraft, Hello, Proof, Welcome, DraftTerms])
def test_noise_in_a_payload_is_malformed_and_no_other_error(kind: type) -> None:
    @given(payload=st.binary(max_size=120))
    def check(payload: bytes) -> None:
        try:
            unpack(payload, kind)
        except MalformedFrame:
            return

    check()
    with pytest.raises(MalformedFrame):
        unpack(b"\x91" * 100_000, kind)


@given(st.lists(st.integers(0, 1 << 20), max_size=20), st.integers(1, 64))
def test_a_request_is_the_same_on_the_other_side(tokens: list[int], count: int) -> None:
    request = AskDraft(1, 0, tokens, count, 0.5, None, 0.25)
    assert unpack(pack(request), AskDraft) == request
