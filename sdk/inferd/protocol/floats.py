"""Many numbers as one string: float32 or uint32, little-endian, base64. Lists are slow to carry, and JSON has no infinity."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any


def pack_floats(values: Sequence[float]) -> str:
    """Return the numbers, rounded to float32, as text."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def unpack_floats(packed: str) -> list[float]:
    """Return the numbers that :func:`pack_floats` was given, as float32 holds them."""
    return _unpacked(packed, "f")


def unpack_ids(packed: str) -> list[int]:
    """Return the token ids that stand in a text as uint32."""
    return _unpacked(packed, "I")


def packed_id(packed: str, at: int) -> int:
    """Return the token id at index ``at`` of such a text, without unpacking the others."""
    return int.from_bytes(base64.b64decode(packed)[4 * at : 4 * at + 4], "little")


def count_packed(packed: str) -> int:
    """Return how many numbers a text holds."""
    return (len(packed) * 3 // 4 - packed.count("=")) // 4


def _unpacked(packed: str, kind: str) -> list[Any]:
    data = base64.b64decode(packed)
    return list(struct.unpack(f"<{len(data) // 4}{kind}", data))
