"""The scheduler: which jobs run in the next step, and how many tokens each may feed. Synchronous, without tensors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from inferd.protocol import MAX_DRAFT, LimitExceeded
from inferd_runtime.engine.job import Continuation, Job, Planned
from inferd_runtime.engine.jobs.boundary import JobBoundary
from inferd_runtime.engine.scheduling.fairness import QUANTUM_SECONDS, FairClock, StepCost
from inferd_runtime.engine.scheduling.job_times import SLOW_SECONDS, JobTimes
from inferd_runtime.engine.scheduling.queues import Queues, ReadyJobs
from inferd_runtime.engine.scheduling.tenants import Accounts
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence, SequenceSet, quota_error
from inferd_runtime.engine.sequences.positions import tree_placement
from inferd_runtime.engine.stages import Work
from inferd_runtime.speculation.drafts import NO_DRAFT, Draft

Allocate = Callable[[Sequence[Job], int, Mapping[Job, Continuation | None]], dict[Job, Draft]]
"""Returns the draft that each of the jobs may verify in a step of so many tokens; jobs without one are left out. The mapping says
how jobs in flight go on."""

PREFILL_SHARE = 8
"""Where decode rows alone would fill the token budget, one part in so many is kept for prefill."""
PATIENCE = 128
"""Steps without room after which a job may push busy contexts out of the cache. One step is enough if its tenant holds less than
an even part of the cache: otherwise a tenant that fills the cache could make others wait for every page."""
REFUSALS = 16
"""After so many prompts that a step has no room for, no further ones are tried in it."""


class Scheduler:
    """Continuous batching under a token budget.

    Weighted fair queueing (:mod:`~inferd_runtime.engine.scheduling.fairness`) decides which jobs may run. Among those, short
    work goes before prefill, so that a long prompt fills what is left of the budget and never stalls running streams; a part of
    the budget is kept for prefill, so that streams never stall it either.
    """

    def __init__(
        self,
        contexts: SequenceSet,
        accounts: Accounts,
        drafts: Allocate,
        *,
        token_budget: int,
        cost: StepCost,
        clock: FairClock[str] | None = None,
        times: JobTimes | None = None,
    ) -> None:
        """``times``: how long single jobs take in steps."""
        self.times = times or JobTimes()
        self._contexts = contexts
        self._accounts = accounts
        self._budget = token_budget
        self._allocate = drafts
        self._drafts: dict[Job, Draft] = {}
        self._ready: list[Job] = []
        self._in_flight: Mapping[Job, Continuation | None] = {}
        """While a step is planned behind one in flight: the jobs in flight, and how they go on (None: not known)."""
        self._demand: Counter[str] | None = None
        self._queues = Queues(accounts, cost, clock, token_budget=token_budget)
        self.deferred = False
        """True if the last plan is empty because tenants that wait for another engine, or for an operation, come first."""
        self._waiting: defaultdict[str, dict[Job, int]] = defaultdict(dict)
        """Jobs that found no room, by tenant, and the step in which they first did not."""
        self._step = 0
        self._slow = 0.0
        """Seconds that slow jobs are expected to take in the step that is planned, beside their rows."""
        self._no_idle_left = False
        """True once all idle contexts have left the cache in this round."""

    @property
    def jobs(self) -> int:
        """The number of jobs; one that has ended counts until it is looked at."""
        return self._queues.jobs

    def wants(self, tenant: str) -> bool:
        """True if a job of a tenant could run now."""
        return self._queues.wants(tenant)

    def joins_others(self, tenant: str) -> bool:
        """True if a tenant's decode rows would be in the steps that others run, whoever's turn it is."""
        return self._queues.joins_others(tenant)

    def add(self, job: Job) -> None:
        """Let a job take part from the next step on."""
        job.context.row_seconds = None
        self._queues.add(job)

    def plan(self) -> list[Planned]:
        """Return the next step's work with its pages reserved; empty if no job is runnable, or :attr:`deferred`."""
        self._step += 1
        while True:
            fair = self._queues.next_round()
            self.deferred = bool(self._queues.wanting) and not fair
            if not fair:
                return []
            self._no_idle_left = False
            self._budget = self._queues.budget()
            plan = self._fill(self._overdue(), fair)
            if plan:
                return plan
            self._queues.stuck()
            rest = self._queues.others(fair)
            plan = self._fill([], rest)
            if plan:
                return plan
            self._make_room([job for entry in (*fair, *rest) for job in entry.jobs if not job.finished()])

    def plan_behind(self, in_flight: Mapping[Job, Continuation | None]) -> list[Planned]:
        """Return the work of the step behind one that is in flight, with its pages reserved: what those jobs certainly go on
        with, and the work of jobs that are not in it.

        Empty where nothing is certain and nobody else may run, or where a context in use has to leave the cache first: then
        :meth:`plan` decides, once all that is in flight is known.
        """
        if self._longest_waiting() is not None:
            return []
        self._step += 1
        fair = self._queues.next_round()
        self._no_idle_left = False
        self._budget = self._queues.budget()
        self._in_flight = in_flight
        try:
            return self._fill([], [self._certain(entry) for entry in fair])
        finally:
            self._in_flight = {}

    def _certain(self, ready: ReadyJobs) -> ReadyJobs:
        """Return the jobs whose next work is known, a row that is carried over counted as short work."""
        going_on = {job: step for job in ready.jobs if (step := self._in_flight.get(job)) is not None}
        carried = [job for job, step in going_on.items() if step.carried >= 0]
        chunks = [job for job, step in going_on.items() if step.carried < 0]
        short, long = ([job for job in jobs if job not in self._in_flight] for jobs in (ready.short, ready.long))
        return ReadyJobs(carried + short, chunks + long)

    def charge(self, plan: Sequence[Planned], seconds: float | None = None) -> None:
        """Charge the tenants for a step that took ``seconds``, and each for the time that its jobs alone took of it."""
        self._queues.charge(plan, seconds, self.times.take())

    def _fill(self, first: Sequence[Job], ready: Sequence[ReadyJobs]) -> list[Planned]:
        """Plan short work, then long work with what is left of the budget, of which a part is always kept for it."""
        kept = self._kept_for_prefill() if any(entry.long for entry in ready) else 0
        short = [job for entry in ready for job in entry.short if job not in first]
        long = [job for entry in ready for job in entry.long if job not in first]
        self._ready = [*first, *short, *long]
        self._slow = 0.0
        self._demand = None
        # Each feeds a token at least: no others are asked for drafts, so that a thousand streams cost what fits into a step.
        self._drafts = self._allocate(self._ready[: self._budget], self._budget - kept, self._in_flight)
        plan = self._admit(first, self._budget)
        plan += self._admit(short, self._budget - kept - _tokens(plan))
        return plan + self._admit(long, self._budget - _tokens(plan), REFUSALS)

    def _kept_for_prefill(self) -> int:
        """Return the tokens that are kept for prefill; of a budget of one token, that one in every other step."""
        return self._budget // PREFILL_SHARE or (1 if self._budget > 1 else self._step % 2)

    def _admit(self, jobs: Iterable[Job], budget: int, refusals: int = 1 << 30) -> list[Planned]:
        """Plan the jobs in order, until so many tokens are planned or so many jobs found no room."""
        plan: list[Planned] = []
        self.times.begin()
        for job in jobs:
            if budget <= 0 or refusals <= 0:
                break
            if job.finished() or not self._has_time(self.times.expected(job)):
                continue
            with JobBoundary(job):
                step = self._in_flight.get(job)
                try:
                    planned = self._reserve(job, budget) if step is None else self._go_on(job, step, budget)
                finally:
                    self.times.spent_on(job)
                if planned is None:
                    refusals -= 1
                    continue
                plan.append(planned)
                budget -= len(planned.work.tokens)
        return plan

    def _has_time(self, seconds: float) -> bool:
        """True if a job that takes so long, beside its rows, may take part in the step.

        Where other tenants may wait for the end of the step, its slow jobs take QUANTUM_SECONDS together, or there is only one.
        """
        if seconds <= SLOW_SECONDS or not self._queues.contended:
            return True
        fits = not self._slow or self._slow + seconds <= QUANTUM_SECONDS
        self._slow += seconds if fits else 0.0
        return fits

    def _go_on(self, job: Job, step: Continuation, budget: int) -> Planned | None:
        """Return the job's work behind what it has in flight, or None if pages are short or nothing is left to do."""
        context, table = job.context, job.context.table
        work = job.work(budget, NO_DRAFT, step.ahead) if step.row is None else self._row_behind(job, step, budget)
        if work is None or not work.tokens or not self._has_room(context, step.ahead + len(work.tokens)):
            return None
        context.reserve(step.ahead + len(work.tokens))
        return Planned(job, work, table, context.adapter, step.ahead, step.carried)

    def _row_behind(self, job: Job, step: Continuation, budget: int) -> Work | None:
        """Return the row that feeds the token in flight, with its draft if that fits.

        A guess, which the row itself is behind a draft, takes no pages that others need. None if only such pages are left.
        """
        assert step.row is not None
        draft = self._drafts.get(job, NO_DRAFT).likeliest(budget - 1)
        drafted = step.row._replace(tokens=[*step.row.tokens, *draft.tokens], rows=1 + len(draft), draft=draft)
        for work in (drafted, step.row) if draft.tokens else (step.row,):
            guessed = bool(step.draft or work.draft.tokens)
            if not guessed or self._fits(job.context, step.ahead + len(work.tokens)):
                return work
        return None

    def _has_room(self, context: CachedSequence, tokens: int) -> bool:
        """True if so many tokens behind the computed ones fit into the free pages and the tenant's quota."""
        wanted = context.table.wanted(tokens)
        return not wanted or (wanted <= self._contexts.pool.available and not context.over_quota(wanted))

    def _reserve(self, job: Job, budget: int) -> Planned | None:
        """Return the job's work with its pages reserved, or None if pages are short or nothing is left to do.

        A job enters only if all of its pending tokens fit, so that two half-computed prompts cannot block each other. A draft
        that does not fit is left out. Raises LimitExceeded at the tenant's quota.
        """
        context, table = job.context, job.context.table
        if context.parked is not None and not self._bring_back(context):
            self._waiting[context.tenant].setdefault(job, self._step)
            return None
        before = table.length
        looked_up = context.pending > self._contexts.pool.page_size
        reused = context.reuse_prefix() if looked_up else 0
        if not table.has_room(context.pending) and not self._find_room(context):
            # A job that cannot run must hold nothing, or it would keep others from running.
            context.uncompute(before)
            self._waiting[context.tenant].setdefault(job, self._step)
            return None
        if reused:
            context.count_reused(reused)
        if self._waiting:
            self._stop_waiting(job)
        work = job.work(budget, self._drafts.get(job, NO_DRAFT))
        if work.draft.uncut_length and not self._fits(context, len(work.tokens) + _unused_rows(work.draft)):
            work = job.work(budget, NO_DRAFT)
        if not work.tokens:
            return None
        if work.draft.tokens or table.private_from is not None:
            work = self._placed(context, work)
        if looked_up:
            self._contexts.looked_up += reused + len(work.tokens)
        context.reserve(len(work.tokens))
        return Planned(job, work, table, context.adapter)

    def _placed(self, context: CachedSequence, work: Work) -> Work:
        """Return the work with the positions and visibility that its context, or its draft tree, gives the tokens."""
        if context.irregular_from is not None and work.placement is None:
            return work._replace(placement=context.positions.placement(context.table.length, len(work.tokens)))
        if work.draft.tokens and not work.draft.is_chain:
            pending = len(work.tokens) - len(work.draft)
            return work._replace(placement=tree_placement(context.table.length, pending, work.draft.parents))
        return work

    def _overdue(self) -> list[Job]:
        """Make room for a job that has waited for too long, and return it as the only entry.

        Other contexts leave the cache for it, busy or not.
        """
        while (job := self._longest_waiting()) is not None:
            self._stop_waiting(job)
            if job.ready() and self._clear(job.context, idle=False):
                return [job]
        return []

    def _longest_waiting(self) -> Job | None:
        """Return a job that has waited for room longer than it has to, None if there is none. First come those that have to wait
        for one step only.
        """
        patient: Job | None = None
        for tenant in list(self._waiting):
            job = self._first_waiting(tenant)
            waited = 0 if job is None else self._step - self._waiting[tenant][job]
            if job is not None and waited and self._is_owed(job.context):
                return job
            patient = job if waited >= PATIENCE else patient
        return patient

    def _first_waiting(self, tenant: str) -> Job | None:
        """Return the tenant's job that has waited longest, None if all have ended."""
        while waiting := self._waiting.get(tenant):
            job = next(iter(waiting))
            if not job.finished():
                return job
            self._stop_waiting(job)
        return None

    def _stop_waiting(self, job: Job) -> None:
        tenant = job.context.tenant
        self._waiting[tenant].pop(job, None)
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    def _is_owed(self, context: CachedSequence) -> bool:
        """True if a context's tenant, with the pages that this one waits for, holds less than an even part of the cache."""
        held = context.account.used + context.pages_wanted(context.pending)
        return held * self._accounts.holders(context.tenant) <= self._contexts.pool.size

    def _bring_back(self, context: CachedSequence) -> bool:
        """Get a parked context back into the cache. Returns False if it does not fit together with its pending tokens."""
        if context.computed and not self._find_room(context):
            return False
        context.unpark()
        return True

    def _find_room(self, context: CachedSequence) -> bool:
        """Make room for the context's pending tokens by moving idle contexts out of the cache. Returns False if there is none.

        Raises LimitExceeded at the tenant's quota.
        """
        pool, wanted = self._contexts.pool, context.pages_wanted(context.pending)
        if context.over_quota(wanted):
            raise quota_error(context.account, wanted)
        if wanted <= pool.available:
            return True
        self._no_idle_left = self._no_idle_left or not self._clear(context, idle=True)
        return not self._no_idle_left

    def _clear(self, context: CachedSequence, *, idle: bool) -> bool:
        """Move other contexts out of the cache until the pending tokens fit. Returns False if that is not enough."""
        pool, wanted = self._contexts.pool, context.pages_wanted(context.pending)
        while wanted > pool.available:
            if not self._contexts.park_another(context, idle=idle):
                return False
        return True

    def _fits(self, context: CachedSequence, tokens: int) -> bool:
        """True if that many tokens fit into the free pages beside what all runnable jobs need without drafts."""
        wanted, certain = context.pages_wanted(tokens), context.pages_wanted(context.pending)
        if wanted == certain:
            return True
        if self._demand is None:
            self._demand = self._pages_without_drafts()
        others, own = self._demand.total() - certain, self._demand[context.tenant] - certain
        return wanted + others <= self._contexts.pool.available and not context.over_quota(wanted + own)

    def _pages_without_drafts(self) -> Counter[str]:
        """Return the pages, by tenant, that this step's jobs need for their pending tokens. Admitted jobs count too much."""
        demand: Counter[str] = Counter()
        for job in {*self._ready, *self._in_flight}:
            if not job.finished():
                # Behind what is in flight another token comes.
                tokens = job.context.pending + (job in self._in_flight)
                demand[job.context.tenant] += job.context.pages_wanted(tokens)
        return demand

    def _make_room(self, stuck: Sequence[Job]) -> None:
        """Move a busy context out of the cache, as no job fits. If there is no other context, the first job fails."""
        if not stuck or self._contexts.park_another(stuck[0].context, idle=False):
            return
        pool = self._contexts.pool
        stuck[0].fail(
            LimitExceeded(
                f"the KV cache is full: {pool.size} pages of {pool.page_size} tokens, {pool.available} free",
                limit="kv_pages", value=pool.size, raise_with="--pages",
            )
        )  # fmt: skip


def _unused_rows(draft: Draft) -> int:
    """Return the rows that a sampled draft could still have had: whether it fits must not depend on the tokens drawn."""
    return 0 if draft.probabilities is None else MAX_DRAFT - len(draft)


def _tokens(plan: Sequence[Planned]) -> int:
    return sum(len(planned.work.tokens) for planned in plan)
