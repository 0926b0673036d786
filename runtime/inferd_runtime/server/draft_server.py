"""A draft model for targets on other machines: its process, and the service in front of it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from inferd.protocol import InvalidRequest
from inferd_grammar import TokenTable
from inferd_runtime.draft_models.messages import DraftDescription
from inferd_runtime.draft_models.options import DraftAddress, DraftOptions
from inferd_runtime.draft_models.remote.handshake import DraftTerms
from inferd_runtime.draft_models.remote.link_thread import MOST_WELCOME
from inferd_runtime.draft_models.remote.service import DraftService
from inferd_runtime.server.engine_process.draft_link import ProcessDrafts
from inferd_runtime.server.engine_process.draft_models import draft_process_settings
from inferd_runtime.server.engine_process.draft_secrets import read_draft_key
from inferd_runtime.server.engine_process.vocabularies import vocabulary_of
from inferd_runtime.server.gateway.listening import check_exposure, listen, tls_context
from inferd_runtime.settings.settings import Settings

MOST_TOKENS = 256
"""That one request may draw."""
REQUEST_BYTES = 64 << 10
"""Of a request without its tokens."""
TOKEN_BYTES = 5
IDLE_SECONDS = 60.0
"""A target says something every few seconds as long as it is there."""


@dataclass(frozen=True)
class DraftServer:
    """A loaded draft model that listens. The model's process is started again when it ends."""

    service: DraftService
    listener: socket.socket
    terms: DraftTerms

    @property
    def port(self) -> int:
        """The port that it listens on."""
        port: int = self.listener.getsockname()[1]
        return port

    async def serve(self) -> None:
        """Serve targets until cancelled."""
        await self.service.serve(self.listener)


@contextlib.contextmanager
def draft_server(settings: Settings, address: DraftAddress) -> Iterator[DraftServer]:
    """Check the settings, listen, and load the model in a process of its own; all of it ends with the block.

    Raises InvalidRequest, Unavailable, or the error that the model's process ended with.
    """
    settings = replace(settings, host=address.host, port=address.port)
    check_exposure(settings)
    tls, key = tls_context(settings), read_draft_key(settings)
    with contextlib.ExitStack() as held:
        listener = held.enter_context(listen(address.host, address.port))
        model = settings.engine.models[0]
        transport = ProcessDrafts(draft_process_settings(settings.engine, DraftOptions(model, process=True)))
        held.callback(transport.close)
        terms = terms_of(Path(model.name).name, transport.describe())
        yield DraftServer(DraftService(transport, terms, key, tls), listener, terms)


def terms_of(name: str, known: DraftDescription) -> DraftTerms:
    """Return the terms on which a draft model is served. Raises InvalidRequest for a tokenizer that is too long to be sent."""
    if len(known.tokenizer) > MOST_WELCOME // 2:
        raise InvalidRequest(f"the tokenizer of {name!r} is too long to be sent to a target")
    table = TokenTable.from_tokenizer_json(known.tokenizer, vocab_size=known.vocab_size, eos_ids=known.eos_tokens)
    return DraftTerms(
        name, vocabulary_of(table).checksum, known.vocab_size, known.eos_tokens, known.max_context, MOST_TOKENS,
        REQUEST_BYTES + TOKEN_BYTES * known.max_context, IDLE_SECONDS, known.tokenizer,
    )  # fmt: skip
