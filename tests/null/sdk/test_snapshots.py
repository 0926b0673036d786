"""Saving and opening through the SDK: over a session, over a WebSocket, and over JSON as the sandbox carries it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from session_runtime import SessionRuntime

import inferd
from inferd import Context, Model, Sampler, protocol as p
from inferd.testing import FakeRuntime
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.sandbox.runner.transport import GuestTransport

ARGMAX = Sampler.argmax()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SnapshotStore]:
    store = SnapshotStore(SnapshotFolder(tmp_path / "snapshots", 1 << 20))
    yield store
    store.close()


async def test_an_opened_context_holds_what_was_saved(store: SnapshotStore) -> None:
    with SessionRuntime(snapshots=store):
        ctx = Context().system("s").user("u")
        await ctx.generate(ARGMAX, max_tokens=3).collect_text()
        held = await ctx.tokens()
        saved = await ctx.save("a")
        assert (saved.name, saved.length) == ("a", ctx.length)
        assert await ctx.append("more").tokens()  # it can be used on
        opened = await Context.open("a")
        assert await opened.tokens() == held
        assert (opened.length, opened.restored, opened.recomputed) == (saved.length, saved.length - 1, 0)
        assert (ctx.restored, ctx.recomputed) == (0, 0)


async def test_a_generation_goes_on_while_it_is_saved(store: SnapshotStore) -> None:
    with SessionRuntime(snapshots=store):
        seeded = Sampler.multinomial(1.0, seed=5)
        plain = await Context().append("abc").generate(seeded, max_tokens=12).collect_tokens()
        ctx, written = Context().append("abc"), list[int]()
        async for step in ctx.generate(seeded, max_tokens=12):
            written += step.tokens
            await ctx.save("a", overwrite=True)
            opened = await Context.open("a", model=await Model.load())
            assert (await opened.tokens())[3:] == written
            left = 12 - len(written)
            assert not left or written + await opened.generate(seeded, max_tokens=left).collect_tokens() == plain
            await opened.release()
        assert written == plain


async def test_what_is_buffered_is_saved_and_a_generation_ends(store: SnapshotStore) -> None:
    with SessionRuntime(snapshots=store):
        ctx = Context().user("u")
        generation = ctx.generate(ARGMAX)
        step = await anext(generation)
        await ctx.save("a")
        assert (await (await Context.open("a")).tokens())[-1:] == step.tokens
        await ctx.user("v").save("a", overwrite=True)
        assert bytes((await (await Context.open("a")).tokens())[-2:-1]) == b"v"


async def test_an_open_question_is_cued_after_opening_as_before_saving(store: SnapshotStore) -> None:
    with SessionRuntime(snapshots=store) as runtime:
        await Context().user("u").save("asked")
        await Context().user("u").assistant("a").save("answered")
        for name, cues in (("asked", 1), ("answered", 0)):
            ctx = await Context.open(name)
            before = len(runtime.of_kind(p.AppendContext))
            await ctx.generate(ARGMAX, max_tokens=2).collect_text()
            parts = [part for request in runtime.of_kind(p.AppendContext)[before:] for part in request.parts]
            assert [part.kind for part in parts] == ["cue"] * cues


async def test_taking_deleting_and_listing(store: SnapshotStore) -> None:
    with SessionRuntime(snapshots=store):
        for name in ("b", "a"):
            await Context().append(name).save(name)
        assert [saved.name for saved in await Context.saved()] == ["a", "b"]
        assert await (await Context.take("a")).tokens() == [ord("a")]
        with pytest.raises(inferd.NotFound):
            await Context.take("a")
        await Context.delete("b")
        assert await Context.saved() == []
        with pytest.raises(inferd.NotFound):
            await Context.delete("b")


async def test_an_opened_context_is_released_like_any_other(store: SnapshotStore) -> None:
    with SessionRuntime(snapshots=store) as runtime:
        async with Context().append("x") as ctx:
            await ctx.save("a")
        async with await Context.open("a") as opened:
            assert opened.length == 1
        assert runtime.contexts == 0
        dropped = await Context.open("a")
        del dropped
        await Context.open("a")
        assert runtime.contexts == 1


async def test_bytes_go_out_and_in(store: SnapshotStore) -> None:
    with SessionRuntime(snapshots=store):
        ctx = Context().append("abc")
        copy = await Context.from_bytes(await ctx.export())
        assert await copy.tokens() == await ctx.tokens()
        with pytest.raises(inferd.SnapshotDamaged):
            await Context.from_bytes(b"\x00nonsense")


@pytest.mark.parametrize("data", ["text", bytearray(b"x"), None, 5])
async def test_only_bytes_are_bytes(data: Any) -> None:
    with FakeRuntime() as runtime, pytest.raises(inferd.InvalidRequest, match="data must be bytes"):
        await Context.from_bytes(data)
    assert runtime.requests == []


async def test_too_many_bytes_are_refused_before_they_are_sent() -> None:
    with FakeRuntime() as runtime, pytest.raises(inferd.LimitExceeded) as caught:
        await Context.from_bytes(bytes(p.MAX_EXPORT_BYTES + 1))
    assert caught.value.detail["limit"] == "export_bytes"
    assert runtime.requests == []


async def test_arguments_are_checked() -> None:
    with FakeRuntime(), pytest.raises(inferd.InvalidRequest, match="name must be a string"):
        await Context().save(5)  # type: ignore[arg-type]
    with FakeRuntime(), pytest.raises(inferd.InvalidRequest, match="overwrite must be True or False"):
        await Context().save("a", overwrite=1)  # type: ignore[arg-type]


async def test_over_the_wire(wire: Callable[..., AbstractAsyncContextManager[Any]], store: SnapshotStore) -> None:
    async with wire(SessionRuntime(snapshots=store)) as server, inferd.connect(server.url):
        ctx = Context().append("naïve")
        await ctx.save("a")
        (saved,) = await Context.saved()
        assert isinstance(saved, p.SavedContext)
        opened = await Context.open("a")
        copy = await Context.from_bytes(await opened.export())
        assert await copy.tokens() == await ctx.tokens()


class Completions:
    """Answers a guest's calls as the host does: msgspec reads the JSON of the request and writes that of the reply."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answers: dict[int, Any] = {}
        self._answer = answer

    def submit(self, op: str, arguments: str, quiet: float | None) -> int:
        assert quiet == 0.0
        request = msgspec.json.decode(arguments, type=p.OPERATIONS[op])
        self.answers[len(self.answers) + 1] = json.loads(msgspec.json.encode(self._answer(request)))
        return len(self.answers)

    async def answer(self, ticket: int) -> tuple[bool, Any]:
        return True, self.answers[ticket]


async def test_bytes_travel_through_the_sandbox_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 3
    seen: list[bytes] = []

    def answer(request: Any) -> Any:
        if isinstance(request, p.ExportContext):
            return p.Exported(data)
        seen.append(request.data)
        return p.Opened(1, 2, 1, 1, 0, [2])

    monkeypatch.setattr("inferd_runtime.sandbox.runner.transport.running_loop", lambda: Quiet())
    transport = GuestTransport(Completions(answer))  # type: ignore[arg-type]
    assert (await transport.call(p.ExportContext(1))).data == data
    assert await transport.call(p.ImportContext(data)) == p.Opened(1, 2, 1, 1, 0, [2])
    assert seen == [data]


class Quiet:
    def quiet_seconds(self) -> float:
        return 0.0
