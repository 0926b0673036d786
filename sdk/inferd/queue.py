"""Queues between the programs and scripts of a tenant: each value goes to one puller.

await queue.push("jobs", {"number": 1})
job = await queue.pull("jobs")
"""

from __future__ import annotations

from typing import Any

from inferd.calls.outgoing import Outgoing
from inferd.protocol.topics import MAX_VALUES, PullValues, PushValues, check_pull, check_topic_name
from inferd.transport import current_port

__all__ = ["pull", "pull_many", "push"]


async def push(name: str, value: Any, *, wait: bool = True, durable: bool = False) -> None:
    """Put a JSON value at a queue's end.

    Values of one program stay in the order in which it pushes them. A queue holds about a thousand values, or 1 MiB; then this
    waits until there is room, or raises LimitExceeded with ``wait=False``. What several tasks push at a time goes together.

    What is in a queue is gone with the last run and script of its tenant. With ``durable=True`` it is the queue of that name that
    is kept on disk, through restarts, and the value is there when this returns: pull it with ``durable=True`` as well.
    """
    check_topic_name(name)
    port = current_port()

    async def send(values: list[Any]) -> None:
        await port.transport.call(PushValues(name, values, wait, durable))

    await port.shared.setdefault(("queue", name, wait, durable), Outgoing(send)).put(value)


async def pull(name: str, *, durable: bool = False) -> Any:
    """Take the next value from a queue, once there is one: no other puller gets it. The one that has waited longest is first.

    A cancelled call loses no value, and what a program was to get that ended before goes to the next one.
    """
    return (await pull_many(name, 1, durable=durable))[0]


async def pull_many(name: str, most: int = MAX_VALUES, *, wait: bool = True, durable: bool = False) -> list[Any]:
    """Take up to ``most`` values, as many as are there; with ``wait=False`` that may be none, else it is at least one."""
    request = PullValues(name, most, wait, durable)
    check_pull(request)
    values: list[Any] = (await current_port().transport.call(request)).values
    return values
