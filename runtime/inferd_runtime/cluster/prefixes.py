"""How a router knows what runs begin with: hashes of a run's beginning, and which replicas have probably computed them.

Both are hints. A router has no tokenizer and does not see what a replica's cache drops: what it gets wrong costs time, and
never a wrong text, because a replica compares tokens itself (:class:`~inferd_runtime.kv.prefix.PrefixIndex`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b

BLOCK_BYTES = 512
"""Bytes of text in a block: about 128 tokens."""
MOST_BLOCKS = 64
"""Blocks of one run that are told apart. What follows is not hashed, so that a long prompt costs a router little."""
MOST_BYTES = BLOCK_BYTES * (MOST_BLOCKS - 1)
"""Of a run's beginning that are looked at."""
HASH_BYTES = 12


def prefix_blocks(owner: Sequence[str], texts: Iterable[str]) -> tuple[bytes, ...]:
    """Return chained hashes of a run's beginning: of the ``owner``, then of each full block of the texts with all before it.

    ``owner`` is what divides a replica's cache: tenant, program, model, adapter and salt. Equal hashes mean equal beginnings.
    """
    chain = blake2b(digest_size=HASH_BYTES)
    for part in owner:
        chain.update(len(part).to_bytes(8, "big") + part.encode("utf-8", "surrogatepass"))
    blocks = [chain.digest()]
    for block in _full_blocks(texts):
        chain.update(block)
        blocks.append(chain.digest())
    return tuple(blocks)


def _full_blocks(texts: Iterable[str]) -> list[bytes]:
    """Return the first blocks of the texts, each of which ends with a zero byte; a last block that is not full is left out."""
    data = bytearray()
    for text in texts:
        data += text[:MOST_BYTES].encode("utf-8", "surrogatepass") + b"\0"
        if len(data) >= MOST_BYTES:
            break
    full = min(len(data), MOST_BYTES) // BLOCK_BYTES
    return [bytes(data[at * BLOCK_BYTES : (at + 1) * BLOCK_BYTES]) for at in range(full)]


class PrefixTable:
    """Which replicas were sent which blocks: of each replica the ``limit`` newest, because its cache drops the oldest, too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._holders: dict[bytes, dict[str, None]] = {}
        self._blocks: dict[str, OrderedDict[bytes, None]] = {}

    def holders(self, block: bytes) -> Collection[str]:
        """Return the replicas that have probably computed a block."""
        return self._holders.get(block, ())

    def note(self, replica: str, blocks: Sequence[bytes]) -> None:
        """Note that a replica computes these blocks now. The first ones are forgotten last: others continue from them."""
        kept = self._blocks.setdefault(replica, OrderedDict())
        for block in reversed(blocks):
            kept[block] = None
            kept.move_to_end(block)
            self._holders.setdefault(block, {})[replica] = None
        while len(kept) > self._limit:
            self._forget(replica, kept.popitem(last=False)[0])

    def drop(self, replica: str) -> None:
        """Forget a replica."""
        for block in self._blocks.pop(replica, {}):
            self._forget(replica, block)

    def __len__(self) -> int:
        """Return how many pairs of a block and a replica are kept."""
        return sum(map(len, self._blocks.values()))

    def _forget(self, replica: str, block: bytes) -> None:
        holders = self._holders[block]
        del holders[replica]
        if not holders:
            del self._holders[block]
