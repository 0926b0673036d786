"""The sources of one generation: they propose tokens, which are merged into one draft, and learn what became of it."""

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
"""The source of tokens that a grammar forces."""
ALTERNATIVE = "/second"
"""Added to a source's name for the experience with its alternatives, the branches beside its first."""
MISSES_BEFORE_REST = 4
"""After so many useless proposals in a row, a source rests: it is not asked for some steps."""
LONGEST_REST = 16
SHORT_REST = 4
"""Steps for which a source that takes time is not asked after a guess that it was not to draft."""
WELL_GUESSED = 4
"""After so many accepted tokens of a source without waiting time, no step waits for another one."""
RESTS, RESTING = attrgetter("rests"), attrgetter("resting")
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Branch:
    """A run of a proposal's nodes, each the first child of the one before. ``beside``: the first sibling of its first node."""

    nodes: list[int]
    parent: int
    beside: int | None


class Memory(NamedTuple):
    """A drafter that stays with its context, of which it has observed the first ``length`` tokens."""

    drafter: Drafter
    length: int

    def fork(self) -> Memory | None:
        """Return the memory of a copy of the context; None if the drafter cannot be forked."""
        drafter = self.drafter.fork()
        return None if drafter is None else Memory(drafter, self.length)


class Source:
    """One drafter with its error boundary, breaker and rests. If it raises, it is dropped, and the generation goes on."""

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.source
        self._insists = drafter.insists
        self.waits = type(drafter).ready is not Drafter.ready
        self.breaker = SourceBreaker()
        self._dropped = False
        self._misses = 0
        self._guess = -1
        """The token that it would have drafted next while its breaker keeps it from drafting; -1: none."""
        self.rest_steps = 0
        """The number of steps for which it is not asked."""
        self._drafter: Drafter | None = drafter

    @property
    def resting(self) -> bool:
        """See :class:`Drafter`. True once it was dropped."""
        return self._drafter is None or self._drafter.resting

    @property
    def rests(self) -> bool:
        """True if it is not to be asked in this step."""
        return self.rest_steps > 0 or self.resting

    def begin(self, prompt: Sequence[int], tokens: int | None) -> None:
        """See :class:`Drafter`. ``tokens``: so many may come."""
        self.breaker = SourceBreaker(tokens)
        self._guarded(lambda drafter: drafter.begin(prompt), None)

    def observe(self, tokens: Sequence[int]) -> None:
        """See :class:`Drafter`."""
        if self._guess >= 0:
            self._check_guess(tokens[0])
        self._guarded(_observe, None, tokens)

    def set_needed(self, needed: bool) -> None:
        """See :class:`Drafter`."""
        if self._drafter is not None:
            self._drafter.needed = needed

    def propose(self, limit: int, ahead: Sequence[int], costs: Sequence[float]) -> Proposal:
        """See :class:`Drafter`. Counts a step of its rest instead, while it rests. ``costs``: of 0, 1, .. rows in plain steps."""
        if self.rest_steps:
            self.rest_steps -= 1
            return NOTHING
        most = limit if self._insists else min(limit, self.breaker.affords(costs))
        proposal = self._guarded(_propose, NOTHING, max(1, most), ahead)
        if most or not proposal.tokens:
            return proposal
        self._guess = -1 if ahead else proposal.tokens[0]
        self.rest_steps = SHORT_REST if self.waits else 0
        return NOTHING

    def _check_guess(self, token: int) -> None:
        right, self._guess = self._guess == token, -1
        self.breaker.guessed(right)
        if right:
            self.count_hit()
        else:
            self.count_miss()

    def count_miss(self) -> None:
        """Count a proposal of which nothing was verified or accepted. Several in a row begin a rest."""
        self._misses += 1
        if self._misses >= MISSES_BEFORE_REST and not self._insists:
            self.rest_steps = min(LONGEST_REST, 2 ** (self._misses - MISSES_BEFORE_REST))

    def count_hit(self) -> None:
        """Count a proposal of which something was accepted."""
        self._misses = 0

    def feedback(self, proposed: int, accepted: int) -> None:
        """See :class:`Drafter`."""
        self._guarded(lambda drafter: drafter.feedback(proposed, accepted), None)

    def ready(self) -> bool:
        """See :class:`Drafter`."""
        return self._guarded(lambda drafter: drafter.ready(), True)

    @property
    def drafter(self) -> Drafter | None:
        """The drafter; None once it failed or was dropped."""
        return self._drafter

    def drop(self) -> None:
        """See :class:`Drafter`. The drafter is not called afterwards."""
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
            # The boundary of one source, whose failure must not end the generation. It may still release what it holds.
            LOG.exception("the %s drafter failed; its generation goes on without it", self.name)
            self.drop()
            return otherwise


def _observe(drafter: Drafter, tokens: Sequence[int]) -> None:
    drafter.observe(tokens)


def _propose(drafter: Drafter, limit: int, ahead: Sequence[int]) -> Proposal:
    return drafter.propose(limit, ahead)


@dataclass(slots=True)
class SourceProposal:
    """A source's proposal for the current step: its branches, and the index of each of its nodes in the merged draft."""

    source: Source
    proposal: Proposal
    branches: list[Branch]
    places: Sequence[int] = ()

    def label(self, branch: Branch) -> str:
        """Return the name under which experience with the branch is kept."""
        return self.source.name if branch.beside is None else self.source.name + ALTERNATIVE


class OpenProposals(NamedTuple):
    """What the sources proposed and not yet learnt from, and what that is together.

    ``first`` -1: it follows the committed tokens. Else it follows ``ahead`` tokens of a draft in flight, and ``first`` is the
    guess of the token behind those: the step feeds what was sampled there instead.
    """

    entries: Sequence[SourceProposal] = ()
    merged: Draft = NO_DRAFT
    first: int = -1
    ahead: int = 0


def cost_nothing(most: int) -> Sequence[float]:
    """Return what drafts of up to so many rows cost where nobody counts."""
    return [0.0] * (most + 1)


class SourceSet:
    """The sources of one generation, by priority.

    ``forced``: tokens that a grammar forces are drafted. ``draft_costs``: what drafts of up to so many rows cost in plain steps.
    ``runs_ahead``: all of them look ahead. Without ``tree``, the merged proposals are cut to the likeliest chain.
    """

    def __init__(
        self, drafters: Sequence[Drafter], survival: RequestSurvival, counters: SpeculationCounters, *,
        max_draft: int = 16, tree: bool = True, forced: bool = True, draft_costs: Callable[[int], Sequence[float]] = cost_nothing,
    ) -> None:  # fmt: skip
        self.forced = forced
        self.counters = counters
        self._sources = [Source(drafter) for drafter in drafters]
        self._slow = [source for source in self._sources if source.waits]
        self.runs_ahead = all(drafter.looks_ahead for drafter in drafters)
        self._survival = survival
        self.max_draft = max_draft
        self._draft_costs = draft_costs
        self._tree = tree
        self._open = OpenProposals()
        self._next = OpenProposals()
        self._observed = 0
        self._last = -1
        self._well_guessed = False

    def begin(self, prompt: Sequence[int], tokens: int | None = None) -> None:
        """Give every source the tokens before the generation, of which so many ``tokens`` may come."""
        self._observed = len(prompt)
        for source in self._sources:
            source.begin(prompt, tokens)

    def observe(self, tokens: Sequence[int]) -> None:
        """Give every source the newly committed tokens."""
        self._observed += len(tokens)
        self._last = tokens[-1]
        for source in self._slow:
            source.set_needed(not self._well_guessed)
        for source in self._sources:
            source.observe(tokens)

    def ready(self) -> bool:
        """False while a slow source makes a draft that is worth waiting for, as the others did not just guess well."""
        return not self._slow or self._well_guessed or all(source.ready() for source in self._slow)

    @property
    def all_resting(self) -> bool:
        """True if no source is to be asked in this step."""
        return all(map(RESTS, self._sources))

    @property
    def resting_next_step(self) -> bool:
        """True if no source will be asked in the next step, whatever the step in flight returns."""
        return not self._open.entries and self.all_resting and all(map(RESTING, self._slow))

    def skip_step(self) -> None:
        """Count one step of every source's rest. Only while all rest: a source that does not is asked instead."""
        self._open = OpenProposals()
        for source in self._sources:
            source.rest_steps = max(0, source.rest_steps - 1)

    def propose(self, limit: int, forced: Sequence[int] = ()) -> Draft:
        """Return one draft of at most ``limit`` tokens: the ``forced`` ones, and after them what the sources propose."""
        limit = min(limit, self.max_draft)
        entries = self._ask_all(limit - len(forced), forced)
        draft = self._merge(entries, forced[:limit])
        self._open = OpenProposals(entries, draft)
        return draft.likeliest(limit) if self._tree or draft.is_chain else draft.chain().likeliest(limit)

    def propose_behind(self, limit: int, ahead: Sequence[int]) -> Draft:
        """Return a chain of at most ``limit`` tokens behind the draft ``ahead``, which is in flight, and the token that is
        sampled behind that: as if all of the draft stood, or none where it follows a token that did not come.
        """
        if not self._open.entries or self._open.first not in (-1, self._last):
            ahead = ()
        entries = self._ask_all(min(limit + 1, self.max_draft), ahead)
        merged = self._merge(entries, ())
        chain = merged.chain()
        self._next = OpenProposals(entries, merged, chain.tokens[0], len(ahead)) if chain.tokens else OpenProposals()
        return chain.behind_first().likeliest(limit)

    def _ask_all(self, limit: int, ahead: Sequence[int]) -> list[SourceProposal]:
        """Ask every source for what comes behind tokens that are not committed yet."""
        if limit <= 0:
            return []
        costs = () if all(source.rest_steps for source in self._sources) else self._draft_costs(limit)
        found = [(source, source.propose(limit, ahead, costs)) for source in self._sources]
        return [SourceProposal(source, proposal, branches(proposal)) for source, proposal in found if proposal.tokens]

    def _merge(self, entries: Sequence[SourceProposal], forced: Sequence[int]) -> Draft:
        if not entries and not forced:
            return NO_DRAFT
        if len(entries) == 1 and not forced and not entries[0].proposal.parents:
            return self._single_chain(entries[0])
        builder, sure = DraftBuilder(), [1.0] * len(forced)
        if forced:
            builder.add(GRAMMAR, Proposal(forced), sure)
        for entry in entries:
            survival = [*sure, *self._chances(entry)]
            entry.places = builder.add(entry.source.name, after(entry.proposal, forced), survival)[len(forced) :]
        draft, places = builder.build()
        for entry in entries:
            entry.places = [places[node] for node in entry.places]
        return draft

    def _single_chain(self, entry: SourceProposal) -> Draft:
        """Return the draft of one source's chain, which needs no merging."""
        proposal, count = entry.proposal, len(entry.proposal.tokens)
        entry.places = range(count)
        names = [entry.source.name] * count
        return Draft(proposal.tokens, range(-1, count - 1), names, self._chances(entry), proposal.probabilities)

    def _chances(self, entry: SourceProposal) -> list[float]:
        """Return each node's chance that it and all nodes before it are accepted."""
        proposal = entry.proposal
        alone = list(proposal.confidence) or self._experience(entry)
        if not proposal.parents:
            return list(accumulate(alone, mul))
        survival: list[float] = []
        for node, chance in enumerate(alone):
            parent = proposal.parent(node)
            survival.append(chance if parent == ROOT else chance * survival[parent])
        return survival

    def _experience(self, entry: SourceProposal) -> list[float]:
        """Return each node's chance that it is accepted if its parent is, by experience."""
        if not entry.proposal.parents:
            return self._chances_of(entry.source.name, entry.proposal.match, len(entry.proposal.tokens))
        alone = [0.0] * len(entry.proposal.tokens)
        for branch in entry.branches:
            chances = self._chances_of(entry.label(branch), entry.proposal.match, len(branch.nodes))
            for node, chance in zip(branch.nodes, chances, strict=True):
                alone[node] = chance
            if branch.beside is not None:
                alone[branch.nodes[0]] *= 1 - alone[branch.beside]
        return alone

    def _chances_of(self, label: str, match: int, count: int) -> list[float]:
        """Return what experience says of a proposal, which uses a little of it up."""
        self._survival.fade(label, match)
        return self._survival.chances(label, match, count)

    def learn(self, verified: Draft, path: Sequence[int], cost: float, before: int = -1) -> None:
        """Learn from a step that verified ``verified``, a part of the proposed draft, and accepted its nodes ``path``.

        ``cost``: the step's time relative to one without drafts. ``before``: the token that the draft followed.
        """
        self._well_guessed = False
        # What was made behind other tokens than those that stand says nothing of the sources.
        behind = self._next if self._next.ahead == len(path) else OpenProposals()
        done, self._open, self._next = self._open, behind, OpenProposals()
        if not done.entries:
            return
        known = 0
        if done.first >= 0:
            known = int(done.first == before)
            verified, path = with_first(done.first, verified), [0, *(node + 1 for node in path)] if known else []
        kept = match_nodes(done.merged, verified) if verified.tokens else {}
        accepted = set(path)
        accepted_nodes = {node for node, at in kept.items() if at in accepted}
        for entry in done.entries:
            self._learn_from(entry, kept, accepted_nodes, cost, known)

    def _learn_from(
        self, entry: SourceProposal, kept: Mapping[int, int], accepted_nodes: Set[int], cost: float, known: int
    ) -> None:
        """``known``: accepted tokens that cost no row, and saved none."""
        drafted = [node for node in entry.places if node in kept]
        if not drafted:
            return entry.source.count_miss()
        accepted = sum(node in accepted_nodes for node in drafted)
        if accepted:
            entry.source.count_hit()
            self._well_guessed |= accepted >= WELL_GUESSED and not entry.source.waits
        else:
            entry.source.count_miss()
        entry.source.feedback(len(drafted), accepted)
        entry.source.breaker.report((1 + max(0, accepted - known)) / cost)
        if not entry.proposal.confidence:
            self._learn_survival(entry, kept, accepted_nodes)

    def _learn_survival(self, entry: SourceProposal, kept: Mapping[int, int], accepted_nodes: Set[int]) -> None:
        """Learn per branch how many of its nodes were accepted, and whether the next one was verified and rejected."""
        places = entry.places
        for branch in entry.branches:
            tried = branch.parent == ROOT or places[branch.parent] in accepted_nodes
            if not tried or (branch.beside is not None and places[branch.beside] in accepted_nodes):
                continue
            run = [places[node] for node in branch.nodes]
            accepted = next((at for at, node in enumerate(run) if node not in accepted_nodes), len(run))
            proposed = min(sum(node in kept for node in run), accepted + 1)
            if proposed:
                self._survival.learn(entry.label(branch), entry.proposal.match, proposed, accepted)

    def memory(self) -> Memory | None:
        """Return the drafter to keep for the next generation on the context; None if there is none that can be forked."""
        for source in self._sources:
            if source.drafter is not None and type(source.drafter).fork is not Drafter.fork:
                return Memory(source.drafter, self._observed)
        return None

    def end(self) -> None:
        """Drop the slow sources at the end of the text, as the generation may stay open for long."""
        for source in self._slow:
            source.drop()

    def drop(self) -> None:
        """Drop all sources at the end of the generation."""
        for source in self._sources:
            source.drop()


def branches(proposal: Proposal) -> list[Branch]:
    """Return the branches of a proposal. A chain is one."""
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


def after(proposal: Proposal, forced: Sequence[int]) -> Proposal:
    """Return the proposal with the ``forced`` tokens before it."""
    if not forced:
        return proposal
    shift = len(forced)
    parents = [node - 1 for node in range(shift)]
    parents += [
        shift - 1 if (parent := proposal.parent(node)) == ROOT else parent + shift
        for node in range(len(proposal.tokens))
    ]
    return Proposal([*forced, *proposal.tokens], parents)


def with_first(token: int, chain: Draft) -> Draft:
    """Return the chain behind a token."""
    tokens = [token, *chain.tokens]
    return Draft(tokens, range(ROOT, len(tokens) - 1), [""] * len(tokens), [1.0] * len(tokens))


def match_nodes(offered: Draft, verified: Draft) -> dict[int, int]:
    """Return the node of ``verified``, a part of ``offered``, for each node of ``offered`` that is in it."""
    if offered is verified:
        return {node: node for node in range(len(offered))}
    below = verified.children()
    kept = {ROOT: ROOT}
    for node, (parent, token) in enumerate(zip(offered.parents, offered.tokens, strict=True)):
        at = below.get((kept[parent], token)) if parent in kept else None
        if at is not None:
            kept[node] = at
    del kept[ROOT]
    return kept
