"""The engine's end of the wire: frames become sessions, requests and cancels; replies become frames. No sockets here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from inferd import protocol as p
from inferd_runtime.carriable import check_carriable, decode_bounded, is_plain
from inferd_runtime.engine.scheduling.fairness import FairClock
from inferd_runtime.known_fields import known_fields, strict
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.lanes import Lanes
from inferd_runtime.session.constraints.compile_queue import CompileQueue
from inferd_runtime.session.cycles import CycleFeed
from inferd_runtime.session.grants import Grant, SessionGrants
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.session import Session
from inferd_runtime.session.shared_tenants import SharedTenants
from inferd_runtime.session.short_replies import shortened
from inferd_runtime.session.state import SessionState, guarded
from inferd_runtime.session.step_profile import StepProfile
from inferd_runtime.session.wire import (
    CANCEL,
    CLOSE,
    ENGINE_REQUESTS,
    ERROR,
    JSON,
    MSGPACK,
    OK,
    OPEN,
    TICKET,
    CloseNamedSessions,
    EndedGenerations,
    EngineStats,
    FoundSlowStep,
    GetCycles,
    GetEngineStats,
    GetGenerations,
    GetProduced,
    GetSlowStep,
    ModelStats,
    OpenSession,
    ProducedTokens,
    ShareTenants,
)

Send = Callable[[bytes, list[bytes]], None]
DECODERS: Mapping[bytes, Callable[[Any], Any]] = {JSON: msgspec.json.Decoder, MSGPACK: msgspec.msgpack.Decoder}
MAX_REFUSAL = 4096
"""Characters of an error's message."""


def _model_stats(name: str, model: ServedModel) -> ModelStats:
    engine = model.engine
    return ModelStats(
        name, engine.steps, engine.scheduler.jobs, engine.pool.size, engine.pool.available,
        engine.contexts.reused, engine.parking.swapped, engine.parking.dropped,
        engine.draft_budget.counters, engine.draft_budget.controller.state == "open",
        {} if model.drafts is None else model.drafts.counters, engine.contexts.looked_up, model.generations.figures,
    )  # fmt: skip


class SessionHub:
    """All open sessions of one engine process, by the identity of their socket.

    ``send(identity, frames)`` must not block. Every request frame is answered once, malformed ones too. Whose session it is,
    and whether it is the gateway's own, stands in the grant that it was opened with (``grants``).
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        send: Send,
        grants: SessionGrants,
        snapshots: SnapshotStore | None = None,
        compiles: CompileQueue | None = None,
        texts: Lanes | None = None,
        clock: FairClock[str] | None = None,
    ) -> None:
        self._models = models
        self._send = send
        self._grants = grants
        self._snapshots = snapshots
        self._compiles = compiles
        self._texts = texts
        self._shared = SharedTenants(clock, [model.engine.accounts for model in models.values()])
        self._cycles = CycleFeed()
        self.profile = StepProfile()
        self._sessions: dict[bytes, Session] = {}
        self._siblings: dict[str, list[SessionState]] = {}
        self._granted: dict[bytes, Grant] = {}
        self._identities: dict[str, bytes] = {}
        self._produced: Counter[str] = Counter()
        self._counted: dict[bytes, int] = {}
        self._decode_as: dict[tuple[bytes, str], Callable[[bytes], Any]] = {
            (form, op): strict(decoder(cls).decode, decoder(known_fields(cls)).decode)
            for op, cls in p.OPERATIONS.items()
            for form, decoder in DECODERS.items()
        }

    def receive(self, identity: bytes, frames: Sequence[bytes]) -> None:
        """Take one request. Frames that are not of the wire's shape come from no client of ours and are dropped."""
        if len(frames) != 4 or len(frames[0]) != TICKET.size:
            return
        ticket: int = TICKET.unpack(frames[0])[0]
        respond = self._responder(identity, ticket, frames[2])
        op = frames[1].decode("utf-8", "replace")
        error = guarded(self._dispatch, identity, ticket, op, frames[2], frames[3], respond)
        if error is not None:
            respond(error)

    def refuse(self, identity: bytes, frames: Sequence[bytes], error: p.InferdError) -> None:
        """Answer a request of the wire's shape with an error."""
        self._responder(identity, TICKET.unpack(frames[0])[0], frames[2])(error)

    def tenant_of(self, identity: bytes) -> str | None:
        """Return the tenant of an open session, or None."""
        session = self._sessions.get(identity)
        return None if session is None else session.tenant

    def held(self, identity: bytes) -> bool:
        """True while a session can take no further request; see :attr:`~inferd_runtime.session.session.Session.held`."""
        session = self._sessions.get(identity)
        return session is not None and session.held

    def close_all(self) -> None:
        """Close every session."""
        for identity in list(self._sessions):
            self._close(identity)

    def held_pages(self, model: ServedModel) -> list[list[int]]:
        """Return the page tables of all sessions on one model, for its pool's integrity check."""
        return [pages for session in self._sessions.values() for pages in session.owned_tables(model)]

    def stats(self) -> EngineStats:
        """Return each model's figures, and totals over all of them."""
        models = [_model_stats(name, model) for name, model in self._models.items()]
        return EngineStats(
            steps=sum(model.steps for model in models),
            jobs=sum(model.jobs for model in models),
            sessions=len(self._sessions),
            pages=sum(model.pages for model in models),
            pages_free=sum(model.pages_free for model in models),
            models=models,
        )

    def _generations(self, asked: GetGenerations) -> EndedGenerations:
        return EndedGenerations(
            {
                name: [one for one in model.generations.ended if one.index > asked.after.get(name, -1)]
                for name, model in self._models.items()
            }
        )

    def _dispatch(
        self, identity: bytes, ticket: int, op: str, form: bytes, payload: bytes, respond: Callable[[Any], None]
    ) -> None:
        if op == OPEN:
            return self._open(identity, payload, respond)
        session = self._sessions.get(identity)
        if session is None:
            raise p.Unavailable("this session is not open (the engine may have been restarted)")
        if op == CANCEL:
            return session.cancel(ticket)
        if op == CLOSE:
            return respond(self._close(identity))
        if op in ENGINE_REQUESTS:
            return respond(self._answer_gateway(identity, op, payload))
        session.handle(ticket, self._decode(op, form, payload), respond)

    def _open(self, identity: bytes, payload: bytes, respond: Callable[[Any], None]) -> None:
        opened = msgspec.msgpack.decode(payload, type=OpenSession)
        grant = self._grants.redeem(opened.grant)
        self._close(identity)
        self._close_named(grant.session)
        siblings = self._siblings.setdefault(grant.tenant, [])
        publish = partial(self._cycles.publish, grant.tenant, opened.label)
        state = SessionState(
            self._models, grant.tenant, self._snapshots, self._compiles, self._texts, siblings, grant.session, publish
        )
        self._sessions[identity] = Session(state)
        self._granted[identity] = grant
        self._identities[grant.session] = identity
        respond(p.Done())

    def _close(self, identity: bytes) -> p.Usage:
        """Close the session of this socket, if it has one. Returns what it used."""
        session = self._sessions.pop(identity, None)
        if session is None:
            return p.Usage()
        del self._identities[self._granted.pop(identity).session]
        used = session.close()
        if not self._siblings[session.tenant]:
            del self._siblings[session.tenant]
        self._count_tokens(identity, session.tenant, used.tokens)
        del self._counted[identity]
        return used

    def take_produced(self) -> dict[str, int]:
        """Return the tokens that each tenant's sessions have generated since the last call; those that did are named."""
        for identity, session in self._sessions.items():
            self._count_tokens(identity, session.tenant, session.usage().tokens)
        produced, self._produced = self._produced, Counter()
        return {tenant: tokens for tenant, tokens in produced.items() if tokens}

    def _count_tokens(self, identity: bytes, tenant: str, tokens: int) -> None:
        self._produced[tenant] += tokens - self._counted.get(identity, 0)
        self._counted[identity] = tokens

    def _close_named(self, name: str) -> None:
        if name in self._identities:
            self._close(self._identities[name])

    def _answer_gateway(self, identity: bytes, op: str, payload: bytes) -> Any:
        """Return the reply to one of ENGINE_REQUESTS. Raises Unauthorized unless the session is the gateway's own."""
        if not self._granted[identity].gateway:
            raise p.Unauthorized(f"{op} is the gateway's own")
        match msgspec.msgpack.decode(payload, type=ENGINE_REQUESTS[op]):
            case GetEngineStats():
                return self.stats()
            case GetGenerations() as asked:
                return self._generations(asked)
            case CloseNamedSessions(sessions=names):
                for name in names:
                    self._close_named(name)
                return p.Done()
            case GetProduced():
                return ProducedTokens(self.take_produced())
            case ShareTenants() as shared:
                return self._shared.share(shared)
            case GetSlowStep(over_ms=over_ms):
                return FoundSlowStep(self.profile.read(over_ms))
            case GetCycles(tenant=tenant, after=after):
                return self._cycles.read(tenant, after)

    def _decode(self, op: str, form: bytes, payload: bytes) -> Any:
        decode = self._decode_as.get((form, op))
        if decode is None:
            raise p.InvalidRequest(f"unknown operation {p.shown(op)}")
        try:
            request = decode_bounded(decode, payload, op, json=form == JSON)
        except ValueError as error:  # msgspec's errors are, and those about UTF-8
            raise p.InvalidRequest(f"{op}: {error}") from error
        except RecursionError:
            raise p.InvalidRequest(f"{op}: nested too deeply") from None
        if form == JSON and not is_plain(payload):  # the only form that has integers beyond 64 bits
            check_carriable(request, op)
        return request

    def _responder(self, identity: bytes, ticket: int, form: bytes) -> Callable[[Any], None]:
        encode = msgspec.json.encode if form == JSON else msgspec.msgpack.encode

        def respond(reply: Any) -> None:
            ok, payload = _encoded(encode, reply)
            self._send(identity, [TICKET.pack(ticket), OK if ok else ERROR, payload])

        return respond


def _encoded(encode: Callable[[Any], bytes], reply: Any) -> tuple[bool, bytes]:
    """Return True and the payload of a reply, False and that of an error. A reply that cannot be encoded is an InternalError."""
    try:
        if isinstance(reply, p.InferdError):
            return False, encode(_refusal(reply))
        return True, encode(shortened(reply))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return False, encode(p.InternalError(f"the reply cannot be sent: {error}").to_wire())


def _refusal(error: p.InferdError) -> p.ErrorInfo:
    """Return an error as it is sent. Its message is cut, as it may repeat a part of the request."""
    return replace(error.to_wire(), message=p.cut(str(error.message), MAX_REFUSAL))
