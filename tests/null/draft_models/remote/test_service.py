"""A draft engine under attack: strangers, half-open connections, garbage, floods; and what none of it does to its targets."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import trustme
from draft_engines import KEY, SECONDS, TERMS, Engine, connected
from waiting import wait_until

from inferd.protocol import Unavailable
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.messages import AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.draft_models.remote.frames import HEADER, Frame, FrameReader, FrameWriter, Kind, pack, unpack
from inferd_runtime.draft_models.remote.handshake import TargetHandshake
from inferd_runtime.draft_models.remote.link_thread import LinkTarget
from inferd_runtime.draft_models.remote.network_drafts import NetworkDrafts
from inferd_runtime.draft_models.remote.service import MOST_PENDING, MOST_UNSENT, REQUEST_BYTES
from inferd_runtime.draft_models.remote.sessions import HalfOpen, SessionTable
from inferd_runtime.draft_models.remote.streams import FrameStream
from inferd_runtime.engine.sampling.host_sampling import RowSampler

MakeHost = Callable[..., DraftHost]
SPEC = DraftSpec("tenant", RowSampler(0.0, 0, 1.0, 0.0, 0), 12)
PATIENCE = 0.5


@pytest.fixture
def engine(make_host: MakeHost) -> Iterator[Engine]:
    engine = Engine(make_host(0), handshake_seconds=PATIENCE, half_open=HalfOpen(8, 6), sessions=SessionTable(2, 4))
    yield engine
    engine.close()


def stranger(engine: Engine) -> socket.socket:
    return socket.create_connection(("127.0.0.1", engine.port), SECONDS)


def closed(connection: socket.socket) -> bool:
    """Read until the other side closes; its answers do not matter."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    connection.close()
    return True


def drafted(drafts: NetworkDrafts, sequence: int = 1) -> DraftAnswer:
    answers: list[DraftAnswer] = []
    drafts.ask(AskDraft(sequence, 0, [1, 2, 3], 4, spec=SPEC), answers.append)
    wait_until(lambda: drafts.poll() or bool(answers))
    wait_until(lambda: bool(answers) or (drafts.poll() and bool(answers)))
    return answers[0]


class Insider:
    """A target that knows the key and keeps to nothing else."""

    def __init__(self, engine: Engine, key: bytes = KEY) -> None:
        self.connection = stranger(engine)
        self.writer, self.reader = FrameWriter(), FrameReader()
        shake = TargetHandshake(key, ["same"])
        message = shake.begin()
        while message is not None:
            self.send(message.kind, message.payload)
            message = shake.receive(self.receive())  # type: ignore[assignment]
        assert shake.keys is not None
        self.writer.rekey(shake.keys.from_target)
        self.reader.rekey(shake.keys.from_draft, 1 << 20)

    def send(self, kind: Kind, payload: bytes = b"", ticket: int = 0) -> None:
        self.connection.sendall(self.writer.write(kind, payload, ticket))

    def flood(self, payload: bytes, count: int) -> None:
        for ticket in range(count):
            self.send(Kind.ASK, payload, ticket)

    def receive(self) -> Frame:
        while (frame := self.reader.next()) is None:
            data = self.connection.recv(1 << 16)
            assert data, "closed"
            self.reader.feed(data)
        return frame


@pytest.mark.parametrize(
    "bytes_sent",
    [
        b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(500), bytes(100), b"\xff" * 5000,
        HEADER.pack(1 << 31, Kind.HELLO, 0), HEADER.pack(10, Kind.HELLO, 0) + b"short",
        FrameWriter().write(Kind.ASK, pack(AskDraft(1, 0, [1], 1))), FrameWriter().write(Kind.HELLO, b"\x80"),
    ],
)  # fmt: skip
def test_what_a_stranger_sends_ends_its_connection_in_time_and_nothing_else(engine: Engine, bytes_sent: bytes) -> None:
    drafts = connected(engine.port)
    connection = stranger(engine)
    connection.sendall(bytes_sent)
    assert closed(connection)
    assert len(drafted(drafts).tokens) == 4
    drafts.close()


def test_a_hand_shake_that_is_sent_drop_by_drop_has_an_end(engine: Engine) -> None:
    connection = stranger(engine)
    hello = TargetHandshake(KEY).begin()
    connection.sendall(FrameWriter().write(hello.kind, hello.payload)[:-1])
    assert closed(connection)


def test_half_open_connections_are_few_for_each_address_and_make_room_again(engine: Engine) -> None:
    drafts = connected(engine.port)
    flood = [stranger(engine) for _ in range(40)]
    assert len(drafted(drafts).tokens) == 4, "who is in stays in"
    assert all(map(closed, flood))
    drafts.close()
    wait_until(lambda: engine.service.sessions == 0)
    connected(engine.port).close()


def test_sessions_are_bounded_and_one_that_ends_makes_room(engine: Engine) -> None:
    first, second = connected(engine.port), connected(engine.port)
    third = NetworkDrafts(LinkTarget("127.0.0.1", engine.port, KEY))
    wait_until(lambda: "2 sessions are open" in third._link._reported)
    assert third.first_terms(0.0) is None, "it is not there, and no reason to give up"
    first.close()
    wait_until(lambda: third.poll() and third.terms is not None, "it does not get the room")
    second.close()
    third.close()


def test_a_wrong_key_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(Unavailable, match="the key is wrong"):
        connected(engine.port, key=b"another key of the same length or so")
    assert engine.service.sessions == 0


@pytest.mark.parametrize(
    "request_sent",
    [
        AskDraft(1, 0, [1], 1 << 40), AskDraft(1, 0, [1] * 600, 1), AskDraft(1, -1, [1], 1), AskDraft(-1, 0, [1], 1),
        AskDraft(1, 0, [1], 1, spec=replace(SPEC, probabilities=True)), AskDraft(1, 0, [1], 1, spec=replace(SPEC, width=0)),
    ],
)  # fmt: skip
def test_a_request_that_no_target_sends_ends_its_session_and_no_other(engine: Engine, request_sent: AskDraft) -> None:
    drafts, insider = connected(engine.port), Insider(engine)
    insider.send(Kind.ASK, pack(request_sent), 1)
    assert closed(insider.connection)
    wait_until(lambda: engine.service.sessions == 1)
    assert len(drafted(drafts).tokens) == 4
    drafts.close()


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.PROOF, Kind.WELCOME, Kind.ANSWER, Kind.PONG, Kind.REFUSED])
def test_a_frame_that_does_not_belong_there_ends_the_session(engine: Engine, kind: Kind) -> None:
    insider = Insider(engine)
    insider.send(kind, b"\x80")
    assert closed(insider.connection)
    wait_until(lambda: engine.service.sessions == 0)


def test_a_frame_longer_than_the_terms_say_ends_the_session_before_it_is_read(engine: Engine) -> None:
    insider = Insider(engine)
    insider.connection.sendall(HEADER.pack(TERMS.most_bytes + 1, Kind.ASK, 1))
    assert closed(insider.connection)


def test_one_target_does_not_reach_anothers_sequences(engine: Engine) -> None:
    first, second = Insider(engine), Insider(engine)
    first.send(Kind.ASK, pack(AskDraft(1, 0, [1, 2], 2, spec=SPEC)), 5)
    assert unpack(first.receive().payload, DraftAnswer).tokens
    second.send(Kind.ASK, pack(AskDraft(1, 2, [3], 2)), 6)
    assert unpack(second.receive().payload, DraftAnswer).lost
    second.send(Kind.DROP, b"\x81\xa8sequence\x01")
    second.send(Kind.PING)
    assert second.receive().kind is Kind.PONG
    assert len(engine.host) == 1
    for insider in (first, second):
        insider.send(Kind.END)
        assert closed(insider.connection)
    wait_until(lambda: not len(engine.host))


def test_a_session_keeps_so_many_sequences_and_forgets_the_oldest(engine: Engine) -> None:
    insider = Insider(engine)
    for number in range(12):
        insider.send(Kind.ASK, pack(AskDraft(number, 0, [1, 2], 2, spec=SPEC)), number)
        assert insider.receive().ticket == number
    wait_until(lambda: len(engine.host) == 4)
    insider.send(Kind.ASK, pack(AskDraft(0, 2, [1], 2)), 99)
    assert unpack(insider.receive().payload, DraftAnswer).lost
    insider.connection.close()
    wait_until(lambda: not len(engine.host), "what a target leaves behind is dropped")


def test_a_target_that_lost_its_connection_finds_its_keys_and_values_again(engine: Engine) -> None:
    request, fed = AskDraft(1, 0, [at % 12 for at in range(200)], 2, spec=SPEC), []
    for _ in range(2):
        insider, before = Insider(engine), engine.host.engine.driver.tokens_fed  # type: ignore[attr-defined]
        insider.send(Kind.ASK, pack(request), 1)
        assert len(unpack(insider.receive().payload, DraftAnswer).tokens) == 2
        insider.connection.close()
        wait_until(lambda: not len(engine.host))
        fed.append(engine.host.engine.driver.tokens_fed - before)  # type: ignore[attr-defined]
    assert fed[0] >= 200
    assert fed[1] < 20, "the prefix index has them"


def test_tls_is_verified_and_nothing_is_said_without_it(make_host: MakeHost) -> None:
    authority, other = trustme.CA(), trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    engine = Engine(make_host(0), tls=served, handshake_seconds=PATIENCE)
    trusting, doubting = ssl.create_default_context(), ssl.create_default_context()
    authority.configure_trust(trusting)
    other.configure_trust(doubting)
    drafts = connected(engine.port, tls=trusting)
    assert len(drafted(drafts).tokens) == 4
    drafts.close()
    with pytest.raises(Unavailable, match=r"(?i)certificate.verify.failed"):
        connected(engine.port, tls=doubting)
    assert closed(stranger(engine)), "half of a TLS handshake has an end"
    plain = stranger(engine)
    hello = TargetHandshake(KEY).begin()
    plain.sendall(FrameWriter().write(hello.kind, hello.payload))
    assert closed(plain)
    wait_until(lambda: engine.service.sessions == 0)
    engine.close()


def test_the_terms_are_locked_at_the_first_hand_shake(make_host: MakeHost) -> None:
    engine = Engine(make_host(0))
    drafts = connected(engine.port)
    engine.close()
    wait_until(lambda: drafts.poll() and not drafts._connection)
    engine = Engine(make_host(0), port=engine.port, terms=replace(TERMS, checksum="other", max_context=256))
    wait_until(lambda: drafts.poll() and "checksum, max_context differ" in drafts._refusal)
    assert drafts.counters.connections == 1
    engine.close()
    engine = Engine(make_host(0), port=engine.port)
    wait_until(lambda: drafts.poll() and drafts.counters.connections == 2)
    assert len(drafted(drafts).tokens) == 4
    drafts.close()
    engine.close()


class Liar:
    """In place of a draft model: answers whatever the test says."""

    overlaps, round_trip, waits_on = True, 0.0, ()

    def __init__(self) -> None:
        self.answer: Any = DraftAnswer()

    def ask(self, request: AskDraft, done: Callable[[Any], None]) -> None:
        done(self.answer)

    def drop(self, sequence: int) -> None: ...

    def poll(self) -> bool:
        return False

    def close(self) -> None: ...


@pytest.mark.parametrize("tokens", [500, 0])
def test_requests_that_are_not_answered_yet_are_bounded_by_not_reading_more(make_host: MakeHost, tokens: int) -> None:
    """Those without tokens counted for 33 bytes, and took 500: 8 MiB were 120, of each session."""
    engine, silent = Engine(make_host(0)), Silent()
    engine.service._transport = silent
    insider = Insider(engine)
    insider.connection.settimeout(0.5)
    payload = pack(
        {"sequence": 1, "start": 0, "tokens": [70000] * tokens, "count": 1, **({"spec": SPEC} if tokens else {})}
    )
    if not tokens:
        insider.send(Kind.ASK, pack(AskDraft(1, 0, [1], 1, spec=SPEC)))
    with pytest.raises(TimeoutError):
        insider.flood(payload, 20 * MOST_PENDING // (len(payload) + REQUEST_BYTES) + 400_000 * (not tokens))
    assert len(silent.asked) * (len(payload) + REQUEST_BYTES) <= MOST_PENDING + 2 * (len(payload) + REQUEST_BYTES)
    drafts = connected(engine.port)
    drafts.close()
    insider.connection.close()
    engine.close()


def test_a_target_that_does_not_read_that_it_was_heard_loses_its_session(
    make_host: MakeHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only answers were counted: what pings were answered with piled up without end."""
    monkeypatch.setattr(FrameStream, "unsent", MOST_UNSENT + 1)
    engine = Engine(make_host(0))
    insider = Insider(engine)
    insider.send(Kind.PING)
    assert closed(insider.connection)
    wait_until(lambda: engine.service.sessions == 0)
    engine.close()


def test_a_target_that_does_not_read_its_answers_loses_its_session(make_host: MakeHost) -> None:
    engine, liar = Engine(make_host(0)), Liar()
    engine.service._transport = liar
    liar.answer = DraftAnswer(3, [1] * 200, [1.0] * 200)
    insider = Insider(engine)
    payload = pack(AskDraft(1, 0, [1, 2, 3], 4, spec=SPEC))
    with pytest.raises(ConnectionError):
        insider.flood(payload, 1 << 20)
    insider.connection.close()
    wait_until(lambda: engine.service.sessions == 0)
    engine.close()


@pytest.mark.parametrize(
    "answer",
    [
        DraftAnswer(3, [99], [1.0]), DraftAnswer(3, [1], []), DraftAnswer(9, [1], [1.0]), DraftAnswer(3, [1] * 500, [1.0] * 500),
        DraftAnswer(3, [1], [1.0], b"1234"), DraftAnswer(3, [1], [float("nan")]), DraftAnswer(seconds=-1.0),
        {"tokens": "many"}, {"base": -3}, [1, 2, 3],
    ],
)  # fmt: skip
def test_an_answer_that_no_draft_engine_gives_ends_the_connection_and_is_not_used(
    make_host: MakeHost, answer: Any
) -> None:
    engine, liar = Engine(make_host(0)), Liar()
    engine.service._transport = liar
    drafts = connected(engine.port)
    liar.answer = answer
    engine.service._answered = _as_is(engine.service)  # type: ignore[method-assign]
    got = drafted(drafts)
    assert got.error == "the draft engine is not there"
    assert not got.tokens
    wait_until(lambda: drafts.poll() and drafts.counters.connections == 2, "it connects again")
    drafts.close()
    engine.close()


class Silent(Liar):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[AskDraft] = []

    def ask(self, request: AskDraft, done: Callable[[Any], None]) -> None:
        self.asked.append(request)


def _as_is(service: Any) -> Callable[..., None]:
    """Send what the liar says without looking at it."""

    def answered(guest: Any, ticket: int, size: int, answer: Any) -> None:
        guest.pending -= size
        guest.stream.send(Kind.ANSWER, pack(answer), ticket)

    return answered
