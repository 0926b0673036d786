"""All sources of one generation: asked in order, merged into one draft, told what became of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter, mul
from typing import NamedTuple, TypeVar

from inferd_runtime.speculation.breaker import SourceBreaker
from inferd_runtime.speculation.counters import SpeculationCounters
from inferd_runtime.speculation.drafter import Drafter
from inferd_runtime.speculation.drafts import NO_DRAFT, NOTHING, ROOT, Draft, DraftBuilder, Proposal
from inferd_runtime.speculation.survival import RequestSurvival

T = TypeVar("T")
GRAMMAR = "grammar"
ALTERNATIVE = "/second"
"""A source's guesses beside its first one are an experience of their own."""
IN_VAIN = 4
LONGEST_REST = 16
SHORT_REST = 4
TRIAL = 3
"""Tokens of a source that its breaker has turned off and lets try again."""
"""A source whose guesses were wrong, or not worth verifying, so many times running is not asked for a while: it costs nothing."""
WELL_GUESSED = 4
"""After so many accepted tokens of a source that is at hand, nobody waits for another one."""
REST_STEPS = attrgetter("rest_steps")
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Branch:
    """A run of a proposal's nodes, each the first child of the one before. ``beside`` is the sibling that was named first."""

    nodes: list[int]
    parent: int
    beside: int | None


class Memory(NamedTuple):
    """A drafter that stays with its context, of which it has observed the first ``length`` tokens."""

    drafter: Drafter
    length: int

    def fork(self) -> Memory | None:
        """For a copy of the context."""
        drafter = self.drafter.fork()
        return None if drafter is None else Memory(drafter, self.length)


class Source:
    """One drafter behind a net: whatever it raises turns it off for this generation, and nothing else."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.source
        self._insists = drafter.insists
        self.waits = type(drafter).ready is not Drafter.ready
        self.breaker = SourceBreaker()
        self._dropped = False
        self._in_vain = 0
        self.rest_steps = 0
        """For so many steps it is not asked."""
        self._drafter: Drafter | None = drafter

    def begin(self, prompt: Sequence[int]) -> None:
        """See :class:`Drafter`."""
        self._guarded(lambda drafter: drafter.begin(prompt), None)

    def observe(self, tokens: Sequence[int]) -> None:
        """See :class:`Drafter`."""
        self._guarded(_observe, None, tokens)

    def need(self, needed: bool) -> None:
        """See :class:`Drafter`."""
        if self._drafter is not None:
            self._drafter.needed = needed

    def propose(self, limit: int, ahead: Sequence[int]) -> Proposal:
        """See :class:`Drafter`. Nothing while it rests."""
        if self.rest_steps:
            self.rest_steps -= 1
            return NOTHING
        proposal = self._guarded(_propose, NOTHING, limit, ahead)
        if not proposal.tokens or self._insists:
            return proposal
        if not self.breaker.allows(proposal.match):
            self.rest_steps = SHORT_REST
            return NOTHING
        return proposal if self.breaker.on else proposal.first(TRIAL)

    def missed(self) -> None:
        """Nothing of the last proposal was worth verifying, or right."""
        self._in_vain += 1
        if self._in_vain >= IN_VAIN and not self._insists:
            self.rest_steps = min(LONGEST_REST, 2 ** (self._in_vain - IN_VAIN))

    def hit(self) -> None:
        """Something of the last proposal was accepted."""
        self._in_vain = 0

    def feedback(self, proposed: int, accepted: int) -> None:
        """See :class:`Drafter`."""
        self._guarded(lambda drafter: drafter.feedback(proposed, accepted), None)

    def ready(self) -> bool:
        """See :class:`Drafter`."""
        return self._guarded(lambda drafter: drafter.ready(), True)

    @property
    def drafter(self) -> Drafter | None:
        """The drafter, unless it failed or was dropped."""
        return self._drafter

    def drop(self) -> None:
        """See :class:`Drafter`. Nothing is asked of it afterwards."""
        if not self._dropped:
            self._dropped = True
            self._guarded(lambda drafter: drafter.drop(), None)
            self._drafter = None

    def _guarded(self, call: Callable[..., T], otherwise: T, *arguments: object) -> T:
        if self._drafter is None:
            return otherwise
        try:
            return call(self._drafter, *arguments)
        except Exception:
            # The boundary of one source: a bad guess must not cost the text. What it holds elsewhere it gives back, if it can.
            LOG.exception("the %s drafter failed; its generation goes on without it", self.name)
            self.drop()
            return otherwise


def _observe(drafter: Drafter, tokens: Sequence[int]) -> None:
    drafter.observe(tokens)


def _propose(drafter: Drafter, limit: int, ahead: Sequence[int]) -> Proposal:
    return drafter.propose(limit, ahead)


@dataclass(slots=True)
class SourceProposal:
    """What a source proposed for the step under way: its branches, and where its nodes stand in the merged draft."""

    source: Source
    proposal: Proposal
    branches: list[Branch]
    places: Sequence[int] = ()

    def label(self, branch: Branch) -> str:
        """Under what name the branch's experience is kept."""
        return self.source.name if branch.beside is None else self.source.name + ALTERNATIVE


class SourceSet:
    """The sources of one generation, by priority.

    ``forced``: whether tokens that a grammar leaves no choice about are drafted. Without ``tree``, what the sources propose
    side by side becomes the likeliest chain.
    """

    def __init__(
        self, drafters: Sequence[Drafter], survival: RequestSurvival, counters: SpeculationCounters, *,
        max_draft: int = 16, tree: bool = True, forced: bool = True,
    ) -> None:  # fmt: skip
        self.forced = forced
        self.counters = counters
        self._sources = [Source(drafter) for drafter in drafters]
        self._slow = [source for source in self._sources if source.waits]
        self._survival = survival
        self.max_draft = max_draft
        self._tree = tree
        self._open: list[SourceProposal] = []
        self._proposed = NO_DRAFT
        self._observed = 0
        self._well_guessed = False

    def begin(self, prompt: Sequence[int]) -> None:
        """Tell every source what stands before the generation."""
        self._observed = len(prompt)
        for source in self._sources:
            source.begin(prompt)

    def observe(self, tokens: Sequence[int]) -> None:
        """Tell every source which tokens stand now."""
        self._observed += len(tokens)
        for source in self._slow:
            source.need(not self._well_guessed)
        for source in self._sources:
            source.observe(tokens)

    def ready(self) -> bool:
        """False while a source makes a guess that is worth waiting for: not where the others just guessed well."""
        return not self._slow or self._well_guessed or all(source.ready() for source in self._slow)

    @property
    def all_resting(self) -> bool:
        """True if no source is to be asked in this step."""
        return all(map(REST_STEPS, self._sources))

    @property
    def resting_next_step(self) -> bool:
        """True if no source will be asked in the next step, whatever the step in flight returns."""
        return not self._open and not self._slow and self.all_resting

    def skip_step(self) -> None:
        """Count one step of every source's rest."""
        self._open = []
        for source in self._sources:
            source.rest_steps -= 1

    def propose(self, limit: int, forced: Sequence[int] = ()) -> Draft:
        """One draft of at most ``limit`` tokens: what is ``forced``, and behind it whatever the sources propose."""
        limit = min(limit, self.max_draft)
        self._open = [asked for source in self._sources if (asked := self._ask(source, limit, forced)) is not None]
        self._proposed = self._merge(forced[:limit]) if forced or self._open else NO_DRAFT
        draft = self._proposed
        return draft.likeliest(limit) if self._tree or draft.is_chain else draft.chain().likeliest(limit)

    def _ask(self, source: Source, limit: int, forced: Sequence[int]) -> SourceProposal | None:
        if len(forced) >= limit:
            return None
        proposal = source.propose(limit - len(forced), forced)
        return SourceProposal(source, proposal, branches(proposal)) if proposal.tokens else None

    def _merge(self, forced: Sequence[int]) -> Draft:
        if len(self._open) == 1 and not forced and not self._open[0].proposal.parents:
            return self._alone(self._open[0])
        builder, sure = DraftBuilder(), [1.0] * len(forced)
        if forced:
            builder.add(GRAMMAR, Proposal(forced), sure)
        for asked in self._open:
            survival = [*sure, *self._chances(asked)]
            asked.places = builder.add(asked.source.name, behind(asked.proposal, forced), survival)[len(forced) :]
        draft, places = builder.build()
        for asked in self._open:
            asked.places = [places[node] for node in asked.places]
        return draft

    def _alone(self, asked: SourceProposal) -> Draft:
        """One source's chain needs no merging."""
        proposal, count = asked.proposal, len(asked.proposal.tokens)
        asked.places = range(count)
        names = [asked.source.name] * count
        return Draft(proposal.tokens, range(-1, count - 1), names, self._chances(asked), proposal.probabilities)

    def _chances(self, asked: SourceProposal) -> list[float]:
        """The chance of each node that it and all before it are accepted."""
        proposal = asked.proposal
        alone = list(proposal.confidence) or self._experience(asked)
        if not proposal.parents:
            return list(accumulate(alone, mul))
        survival: list[float] = []
        for node, chance in enumerate(alone):
            parent = proposal.parent(node)
            survival.append(chance if parent == ROOT else chance * survival[parent])
        return survival

    def _experience(self, asked: SourceProposal) -> list[float]:
        """The chance of each node that it is accepted when its parent is."""
        if not asked.proposal.parents:
            return self._survival.chances(asked.source.name, asked.proposal.match, len(asked.proposal.tokens))
        alone = [0.0] * len(asked.proposal.tokens)
        for branch in asked.branches:
            chances = self._survival.chances(asked.label(branch), asked.proposal.match, len(branch.nodes))
            for node, chance in zip(branch.nodes, chances, strict=True):
                alone[node] = chance
            if branch.beside is not None:
                alone[branch.nodes[0]] *= 1 - alone[branch.beside]
        return alone

    def learn(self, verified: Draft, path: Sequence[int], cost: float) -> None:
        """After a step that verified a part of what was proposed, and accepted ``path`` of that.

        ``cost``: how long the step took, relative to one without drafts.
        """
        self._well_guessed = False
        if self._open:
            kept = match_nodes(self._proposed, verified) if verified.tokens else {}
            accepted = set(path)
            stands = {node for node, at in kept.items() if at in accepted}
            for asked in self._open:
                self._learn_from(asked, kept, stands, cost)
            self._open = []

    def _learn_from(self, asked: SourceProposal, kept: Mapping[int, int], stands: Set[int], cost: float) -> None:
        drafted = [node for node in asked.places if node in kept]
        if not drafted:
            return asked.source.missed()
        accepted = sum(node in stands for node in drafted)
        if accepted:
            asked.source.hit()
            self._well_guessed |= accepted >= WELL_GUESSED and not asked.source.waits
        else:
            asked.source.missed()
        asked.source.feedback(len(drafted), accepted)
        asked.source.breaker.report((1 + accepted) / cost)
        if not asked.proposal.confidence:
            self._learn_survival(asked, kept, stands)

    def _learn_survival(self, asked: SourceProposal, kept: Mapping[int, int], stands: Set[int]) -> None:
        """Branch by branch: how many of its nodes stand, and whether the next one was tried in vain."""
        places = asked.places
        for branch in asked.branches:
            tried = branch.parent == ROOT or places[branch.parent] in stands
            if not tried or (branch.beside is not None and places[branch.beside] in stands):
                continue
            run = [places[node] for node in branch.nodes]
            accepted = next((at for at, node in enumerate(run) if node not in stands), len(run))
            proposed = min(sum(node in kept for node in run), accepted + 1)
            if proposed:
                self._survival.learn(asked.label(branch), asked.proposal.match, proposed, accepted)

    def memory(self) -> Memory | None:
        """What is worth keeping for the next generation on the context."""
        for source in self._sources:
            if source.drafter is not None and type(source.drafter).fork is not Drafter.fork:
                return Memory(source.drafter, self._observed)
        return None

    def end(self) -> None:
        """Nothing more is guessed, though the generation may stay open for long: give back what is held elsewhere."""
        for source in self._slow:
            source.drop()

    def drop(self) -> None:
        """The generation is over."""
        for source in self._sources:
            source.drop()


def branches(proposal: Proposal) -> list[Branch]:
    """A proposal's runs. A chain is one."""
    if not proposal.parents:
        return [Branch(list(range(len(proposal.tokens))), ROOT, None)]
    runs: dict[int, Branch] = {}
    first: dict[int, int] = {}
    for node, parent in enumerate(proposal.parents):
        if parent not in first:
            first[parent] = node
            if parent != ROOT:
                runs[node] = runs[parent]
                runs[node].nodes.append(node)
                continue
        runs[node] = Branch([node], parent, None if first[parent] == node else first[parent])
    return list({id(run): run for run in runs.values()}.values())


def behind(proposal: Proposal, forced: Sequence[int]) -> Proposal:
    """The proposal with what is certain to come before it."""
    if not forced:
        return proposal
    shift = len(forced)
    parents = [node - 1 for node in range(shift)]
    parents += [
        shift - 1 if (parent := proposal.parent(node)) == ROOT else parent + shift
        for node in range(len(proposal.tokens))
    ]
    return Proposal([*forced, *proposal.tokens], parents)


def match_nodes(offered: Draft, verified: Draft) -> dict[int, int]:
    """Which node of ``offered`` is which of ``verified``, a part of it. Nodes that were cut away are not in it."""
    if offered is verified:
        return {node: node for node in range(len(offered))}
    below = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(verified.parents, verified.tokens, strict=True))
    }
    kept = {ROOT: ROOT}
    for node, (parent, token) in enumerate(zip(offered.parents, offered.tokens, strict=True)):
        at = below.get((kept[parent], token)) if parent in kept else None
        if at is not None:
            kept[node] = at
    del kept[ROOT]
    return kept
