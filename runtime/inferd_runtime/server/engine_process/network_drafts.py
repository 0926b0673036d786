"""From a draft model's address to a served model that drafts with it, whether its draft engine is there yet or not."""

from __future__ import annotations

import logging
import ssl
from concurrent.futures import Future, ThreadPoolExecutor

from inferd.protocol import InvalidRequest
from inferd_grammar import TokenTable
from inferd_runtime.draft_models.drafter import DraftModelLink
from inferd_runtime.draft_models.models import AbsentDraftModel, DraftModel, connect
from inferd_runtime.draft_models.options import DraftAddress, DraftOptions
from inferd_runtime.draft_models.remote.handshake import DraftTerms
from inferd_runtime.draft_models.remote.link_thread import LinkTarget
from inferd_runtime.draft_models.remote.network_drafts import NetworkDrafts
from inferd_runtime.server.engine_process.command import DraftSecrets
from inferd_runtime.server.engine_process.vocabularies import vocabulary_of
from inferd_runtime.speculation.bridge import Vocabulary

LOG = logging.getLogger("inferd.drafts")
FIRST_SECONDS = 10.0
"""How long a start waits for a draft engine, before it goes on without."""


class NetworkDraftModel:
    """A draft model at an address. :meth:`arrived` returns it as soon as its draft engine was there once.

    Its vocabulary is read in a thread: with a large one that takes seconds, for which the step loop must not wait.
    """

    def __init__(self, options: DraftOptions, target: Vocabulary, secrets: DraftSecrets) -> None:
        assert options.at is not None
        self.options = options
        self.transport = NetworkDrafts(_link_target(options.at, target, secrets))
        self.link = DraftModelLink(
            self.transport, 0, options.timeout_ms / 1000, remote=True, counters=self.transport.counters
        )
        self._target = target
        self._reader = ThreadPoolExecutor(1, "vocabulary")
        self._reading: Future[DraftModel] | None = None

    def first(self, seconds: float = FIRST_SECONDS) -> DraftModel | None:
        """Wait for the draft engine. None if it is not there in time; raises Unavailable if it refuses this target."""
        try:
            terms = self.transport.first_terms(seconds)
        except BaseException:
            self.transport.close()
            raise
        return None if terms is None else self._read(terms).result()

    def arrived(self) -> DraftModel | None:
        """Return the draft model; None as long as it is not there, and if its tokenizer cannot be read. Does not wait."""
        terms = self.transport.terms
        if terms is None:
            return None
        reading = self._read(terms)
        return reading.result() if reading.done() and reading.exception() is None else None

    def _read(self, terms: DraftTerms) -> Future[DraftModel]:
        if self._reading is None:
            self._reading = self._reader.submit(self._build, terms)
            self._reading.add_done_callback(_report)
            self._reader.shutdown(wait=False)
        return self._reading

    def _build(self, terms: DraftTerms) -> DraftModel:
        vocabulary = self._target
        if terms.checksum != self._target.checksum:
            vocabulary = read_vocabulary(terms)
        self.link.max_context = terms.max_context
        return connect(self.options.model.name, self.link, self._target, vocabulary)


def at_address(options: DraftOptions, target: Vocabulary, secrets: DraftSecrets) -> DraftModel | AbsentDraftModel:
    """Return the draft model at an address; if its draft engine is not there yet, it joins when it is.

    Raises Unavailable if the draft engine refuses this target, InvalidRequest if its tokenizer cannot be read.
    """
    model = NetworkDraftModel(options, target, secrets)
    return model.first() or AbsentDraftModel(options.model.name, model.link, model.arrived)


def _report(reading: Future[DraftModel]) -> None:
    if (error := reading.exception()) is not None:
        LOG.error("the draft engine's tokenizer cannot be used: %s", error)


def read_vocabulary(terms: DraftTerms) -> Vocabulary:
    """Return the vocabulary of a draft engine. Raises InvalidRequest if its tokenizer cannot be read, or is another one."""
    table = TokenTable.from_tokenizer_json(terms.tokenizer, vocab_size=terms.vocab_size, eos_ids=terms.eos_tokens)
    vocabulary = vocabulary_of(table)
    if vocabulary.checksum != terms.checksum:
        raise InvalidRequest("the draft engine's tokenizer is not the one that its checksum is of")
    return vocabulary


def _link_target(address: DraftAddress, target: Vocabulary, secrets: DraftSecrets) -> LinkTarget:
    tls = ssl.create_default_context(cadata=secrets.trusted or None) if address.tls else None
    return LinkTarget(address.host, address.port, secrets.key.encode(), tls, (target.checksum,))
