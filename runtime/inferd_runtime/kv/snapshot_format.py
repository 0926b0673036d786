"""A context as bytes: one safetensors file, whether it lies on disk or goes over a wire.

Two tensors, ``tokens`` (int32[n]) and ``pages`` (uint8[pages, page_bytes], as the driver reads them), and a header of JSON
under the metadata key ``inferd``. Its checksum covers all three, so that whatever decodes is what was encoded. Nothing in
here is ever executed: the bytes may come from a stranger.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from inferd.protocol import SnapshotDamaged, SnapshotForeign

FORMAT = 1
KEY = "inferd"
TOKENS, PAGES = "tokens", "pages"
HEADER_LENGTH = 8
MAX_NOISE = 1 << 64
Pages = npt.NDArray[np.uint8]


class TurnMark(msgspec.Struct, frozen=True, array_like=True):
    """Where the conversation stood when the context held ``at`` tokens."""

    at: int
    empty: bool
    answering: bool
    asked: bool


class PlaceMark(msgspec.Struct, frozen=True, array_like=True):
    """Token ``at`` begins a shift of positions (None: it does not), and sees what its row of bits says (None: all before)."""

    at: int
    shift: int | None
    seen: bytes | None


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a snapshot says beside tokens and KV.

    ``pages`` hold the KV of the first ``computed`` tokens in ``kv_layout``. ``lineage`` and ``forks`` key the sampling noise of
    the context and of its next forks. From ``irregular_from`` on the KV does not follow from the tokens: because of ``places``,
    or because nobody knows who computed it.
    """

    model: str
    fingerprint: str
    kv_layout: str
    page_size: int
    computed: int
    lineage: int
    forks: int
    turns: tuple[TurnMark, ...]
    adapter: str = ""
    irregular_from: int | None = None
    places: tuple[PlaceMark, ...] = ()


class Snapshot(msgspec.Struct, frozen=True):
    """``tokens`` and uint8[ceil(computed / page_size), page_bytes] of KV, with the facts about them."""

    facts: Facts
    tokens: list[int]
    pages: Pages

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes, in memory as on disk."""
        return self.pages.nbytes + 4 * len(self.tokens)


class _Version(msgspec.Struct, frozen=True):
    format: int


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    checksum: str
    facts: Facts


def encode(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot."""
    return bytes(safetensors.numpy.save(_tensors(snapshot), _metadata(snapshot)))


def write(snapshot: Snapshot, path: Path) -> None:
    """The same bytes into a file, without a copy of them in memory. Raises OSError."""
    try:
        safetensors.numpy.save_file(_tensors(snapshot), path, _metadata(snapshot))
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from error


def decode(data: bytes) -> Snapshot:
    """Check and read a snapshot.

    Raises SnapshotDamaged for bytes that :func:`encode` did not make, SnapshotForeign for those of another format.
    """
    tensors = _read_tensors(data)
    header = _read_header(data)
    tokens = _tensor(tensors, TOKENS, "I32", np.int32, 1)
    pages = _tensor(tensors, PAGES, "U8", np.uint8, 2)
    if header.checksum != _checksum(header.facts, tokens, pages):
        raise SnapshotDamaged("the snapshot is damaged: its checksum is wrong")
    _check(header.facts, len(tokens), len(pages))
    return Snapshot(header.facts, tokens.tolist(), pages)


def _tensors(snapshot: Snapshot) -> dict[str, npt.NDArray[Any]]:
    return {TOKENS: np.asarray(snapshot.tokens, np.int32), PAGES: np.ascontiguousarray(snapshot.pages)}


def _metadata(snapshot: Snapshot) -> dict[str, str]:
    tensors = _tensors(snapshot)
    checksum = _checksum(snapshot.facts, tensors[TOKENS], tensors[PAGES])
    return {KEY: msgspec.json.encode(_Header(format=FORMAT, checksum=checksum, facts=snapshot.facts)).decode()}


def _checksum(facts: Facts, tokens: npt.NDArray[Any], pages: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256(msgspec.json.encode((FORMAT, tokens.shape, pages.shape, facts)))
    digest.update(tokens.data)
    digest.update(pages.data)
    return digest.hexdigest()


def _read_tensors(data: bytes) -> dict[str, dict[str, Any]]:
    try:
        tensors = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise SnapshotDamaged(f"the snapshot is damaged: {error}") from None
    if tensors.keys() != {TOKENS, PAGES}:
        raise SnapshotDamaged("the snapshot is damaged: it does not hold tokens and pages")
    return tensors


def _read_header(data: bytes) -> _Header:
    """The header, out of the safetensors header in front, whose length and form are checked already."""
    end = HEADER_LENGTH + int.from_bytes(data[:HEADER_LENGTH], "little")
    try:
        text = msgspec.json.decode(data[HEADER_LENGTH:end], type=dict[str, Any])["__metadata__"][KEY]
        version = msgspec.json.decode(text, type=_Version).format
        if version != FORMAT:
            raise SnapshotForeign(f"the snapshot has format {version}; this version of inferd reads format {FORMAT}")
        return msgspec.json.decode(text, type=_Header)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise SnapshotDamaged(f"the snapshot is damaged: its header cannot be read: {error}") from None


def _tensor(tensors: dict[str, dict[str, Any]], name: str, kind: str, dtype: Any, rank: int) -> npt.NDArray[Any]:
    found = tensors[name]
    if found["dtype"] != kind or len(found["shape"]) != rank:
        raise SnapshotDamaged(f"the snapshot is damaged: {name} is {found['dtype']}{found['shape']}")
    return np.frombuffer(found["data"], dtype).reshape(found["shape"])


def _check(facts: Facts, tokens: int, pages: int) -> None:
    """What the checksum cannot say about bytes that somebody else encoded."""
    marks = [mark.at for mark in facts.turns]
    places = [mark.at for mark in facts.places]
    wrong = [
        facts.page_size < 1,
        not 0 <= facts.computed <= tokens,
        facts.page_size > 0 and pages != -(-facts.computed // facts.page_size),
        not (0 <= facts.lineage < MAX_NOISE and 0 <= facts.forks < MAX_NOISE),
        marks[:1] != [0] or marks != sorted(marks) or marks[-1] > tokens,
        places != sorted(set(places)) or any(not 0 <= at < tokens for at in places),
        any(mark.seen is not None and len(mark.seen) != mark.at // 8 + 1 for mark in facts.places),
        facts.irregular_from is not None and not 0 <= facts.irregular_from <= tokens,
    ]
    if any(wrong):
        raise SnapshotDamaged("the snapshot is damaged: its header contradicts itself")
