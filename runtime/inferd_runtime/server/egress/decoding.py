"""Response bodies, decompressed in pieces of bounded size. Pure state."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from inferd.protocol import Unavailable

PIECE_BYTES = 64 << 10
GZIP, ZLIB, RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS
ACCEPTED = "gzip, deflate"
MOST_MEMBERS = 1000
"""Of one gzip stream: an empty member takes 20 bytes, and a decompressor each time."""


class PlainBody:
    """A body that is not compressed."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the data in pieces."""
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

    def end(self) -> None:
        """Note that the body is over."""


class CompressedBody:
    """A body in gzip or deflate. Nothing is decompressed before it is asked for, and never more than a piece."""

    def __init__(self, encoding: str) -> None:
        self._gzip = encoding == "gzip"
        self._inflate = zlib.decompressobj(GZIP if self._gzip else ZLIB)
        self._begun = False
        self._members = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield what the data means, in pieces. Raises Unavailable for data that is not compressed as the server says."""
        while data:
            piece, data = self._next(data)
            if piece:
                yield piece

    def end(self) -> None:
        """Note that the body is over. Raises Unavailable if it stops in the middle."""
        if self._begun and not self._inflate.eof:
            raise Unavailable("the response's compressed body is cut off")

    def _next(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            if self._inflate.eof:
                self._next_member()
            piece = self._inflate.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            if self._gzip or self._begun:
                raise Unavailable(f"the response's body is not compressed as its server says: {error}") from None
            self._inflate = zlib.decompressobj(RAW)  # some servers mean this by deflate
            self._begun = True
            return self._next(data)
        self._begun = True
        return piece, self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail

    def _next_member(self) -> None:
        self._members += 1
        if not self._gzip or self._members > MOST_MEMBERS:
            raise Unavailable("the response goes on behind the end of its compressed body")
        self._inflate = zlib.decompressobj(GZIP)


def body_decoder(encoding: str) -> PlainBody | CompressedBody | None:
    """Return the decoder of a ``content-encoding``; None for one that is passed on as it is."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return PlainBody()
    if name in ("gzip", "x-gzip", "deflate"):
        return CompressedBody("gzip" if name != "deflate" else name)
    return None
