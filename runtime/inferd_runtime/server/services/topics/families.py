"""Joins topics, queues and notes to the table: the first two share what a tenant's messages may take."""

from __future__ import annotations

from inferd_runtime.server.services.table import ServiceTable
from inferd_runtime.server.services.topics.buffers import MessageRoom
from inferd_runtime.server.services.topics.kept_values import KeptValues
from inferd_runtime.server.services.topics.notes import Notes
from inferd_runtime.server.services.topics.queues import Queues
from inferd_runtime.server.services.topics.topics import Topics

MESSAGE_OPERATIONS = (
    "topic.publish", "topic.subscribe", "topic.next", "topic.unsubscribe", "queue.push", "queue.pull",
    "note.put", "note.get", "note.delete",
)  # fmt: skip


def join_messages(table: ServiceTable, kept: KeptValues | None = None) -> None:
    """Have the table answer ``topic.*``, ``queue.*`` and ``note.*``; ``kept``: the durable queues, refused without."""
    room = MessageRoom()
    queues = Queues(room, kept)
    table.join(Topics(room))
    table.join(queues)
    table.join(Notes())
    table.on_idle.append(queues.idle)
