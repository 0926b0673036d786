"""The hand-shake of a target and a draft engine: both show that they know the key, and agree on the terms of the connection.

    target  -> HELLO(version, nonce)             draft engine -> CHALLENGE(version, nonce)
    target  -> PROOF(seal of both nonces)        draft engine -> WELCOME(terms, seal of both nonces and the terms)

The key itself is never sent. A peer that does not know it learns nothing about the model by connecting, nor gets a seal to
try keys on. The keys of the frames that follow come from both nonces, so that no connection can be replayed. Neither class waits
or sends: a frame goes in, a message comes out.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from inferd_runtime.draft_models.remote.frames import Frame, Kind, MalformedFrame, pack, unpack

VERSION = 1
NONCE_BYTES = 32
MOST_KNOWN = 16
MOST_REFUSAL = 200
"""Characters of a refusal that are kept."""


class Refused(Exception):
    """The other side does not want the connection, and says why; trying again with the same settings is of no use."""


class RefusedForNow(Refused):
    """There is no room at the moment. Its frame has the ticket 1."""


@dataclass(frozen=True)
class Hello:
    """Opens the hand-shake, from both sides. ``nonce``: 32 random bytes."""

    version: int
    nonce: bytes


@dataclass(frozen=True)
class Proof:
    """The target's proof. ``known``: checksums of the vocabularies that it has, which need not be sent."""

    seal: bytes
    known: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class DraftTerms:
    """What holds for a connection, decided by the draft engine and locked at the first hand-shake.

    ``checksum``: of the vocabulary; ``tokenizer``: the text of its tokenizer.json, "" where the target has that vocabulary.
    ``most_tokens``: that one request may draw. ``most_bytes``: of a request. ``idle_seconds``: of silence after which the session
    is closed. ``session``: its name.
    """

    model: str
    checksum: str
    vocab_size: int
    eos_tokens: list[int]
    max_context: int
    most_tokens: int
    most_bytes: int
    idle_seconds: float
    tokenizer: str = ""
    session: str = ""

    @property
    def locked(self) -> DraftTerms:
        """The part that has to be the same at each later hand-shake."""
        return replace(self, tokenizer="", session="")


@dataclass(frozen=True)
class Welcome:
    """The draft engine's proof, with the terms as bytes because it seals them."""

    seal: bytes
    terms: bytes


@dataclass(frozen=True)
class Outgoing:
    """A frame to send."""

    kind: Kind
    payload: bytes


@dataclass(frozen=True)
class FrameKeys:
    """The keys that frames of each direction are sealed with."""

    from_target: bytes
    from_draft: bytes

    @classmethod
    def of(cls, key: bytes, transcript: bytes) -> FrameKeys:
        """Return the keys of one connection."""
        return cls(_seal(key, b"frames from target", transcript), _seal(key, b"frames from draft", transcript))


def _seal(key: bytes, purpose: bytes, *parts: bytes) -> bytes:
    text = purpose + b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hmac.digest(key, text, "sha256")


def _transcript(target: Hello, draft: Hello) -> bytes:
    return b"inferd draft %d" % VERSION + target.nonce + draft.nonce


def _checked_hello(frame: Frame, kind: Kind) -> Hello:
    if frame.kind is not kind:
        raise MalformedFrame(f"{frame.kind.name} where {kind.name} was expected")
    hello = unpack(frame.payload, Hello)
    if len(hello.nonce) != NONCE_BYTES:
        raise MalformedFrame("a nonce of the wrong length")
    return hello


def refusal_text(payload: bytes) -> str:
    """Return what a REFUSED frame says, as printable text of a bounded length."""
    text = payload[: 4 * MOST_REFUSAL].decode(errors="replace")
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:MOST_REFUSAL]


def _without_known(terms: DraftTerms, known: Sequence[str]) -> DraftTerms:
    return replace(terms, tokenizer="") if terms.checksum in known else terms


class TargetHandshake:
    """The side of the target. :attr:`terms` and :attr:`keys` are set when it is over."""

    def __init__(self, key: bytes, known: Sequence[str] = ()) -> None:
        self._key = key
        self._known = list(known)
        self._hello = Hello(VERSION, secrets.token_bytes(NONCE_BYTES))
        self._transcript = b""
        self.terms: DraftTerms | None = None
        self.keys: FrameKeys | None = None

    def begin(self) -> Outgoing:
        """Return the first frame."""
        return Outgoing(Kind.HELLO, pack(self._hello))

    def receive(self, frame: Frame) -> Outgoing | None:
        """Take a frame and return the next one; None when it is over. Raises Refused or MalformedFrame."""
        if frame.kind is Kind.REFUSED:
            raise (RefusedForNow if frame.ticket else Refused)(refusal_text(frame.payload))
        if not self._transcript:
            return self._prove(_checked_hello(frame, Kind.CHALLENGE))
        if frame.kind is not Kind.WELCOME or self.terms is not None:
            raise MalformedFrame(f"{frame.kind.name} where WELCOME was expected")
        self._accept(unpack(frame.payload, Welcome))
        return None

    def _prove(self, challenge: Hello) -> Outgoing:
        if challenge.version != VERSION:
            raise Refused(f"the draft engine speaks version {challenge.version} of the protocol, this is {VERSION}")
        self._transcript = _transcript(self._hello, challenge)
        seal = _seal(self._key, b"target", self._transcript, *map(str.encode, self._known))
        return Outgoing(Kind.PROOF, pack(Proof(seal, self._known)))

    def _accept(self, welcome: Welcome) -> None:
        if not hmac.compare_digest(welcome.seal, _seal(self._key, b"draft", self._transcript, welcome.terms)):
            raise MalformedFrame("a draft engine that does not know the key")
        self.terms = unpack(welcome.terms, DraftTerms)
        self.keys = FrameKeys.of(self._key, self._transcript)


class DraftHandshake:
    """The side of the draft engine. :attr:`keys` is set when it is over."""

    def __init__(self, key: bytes, admit: Callable[[], DraftTerms]) -> None:
        """``admit`` returns the terms once the target has shown the key; raises Refused if there is no room for it."""
        self._key = key
        self._admit = admit
        self._hello = Hello(VERSION, secrets.token_bytes(NONCE_BYTES))
        self._transcript = b""
        self.keys: FrameKeys | None = None

    def receive(self, frame: Frame) -> Outgoing:
        """Take a frame and return the answer. Raises Refused, with what is sent, or MalformedFrame."""
        if self._transcript:
            return self._check(frame)
        hello = _checked_hello(frame, Kind.HELLO)
        if hello.version != VERSION:
            raise Refused(f"this draft engine speaks version {VERSION} of the protocol")
        self._transcript = _transcript(hello, self._hello)
        return Outgoing(Kind.CHALLENGE, pack(self._hello))

    def _check(self, frame: Frame) -> Outgoing:
        if frame.kind is not Kind.PROOF or self.keys is not None:
            raise MalformedFrame(f"{frame.kind.name} where PROOF was expected")
        proof = unpack(frame.payload, Proof)
        if len(proof.known) > MOST_KNOWN:
            raise MalformedFrame("too many vocabularies")
        expected = _seal(self._key, b"target", self._transcript, *map(str.encode, proof.known))
        if not hmac.compare_digest(proof.seal, expected):
            raise Refused("the key is wrong")
        terms = pack(_without_known(self._admit(), proof.known))
        self.keys = FrameKeys.of(self._key, self._transcript)
        return Outgoing(Kind.WELCOME, pack(Welcome(_seal(self._key, b"draft", self._transcript, terms), terms)))
