"""Saved contexts through a real server and its restart: the same text after it, typed errors for what was damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import inferd
from inferd import Context, Sampler
from inferd_runtime.server.supervisor.commands import Commands, default_commands

from .conftest import ANN, BOB, Serve, Served, fake_commands, settings_in

WARM = Sampler.multinomial(0.8, seed=5)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@asynccontextmanager
async def real(serve: Serve, folder: Path) -> AsyncIterator[Served]:
    """A server with the real engine and the embedded model. Scripts need no sandbox."""
    settings = settings_in(folder, threads=1, check=True)
    commands = Commands(default_commands(settings).engine, fake_commands().worker)
    async with serve(commands, threads=1, check=True) as served:
        yield served


def address(served: Served) -> str:
    return served.gateway.url.replace("http://", "ws://")


async def continued(ctx: Context) -> str:
    return await ctx.user("And again?").generate(WARM, max_tokens=24).collect_text()


async def test_a_restarted_server_goes_on_with_the_same_text(serve: Serve, tmp_path: Path) -> None:
    async with real(serve, tmp_path) as served, inferd.connect(address(served), token=ANN):
        ctx = Context().system("Repeat the text.").user("A small green boat left the harbour with 17 goats.")
        await ctx.generate(WARM, max_tokens=24).collect_text()
        saved = await ctx.save("boat")
        for name in ("damaged", "taken"):
            await ctx.save(name)
        moved = await ctx.export()
        expected = await continued(ctx)
        assert saved.model == "tiny"
    damage(tmp_path, "damaged")
    async with real(serve, tmp_path) as served:
        async with inferd.connect(address(served), token=BOB):
            assert await Context.saved() == []
            with pytest.raises(inferd.NotFound):
                await Context.open("boat")
        async with inferd.connect(address(served), token=ANN):
            ctx = await Context.open("boat")
            assert (ctx.length, ctx.restored, ctx.recomputed) == (saved.length, saved.length - 1, 0)
            assert await continued(ctx) == expected
            assert await continued(await Context.take("taken")) == expected
            assert await continued(await Context.from_bytes(moved)) == expected
            with pytest.raises(inferd.SnapshotDamaged):
                await Context.open("damaged")
            await Context.delete("damaged")
            assert [saved.name for saved in await Context.saved()] == ["boat"]


def damage(folder: Path, name: str) -> None:
    """Change one byte of a snapshot's file."""
    snapshots = folder / "data" / "snapshots"
    database = sqlite3.connect(snapshots / "snapshots.sqlite3")
    file = snapshots / database.execute("SELECT file FROM snapshots WHERE name = ?", (name,)).fetchone()[0]
    database.close()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


async def test_large_bytes_are_refused_with_a_typed_error_and_the_connection_lives(serve: Serve) -> None:
    """What is just small enough travels through every wall; the engine then says what is wrong with it."""
    async with serve() as served, inferd.connect(address(served), token=ANN):
        with pytest.raises(inferd.LimitExceeded):
            await Context.from_bytes(bytes((8 << 20) + 1))
        with pytest.raises(inferd.InvalidRequest, match=r"has no context\.import"):
            await Context.from_bytes(bytes(8 << 20))
        with pytest.raises(inferd.InvalidRequest, match=r"has no context\.saved"):
            await Context.saved()
