"""Frames over asyncio's streams."""

from __future__ import annotations

import asyncio
from typing import cast

from inferd_runtime.draft_models.remote.frames import FrameWriter, Kind
from inferd_runtime.draft_models.remote.streams import FrameStream

FRAMES = 300


class NoSocket:
    """A writer of a connection that only receives."""

    transport = None

    def get_extra_info(self, name: str) -> None:
        return None


async def test_frames_that_came_together_do_not_keep_the_loop_from_other_connections() -> None:
    """A target that sent 60,000 pings at once held a draft engine's loop for 0.36 s at a time."""
    reader, writer, turns = asyncio.StreamReader(), FrameWriter(), [0]
    reader.feed_data(b"".join(writer.write(Kind.PING) for _ in range(FRAMES)))
    stream = FrameStream(reader, cast(asyncio.StreamWriter, NoSocket()))

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    for _ in range(FRAMES):
        assert (await stream.receive()).kind is Kind.PING
    task.cancel()
    assert turns[0] >= FRAMES - 1
