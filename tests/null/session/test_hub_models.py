"""Several models behind one hub: each has its own engine, pages and figures, and one loop steps all of them."""

from __future__ import annotations

from typing import Any

import msgspec
from sessions import new_grants, opening

from inferd import protocol as p
from inferd_runtime.server.engine_process.loop import step
from inferd_runtime.session import wire as link
from inferd_runtime.session.hub import SessionHub
from inferd_runtime.session.step_profile import StepProfile
from inferd_runtime.testing.served import null_model

NAMES = ("large", "small")


class Wire:
    """A hub over two models without weights, and one open session."""

    def __init__(self) -> None:
        self.models = {name: null_model(name) for name in NAMES}
        self.replies: list[link.LinkReply] = []
        self.hub = SessionHub(
            self.models, lambda who, frames: self.replies.append(link.parse_reply(frames)), new_grants()
        )
        self.hub.receive(b"me", opening("tenant", "test", gateway=True))

    def ask(self, request: Any, reply_type: Any = None) -> Any:
        """Send a request; its answer, if it is answered at once."""
        payload = msgspec.msgpack.encode(request)
        self.hub.receive(b"me", link.request_frames(1, request.op, link.MSGPACK, payload))
        return None if reply_type is None else msgspec.msgpack.decode(self.replies[-1].payload, type=reply_type)

    def generate(self, model: str) -> None:
        context = self.ask(p.CreateContext(model), p.ContextState).context
        self.ask(p.AppendContext(context, [p.Part("text", text="some text")]))
        self.ask(p.StartGenerate(context, max_tokens=4))


def test_a_slow_step_tells_which_part_of_it_took_how_long() -> None:
    wire = Wire()
    asked = link.GetSlowStep(0.0)
    assert wire.ask(asked, link.FoundSlowStep).step is None
    wire.generate("large")
    step(list(wire.models.values()), wire.hub.profile)
    slow = wire.ask(asked, link.FoundSlowStep).step
    while slow is None or slow.model != "large":
        step([wire.models["large"]], wire.hub.profile)
        slow = wire.ask(asked, link.FoundSlowStep).step
    assert set(slow.parts) >= {"plan", "prepare", "forward", "verify", "commit"}
    assert sum(slow.parts.values()) <= slow.ms
    assert any("verification.py" in one.function for one in slow.functions)


def test_one_step_steps_every_model() -> None:
    wire = Wire()
    served = list(wire.models.values())
    assert not step(served, StepProfile())
    for name in NAMES:
        wire.generate(name)
    assert step(served, StepProfile())
    assert [model.engine.steps for model in served] == [1, 1]


def test_it_goes_on_while_any_model_has_work() -> None:
    wire = Wire()
    served = list(wire.models.values())
    wire.generate("small")
    assert step(served, StepProfile())
    assert [model.engine.steps for model in served] == [0, 1]


def test_figures_and_pages_are_each_models_own() -> None:
    wire = Wire()
    wire.generate("small")
    while step(list(wire.models.values()), StepProfile()):
        pass
    stats = wire.ask(link.GetEngineStats(), link.EngineStats)
    large, small = stats.models
    assert (large.name, small.name) == NAMES
    assert large.steps == 0 < small.steps == stats.steps
    assert large.pages_free == large.pages
    assert small.pages_free < small.pages
    assert stats.pages_free == large.pages_free + small.pages_free
    assert not any(wire.hub.held_pages(wire.models["large"]))
    assert any(wire.hub.held_pages(wire.models["small"]))
    for model in wire.models.values():
        model.engine.pool.check_integrity(wire.hub.held_pages(model))
    wire.hub.close_all()
    for model in wire.models.values():
        model.engine.pool.check_integrity([])
