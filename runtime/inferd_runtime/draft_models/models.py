"""The draft models of a served model: the choice of one for each generation, and the transports to them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakSet

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.draft_models.drafter import DraftModelDrafter, DraftModelLink
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.messages import DraftSpec, Pollable
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation.bandit import Bandit, Thompson
from inferd_runtime.speculation.bridge import SharedVocabulary, TokenBridge, Vocabulary, VocabularyBridge
from inferd_runtime.speculation.counters import DraftModelCounters
from inferd_runtime.speculation.drafter import Drafter

MAX_DRAFT = 16


@dataclass(frozen=True)
class DraftModel:
    """One draft model of a target, which may draw ids below ``width``. ``bridge`` None: both have the same vocabulary."""

    name: str
    link: DraftModelLink
    width: int
    bridge: Callable[[], TokenBridge] | None = None


@dataclass(frozen=True)
class AbsentDraftModel:
    """A draft model on another machine that was not there at the start. ``arrived`` returns it once it is, and does not wait."""

    name: str
    link: DraftModelLink
    arrived: Callable[[], DraftModel | None]


class NoDrafts(Drafter):
    """The drafter of a generation whose draft model was not there when it started."""

    source = "draft_model"
    resting = True


def connect(name: str, link: DraftModelLink, target: Vocabulary, draft: Vocabulary) -> DraftModel:
    """Return a draft model for a target, with a bridge if their vocabularies differ."""
    if target.checksum == draft.checksum:
        return DraftModel(name, link, len(target.tokens))
    draft.index()
    return DraftModel(name, link, len(draft.tokens), partial(VocabularyBridge, target, draft))


class DraftModels:
    """The draft models of one target. Belongs to the thread of the target's step loop, which polls :attr:`waits_on` and calls
    :meth:`poll`. ``bandit`` chooses for generations that name none of them.
    """

    def __init__(
        self, models: Sequence[DraftModel | AbsentDraftModel], *,
        lengths: type[DraftLength] = DraftLength, bandit: Callable[[int], Bandit] = Thompson,
    ) -> None:  # fmt: skip
        if not models:
            raise ValueError("there has to be a draft model")
        self._models = list(models)
        self._lengths = lengths
        self._bandit = bandit(len(models))
        self._numbers = itertools.count(1)
        self._open: WeakSet[DraftModelDrafter] = WeakSet()

    @property
    def names(self) -> list[str]:
        """The names of the draft models."""
        return [model.name for model in self._models]

    @property
    def counters(self) -> dict[str, DraftModelCounters]:
        """The counters of each draft model, by name."""
        return {model.name: model.link.counters for model in self._models}

    def open(
        self,
        *,
        tenant: str,
        sampler: RowSampler,
        name: str = "",
        verifier: str = "agreement",
        max_draft: int = MAX_DRAFT,
        prompt: int = 0,
        salt: str = "",
    ) -> Drafter:
        """Return a drafter for one generation of a tenant. Its first ``observe`` must bring the whole context.

        ``name`` "": a bandit chooses the draft model. ``sampler`` is the target's own, so that the draft model draws with the
        same noise; for the ``rejection`` verifier it draws with its own noise and returns its distributions. The sampler's
        penalties and biases also hold for the draft model if both have one vocabulary, with the tokens after the first
        ``prompt`` ones as output; over a bridge it drafts without them. Raises NotFound for a draft model that is not served,
        InvalidRequest for ``rejection`` over a bridge.
        """
        arm = self._find(name, verifier)
        model = self._models[arm]
        if isinstance(model, AbsentDraftModel):
            return NoDrafts()
        if model.bridge is not None:
            sampler = replace(sampler, penalties=None)
        spec = DraftSpec(tenant, sampler, model.width, verifier == "rejection", prompt, salt)
        bridge = SharedVocabulary(model.width) if model.bridge is None else model.bridge()
        length = self._lengths(model.link.experience, most=max_draft, overlaps=model.link.transport.overlaps)
        drafter = DraftModelDrafter(
            model.link, next(self._numbers), bridge, spec, length=length, on_drop=partial(self._learn, arm)
        )
        self._open.add(drafter)
        return drafter

    def poll(self) -> bool:
        """Hand over the answers that have arrived, and give up late ones that are waited for. Returns False if there is none."""
        progressed = [model.link.transport.poll() for model in self._models]
        self._models = [
            model.arrived() or model if isinstance(model, AbsentDraftModel) else model for model in self._models
        ]
        late = [drafter.give_up_late() for drafter in self._open if drafter.patience() is not None]
        return any((*progressed, *late))

    @property
    def waits_on(self) -> list[Pollable]:
        """The descriptors and ZeroMQ sockets that are readable when :meth:`poll` has something to do."""
        return [source for model in self._models for source in model.link.transport.waits_on]

    def patience(self, seconds: float) -> float:
        """Return how long the step loop may wait, ``seconds`` at most, before a generation goes on without its draft."""
        waiting = [patience for drafter in self._open if (patience := drafter.patience()) is not None]
        return min([seconds, *waiting])

    def close(self) -> None:
        """Close all transports."""
        for model in self._models:
            model.link.transport.close()

    def _find(self, name: str, verifier: str) -> int:
        fit = [at for at, model in enumerate(self._models) if verifier != "rejection" or _gives_distributions(model)]
        here = [at for at in fit if isinstance(self._models[at], DraftModel)]
        if not name and fit:
            here = [at for at in here if self._models[at].link.experience.worth.pays] or here
            chosen = self._bandit.choose()
            return chosen if chosen in here else (here or fit)[0]
        if name and name not in self.names:
            raise NotFound(f"there is no draft model {name!r}; there are {', '.join(self.names)}")
        arm = self.names.index(name) if name else 0
        if arm not in fit:
            why = "is on another machine" if self._models[arm].link.remote else "has another vocabulary"
            raise InvalidRequest(f'draft model {self.names[arm]!r} {why}: it cannot draft for the verifier "rejection"')
        return arm

    def _learn(self, arm: int, speed: float) -> None:
        """Reward the draft model with the share of the time that it has saved."""
        if speed:
            self._bandit.learn(arm, max(0.0, 1.0 - 1.0 / speed))


def _gives_distributions(model: DraftModel | AbsentDraftModel) -> bool:
    """Return True if its distributions are of the target's tokens, and can be believed."""
    return isinstance(model, DraftModel) and model.bridge is None and not model.link.remote
