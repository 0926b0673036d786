"""What passes of a program's own count for in a session's usage, and for the tenant's tokens a minute."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from inferd import protocol as p
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model

Work = Callable[[DirectSession], object]


@pytest.fixture
def caller() -> Iterator[DirectSession]:
    caller = DirectSession(null_model())
    yield caller
    caller.close()


def beams(caller: DirectSession) -> None:
    """Two beams of three tokens each: a look at the end of the prompt, and then a pass for each beam and token."""
    start = caller.text("abc")
    caller.call(p.Forward(start, [], top=2))
    for first in (1, 2):
        fork = caller.call(p.ForkContext(start)).context
        for token in (first, 3, 4):
            caller.call(p.Forward(fork, [token], top=2))


COUNTED: list[tuple[str, Work, p.Usage]] = [
    ("prompt only", lambda s: s.call(p.FlushContext(s.text("abc"))), p.Usage(3)),
    ("one row", lambda s: s.call(p.Forward(s.text("abc"), [1, 2])), p.Usage(5, 1, 1)),
    ("rows", lambda s: s.call(p.Forward(s.text("abc"), [1, 2, 3], at=[0, 2, 2])), p.Usage(6, 2, 1)),
    ("the end", lambda s: s.call(p.Forward(s.text("abc"), [])), p.Usage(3, 1, 1)),
    ("beams", beams, p.Usage(3 + 6, 1 + 6, 1 + 6)),
    ("scores", lambda s: s.call(p.PromptLogprobs(s.context(), [1, 2, 3])), p.Usage(3, 2, 1)),
    ("scores behind", lambda s: s.call(p.PromptLogprobs(s.text("abc"), [1, 2])), p.Usage(5, 2, 1)),
    ("a vector each", lambda s: s.call(p.Embed(tokens=[[1, 2, 3], [4]])), p.Usage(4, 2, 2)),
    ("all vectors", lambda s: s.call(p.Embed(tokens=[[1, 2, 3]], pooling="none")), p.Usage(3, 3, 1)),
    ("no draft", lambda s: s.call(p.VerifyDraft(s.text("abc"))), p.Usage(3, 1, 1)),
]


@pytest.mark.parametrize(("work", "counted"), [each[1:] for each in COUNTED], ids=[each[0] for each in COUNTED])
def test_every_row_that_is_read_counts(caller: DirectSession, work: Work, counted: p.Usage) -> None:
    work(caller)
    assert caller.call(p.GetUsage()) == counted


def test_a_verified_draft_counts_as_if_it_had_been_generated(caller: DirectSession) -> None:
    context = caller.text("abc")
    expected = caller.generate(caller.text("abc"), max_tokens=4).tokens
    before = caller.call(p.GetUsage())
    done = caller.call(p.VerifyDraft(context, [*expected[:2], expected[2] ^ 1]))
    assert (done.accepted, done.token) == (expected[:2], expected[2])
    after = caller.call(p.GetUsage())
    assert (after.tokens - before.tokens, after.steps - before.steps) == (3, 1)
    assert (after.drafted, after.accepted) == (3, 2)


def test_a_pass_that_is_cancelled_counts_as_far_as_it_came(caller: DirectSession) -> None:
    ticket, replies = caller.submit(p.Forward(caller.context(), [1] * 300, at=list(range(300))))
    caller.engine.step()
    caller.session.cancel(ticket)
    assert isinstance(replies[0], p.Cancelled)
    assert 0 < caller.call(p.GetUsage()).tokens < 300
