"""Sessions and half-open connections: bounded, apart from each other, and given back once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tiers import examples

from inferd_runtime.draft_models.messages import AskDraft, DraftSpec
from inferd_runtime.draft_models.remote.handshake import Refused
from inferd_runtime.draft_models.remote.sessions import DraftSession, HalfOpen, SessionTable
from inferd_runtime.engine.sampling.host_sampling import RowSampler

SPEC = DraftSpec("tenant", RowSampler(0.0, 0, 1.0, 0.0, 0), 12)
SEQUENCES = st.integers(0, 6)


def start(sequence: int) -> AskDraft:
    return AskDraft(sequence, 0, [1], 1, spec=SPEC)


class Sessions(RuleBasedStateMachine):
    """Targets that start, use and drop sequences of the same numbers."""

    @initialize()
    def open_table(self) -> None:
        self.table = SessionTable(3, 4)
        self.open: list[DraftSession] = []
        self.held: dict[int, DraftSession] = {}

    @rule()
    def open_session(self) -> None:
        if len(self.open) < 3:
            self.open.append(self.table.open())
        else:
            with pytest.raises(Refused, match="3 sessions"):
                self.table.open()

    @rule(at=st.integers(0, 2), sequence=SEQUENCES)
    def begin(self, at: int, sequence: int) -> None:
        if at < len(self.open):
            session = self.open[at]
            number = session.number(start(sequence))
            assert number is not None
            assert self.held.setdefault(number, session) is session, "another session's"
            self.forget(session.surplus())

    @rule(at=st.integers(0, 2), sequence=SEQUENCES)
    def use(self, at: int, sequence: int) -> None:
        if at < len(self.open):
            number = self.open[at].number(AskDraft(sequence, 0, [1], 1))
            assert number is None or self.held[number] is self.open[at]

    @rule(at=st.integers(0, 2), sequence=SEQUENCES)
    def drop(self, at: int, sequence: int) -> None:
        if at < len(self.open):
            number = self.open[at].drop(sequence)
            self.forget([] if number is None else [number])

    @rule(at=st.integers(0, 2))
    def end(self, at: int) -> None:
        if at < len(self.open):
            session = self.open.pop(at)
            numbers = self.table.close(session)
            assert sorted(numbers) == sorted(number for number, owner in self.held.items() if owner is session)
            self.forget(numbers)
            assert self.table.close(session) == []

    def forget(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.held[number]

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "table"):
            assert len(self.table) == len(self.open) <= 3
            assert sum(map(len, self.open)) == len(self.held)
            assert all(len(session) <= 4 for session in self.open)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=examples(40), stateful_step_count=30)


def test_the_least_recently_used_sequence_goes_first() -> None:
    session = SessionTable(1, 2).open()
    first, second = session.number(start(1)), session.number(start(2))
    assert session.number(AskDraft(1, 0, [], 1)) == first
    session.number(start(3))
    assert session.surplus() == [second]
    assert session.number(AskDraft(2, 0, [], 1)) is None


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60))
def test_half_open_connections_are_counted_for_each_address_and_together(moves: list[tuple[bool, str]]) -> None:
    half_open, counts = HalfOpen(5, 3), dict.fromkeys("abc", 0)
    for enters, address in moves:
        if enters:
            room = sum(counts.values()) < 5 and counts[address] < 3
            assert half_open.enter(address) == room
            counts[address] += room
        elif counts[address]:
            half_open.leave(address)
            counts[address] -= 1
