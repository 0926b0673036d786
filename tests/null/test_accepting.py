"""Taking connections from a socket that listens."""

from __future__ import annotations

import asyncio
import socket

import pytest

from inferd_runtime.accepting import accept
from inferd_runtime.server.gateway.listening import listen


def test_who_is_cancelled_as_a_connection_comes_raises_nothing_into_the_loop_and_loses_no_connection() -> None:
    async def cancel_and_accept_again() -> None:
        problems: list[dict[str, object]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        with listen("127.0.0.1", 0) as listener:
            listener.setblocking(False)
            for _ in range(20):
                given_up = asyncio.create_task(accept(listener))
                await asyncio.sleep(0)
                with socket.create_connection(listener.getsockname()) as client:
                    await asyncio.sleep(0)  # the loop has seen it, and tells whoever waits once this goes on
                    given_up.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await given_up
                    accepted, address = await asyncio.wait_for(accept(listener), 20)
                    with accepted:
                        assert address == client.getsockname()
                        assert accepted.gettimeout() == 0.0
        assert not problems

    asyncio.run(cancel_and_accept_again())
