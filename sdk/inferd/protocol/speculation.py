"""Speculation: the settings of a request, the counts of its drafts, and ``speculation.verify``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from inferd.protocol.carrying import shown
from inferd.protocol.errors import InvalidRequest
from inferd.protocol.operations import operation
from inferd.protocol.ranges import check_one_each, check_whole
from inferd.protocol.sampling import Sampling, check_draws_of_all
from inferd.protocol.tokens import check_ids

SOURCES = ("predicted", "grammar", "ngram", "corpus", "draft_model", "program")
"""Where drafts come from. ``corpus`` is used only by requests that name it, ``program`` is the program's own speculator."""
VERIFIERS = ("agreement", "rejection")
MAX_DRAFT = 64
"""The most tokens that one step verifies for one generation."""


@dataclass(frozen=True)
class SpeculationSettings:
    """How the runtime drafts for a generation.

    ``sources``: some of SOURCES (not ``program``); empty means all but ``corpus``. ``max_draft``: tokens per step at most.
    ``tree``: whether sources may be verified side by side. ``draft_model`` "" lets the runtime choose among those that the
    server has for the model. ``verifier`` ``rejection`` is for a draft model alone and keeps the distribution, not
    the tokens of a seed. ``auto``: whether at all is the operator's choice.
    """

    sources: list[str] = field(default_factory=list)
    max_draft: int = 16
    tree: bool = True
    draft_model: str = ""
    verifier: str = "agreement"
    auto: bool = False


def check_settings(settings: SpeculationSettings) -> None:
    """Raises InvalidRequest, which names the field, for settings that no server could follow."""
    sources = settings.sources
    for place, source in enumerate(sources):
        if source == "program":
            raise InvalidRequest("sources: 'program' is none to choose: a program drafts with generate(speculator=...)")
        if source not in SOURCES:
            raise InvalidRequest(f"sources must hold some of {', '.join(SOURCES[:-1])}, not {shown(source)}")
        if source in sources[:place]:
            raise InvalidRequest(f"sources name {shown(source)} twice")
    check_whole("max_draft", settings.max_draft, 1, MAX_DRAFT)
    if settings.draft_model and sources and "draft_model" not in sources:
        raise InvalidRequest(f'draft_model names {shown(settings.draft_model)}, but sources leave out "draft_model"')
    if settings.verifier not in VERIFIERS:
        raise InvalidRequest(f"verifier must be {' or '.join(VERIFIERS)}, not {shown(settings.verifier)}")
    if settings.verifier == "rejection" and list(sources) != ["draft_model"]:
        raise InvalidRequest('verifier="rejection" needs "draft_model" as the only source: no other has probabilities')


def check_tree(tokens: Sequence[int], parents: Sequence[int] | None) -> None:
    """Raises InvalidRequest unless ``tokens`` are a draft of at most MAX_DRAFT and every parent is -1 or an earlier index.

    ``parents`` None: a chain.
    """
    if len(tokens) > MAX_DRAFT:
        raise InvalidRequest(f"a draft must hold at most {MAX_DRAFT} tokens, what one step verifies, not {len(tokens)}")
    if parents is not None:
        check_parents(parents, len(tokens))


def check_parents(parents: Sequence[int], count: int) -> None:
    """Raises InvalidRequest unless each of ``count`` tokens has a parent, and that is -1 or an earlier index."""
    check_one_each("parents", "index", len(parents), count)
    for node, parent in enumerate(parents):
        check_whole(f"parents[{node}]", parent, -1, node - 1)


@dataclass(frozen=True)
class SourceCount:
    """One source's part in one step: tokens ``drafted`` (verified), ``filtered`` (illegal under the grammar, so never
    verified) and ``accepted``. A token that several proposed counts for the first of them.
    """

    source: str
    drafted: int = 0
    filtered: int = 0
    accepted: int = 0


@dataclass(frozen=True)
class Verification:
    """What became of a verified draft: the ``accepted`` tokens in order, ``path`` the indices in the draft that they had,
    and ``token``, the model's own behind them. All of these stand in the context now, which holds ``length`` tokens.
    ``drafted`` of the draft's tokens were looked at: fewer where the step had no room for all of them, or beside an equal one.
    """

    accepted: list[int]
    token: int
    path: list[int]
    length: int
    drafted: int = 0


@operation("speculation.verify", Verification)
@dataclass(frozen=True)
class VerifyDraft:
    """One step: verify a draft behind the context, and append what stands of it and the model's own token.

    ``parents``: per token, which one it follows (-1: the context; a smaller index than its own); empty means a chain. At most
    MAX_DRAFT tokens; none is a plain step. End-of-text, and what follows it, is not verified. ``adapter``: as in
    ``generate.start``. ``generated``: how many of the context's last tokens are output to the sampler's penalties.
    """

    context: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    adapter: str = ""
    generated: int = 0


def check_verify(request: VerifyDraft) -> None:
    """Raises InvalidRequest, which names the field, for a draft that no model could verify.

    The sampler has a check of its own, ``check_sampling``.
    """
    check_ids("tokens", request.tokens)
    check_tree(request.tokens, request.parents or None)
    check_whole("generated", request.generated, 0)
    check_draws_of_all("verify", request.sampling)
