"""From the settings' draft models to served models that draft: threads, processes, vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from inferd_grammar import TokenTable
from inferd_runtime.draft_models.draft_host import DraftHost
from inferd_runtime.draft_models.drafter import DraftLine
from inferd_runtime.draft_models.models import DraftModels, connect
from inferd_runtime.draft_models.options import DraftOptions, choices_of
from inferd_runtime.draft_models.thread import DraftThread
from inferd_runtime.server.engine_process.draft_link import RemoteDrafts
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.speculation.bandit import Bandit, Thompson, UcbTuned
from inferd_runtime.speculation.bridge import Vocabulary

BANDITS: Mapping[str, Callable[[int], Bandit]] = {"thompson": Thompson, "ucb": UcbTuned}


@dataclass(frozen=True)
class ReadyDraft:
    """A draft model that is loaded, and the way to it."""

    options: DraftOptions
    line: DraftLine
    vocabulary: Vocabulary


def vocabulary_of(table: TokenTable) -> Vocabulary:
    """A tokenizer's vocabulary. Special tokens are read as the text they are written in."""
    tokenizer = Tokenizer.from_str(table.source)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return Vocabulary(
        table.tokens, table.special_names, lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
    )


def in_thread(options: DraftOptions, served: ServedModel, prepare: Callable[[], None]) -> ReadyDraft:
    """A draft model of this process; ``prepare`` runs in its thread first."""
    transport = DraftThread(DraftHost(served.engine, served.tokenizer.eos_tokens), prepare)
    line = DraftLine(transport, served.info.max_context, options.timeout_ms / 1000)
    return ReadyDraft(options, line, vocabulary_of(served.grammars.table))


def in_process(options: DraftOptions, flags: Sequence[str]) -> ReadyDraft:
    """A draft model in a process of its own, which ``flags`` start. Waits until it is loaded; raises the InferdError that it
    ended with.
    """
    transport = RemoteDrafts(flags)
    try:
        known = transport.describe()
        table = TokenTable.from_tokenizer_json(known.tokenizer, vocab_size=known.vocab_size, eos_ids=known.eos_tokens)
    except BaseException:
        transport.close()
        raise
    return ReadyDraft(options, DraftLine(transport, known.max_context, options.timeout_ms / 1000), vocabulary_of(table))


def attach(served: Sequence[ServedModel], drafts: Sequence[ReadyDraft]) -> list[ServedModel]:
    """The served models, each with its draft models. Raises as :func:`~inferd_runtime.draft_models.options.choices_of`."""
    names = [model.info.name for model in served]
    choices = choices_of([draft.options for draft in drafts], names)
    attached = []
    for model in served:
        own = [draft for draft in drafts if draft.options.target_among(names) == model.info.name]
        if own:
            target = vocabulary_of(model.grammars.table)
            models = [connect(one.options.model.name, one.line, target, one.vocabulary) for one in own]
            model = replace(model, drafts=DraftModels(models, bandit=BANDITS[choices[model.info.name]]))
        attached.append(model)
    return attached
