"""A context as bytes: one safetensors file, whether it lies on disk or goes over a wire.

Two tensors, ``tokens`` (int32[n]) and ``pages`` (uint8[pages, page_bytes], as the driver reads them), and a header of JSON
under the metadata key ``inferd``. Its checksum covers all three, so that whatever decodes is what was encoded. Nothing in
here is ever executed: the bytes may come from a stranger.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from inferd.protocol import SnapshotDamaged, SnapshotForeign
from inferd_runtime.json_cost import containers

FORMAT = 1
HEADER_LENGTH = 8
MAX_NOISE = 1 << 64
LARGEST = 1 << 31
MAX_MARKS = 100_000
"""Lists and objects in the header of bytes that anybody may have made."""
MAX_NAME = 256
"""Characters of a salt, or of an adapter's key: a context holds both for as long as it is open, and nobody counts them."""
Pages = npt.NDArray[np.uint8]
Index = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
Shift = Annotated[int, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class TurnMark(msgspec.Struct, frozen=True, array_like=True):
    """Where the conversation stood when the context held ``at`` tokens."""

    at: Index
    empty: bool
    answering: bool
    asked: bool


class PlaceMark(msgspec.Struct, frozen=True, array_like=True):
    """Token ``at`` begins a shift of positions (None: it does not), and sees what its row of bits says (None: all before)."""

    at: Index
    shift: Shift | None
    seen: bytes | None


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Header of a snapshot: everything but tokens and KV.

    ``pages`` hold the KV of the first ``computed`` tokens in ``kv_layout``. ``lineage`` and ``forks`` key the sampling noise of
    the context and of its next forks. From ``irregular_from`` on the KV does not follow from the tokens: because of ``places``,
    or because it is not known which model computed it. ``salt``: a part of what its pages are found by.
    """

    model: str
    fingerprint: str
    kv_layout: str
    page_size: int
    computed: int
    lineage: int
    forks: int
    turns: tuple[TurnMark, ...]
    adapter: Name = ""
    irregular_from: int | None = None
    places: tuple[PlaceMark, ...] = ()
    salt: Name = ""


class Snapshot(msgspec.Struct, frozen=True):
    """``tokens`` and uint8[ceil(computed / page_size), page_bytes] of KV, with the facts about them."""

    facts: Facts
    tokens: list[int]
    pages: Pages

    @property
    def nbytes(self) -> int:
        """Approximate number of bytes, in memory and on disk."""
        return self.pages.nbytes + 4 * len(self.tokens)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[list[Index], msgspec.Meta(max_length=2)]
    data_offsets: tuple[int, int]


class _Metadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    inferd: str


class _Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: _Entry
    pages: _Entry
    metadata: _Metadata = msgspec.field(name="__metadata__")


class _Version(msgspec.Struct, frozen=True):
    format: int


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    checksum: str
    facts: Facts


def encode(snapshot: Snapshot) -> bytes:
    """Return a snapshot as bytes."""
    return bytes(safetensors.numpy.save(_tensors(snapshot), _metadata(snapshot)))


def write(snapshot: Snapshot, path: Path) -> None:
    """Write the bytes of :func:`encode` to a file, without a copy in memory. Raises OSError."""
    try:
        safetensors.numpy.save_file(_tensors(snapshot), path, _metadata(snapshot))
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error


def read(path: Path) -> Snapshot:
    """Return the snapshot in a file. Raises OSError, and what :func:`decode` raises."""
    data = np.empty(path.stat().st_size, np.uint8)
    with path.open("rb") as file:
        file.readinto(data.data)
    return _decode(data)


def decode(data: bytes) -> Snapshot:
    """Return the snapshot in bytes that anybody may have made.

    Raises SnapshotDamaged for bytes that :func:`encode` did not make, SnapshotForeign for those of another format.
    """
    header = data[HEADER_LENGTH : HEADER_LENGTH + int.from_bytes(data[:HEADER_LENGTH], "little")]
    if containers(header) > MAX_MARKS:
        raise SnapshotDamaged(f"the snapshot is damaged: its header has more than {MAX_MARKS} lists and objects")
    return _decode(np.frombuffer(data, np.uint8).copy())


def _decode(data: Pages) -> Snapshot:
    layout, body = _read_layout(data)
    header = _read_header(layout)
    tokens = _read_tensor(body, 0, layout.tokens, "I32", np.int32, 1)
    pages = _read_tensor(body, tokens.nbytes, layout.pages, "U8", np.uint8, 2)
    if tokens.nbytes + pages.nbytes != len(body):
        raise SnapshotDamaged("the snapshot is damaged: its length is not what its header says")
    if header.checksum != _checksum(header.facts, tokens, pages):
        raise SnapshotDamaged("the snapshot is damaged: its checksum is wrong")
    _check(header.facts, len(tokens), len(pages))
    return Snapshot(header.facts, tokens.tolist(), pages)


def _tensors(snapshot: Snapshot) -> dict[str, npt.NDArray[Any]]:
    return {"tokens": np.asarray(snapshot.tokens, np.int32), "pages": np.ascontiguousarray(snapshot.pages)}


def _metadata(snapshot: Snapshot) -> dict[str, str]:
    tensors = _tensors(snapshot)
    checksum = _checksum(snapshot.facts, tensors["tokens"], tensors["pages"])
    return {"inferd": msgspec.json.encode(_Header(format=FORMAT, checksum=checksum, facts=snapshot.facts)).decode()}


def _checksum(facts: Facts, tokens: npt.NDArray[Any], pages: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256(msgspec.json.encode((FORMAT, tokens.shape, pages.shape, facts)))
    digest.update(tokens.data)
    digest.update(pages.data)
    return digest.hexdigest()


def _read_layout(data: Pages) -> tuple[_Layout, Pages]:
    """Return the safetensors header and the bytes behind it. Read here, because the library would copy the tensors."""
    start = HEADER_LENGTH + int.from_bytes(data[:HEADER_LENGTH].tobytes(), "little")
    try:
        return msgspec.json.decode(data[HEADER_LENGTH:start].tobytes(), type=_Layout), data[start:]
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SnapshotDamaged(f"the snapshot is damaged: it is no file of tokens and pages: {error}") from None


def _read_header(layout: _Layout) -> _Header:
    try:
        version = msgspec.json.decode(layout.metadata.inferd, type=_Version).format
        if version != FORMAT:
            raise SnapshotForeign(f"the snapshot has format {version}; this version of inferd reads format {FORMAT}")
        return msgspec.json.decode(layout.metadata.inferd, type=_Header)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SnapshotDamaged(f"the snapshot is damaged: its header cannot be read: {error}") from None


def _read_tensor(body: Pages, first: int, entry: _Entry, kind: str, dtype: Any, rank: int) -> npt.NDArray[Any]:
    """Return the tensor at byte ``first`` as a view. Raises SnapshotDamaged if it is not there."""
    size = math.prod(entry.shape) * np.dtype(dtype).itemsize
    fits = len(entry.shape) == rank and first + size <= len(body)
    if not fits or entry.dtype != kind or entry.data_offsets != (first, first + size):
        raise SnapshotDamaged(
            f"the snapshot is damaged: a tensor is {entry.dtype}{entry.shape} at {entry.data_offsets}"
        )
    tensor: npt.NDArray[Any] = body[first : first + size].view(dtype).reshape(entry.shape)
    return tensor


def _check(facts: Facts, tokens: int, pages: int) -> None:
    """Raise SnapshotDamaged if the header contradicts itself, even with a correct checksum."""
    marks = [mark.at for mark in facts.turns]
    places = [mark.at for mark in facts.places]
    wrong = [
        facts.page_size < 1,
        not 0 <= facts.computed <= tokens,
        facts.page_size > 0 and pages != -(-facts.computed // facts.page_size),
        not (0 <= facts.lineage < MAX_NOISE and 0 <= facts.forks < MAX_NOISE),
        marks[:1] != [0] or marks != sorted(set(marks)) or marks[-1] > tokens,
        places != sorted(set(places)) or any(not 0 <= at < tokens for at in places),
        any(mark.seen is not None and len(mark.seen) != mark.at // 8 + 1 for mark in facts.places),
        facts.irregular_from is not None and not 0 <= facts.irregular_from <= tokens,
    ]
    if any(wrong):
        raise SnapshotDamaged("the snapshot is damaged: its header contradicts itself")
