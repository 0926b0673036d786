"""The job of ``Context.verify``: one step that verifies a program's own draft, without a generation around it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from inferd.protocol import InvalidRequest, Usage
from inferd_runtime.engine.job import NextWork
from inferd_runtime.engine.jobs.forward_pass import ContextJob
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.engine.sampling.penalties import History
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.engine.stages import Verified, Work
from inferd_runtime.speculation.drafts import Draft, DraftBuilder, Proposal
from inferd_runtime.speculation.sources import match_nodes

PROGRAM = "program"


class DraftVerification(ContextJob):
    """Computes what is pending, verifies a draft after it, and appends the accepted tokens and the model's own next one.

    These are the tokens that a generation with the same sampler would emit. At the end, ``accepted`` are the accepted tokens,
    ``path`` their indices in the draft, ``token`` the one after them, and ``drafted`` the number of verified tokens. The draft
    is cut before one of ``ends``, whose row is sampled anyway and after which nothing comes. The context's last ``generated``
    tokens are output to the sampler's penalties, those before them prompt. The draft has passed
    ``check_verify``. Raises InvalidRequest for what this context cannot verify.
    """

    def __init__(
        self,
        context: CachedSequence,
        tokens: Sequence[int],
        parents: Sequence[int],
        sampler: RowSampler,
        ends: Collection[int] = (),
        generated: int = 0,
    ) -> None:
        check_draft(context, tokens, parents)
        if not 0 <= generated <= len(context.tokens):
            raise InvalidRequest(f"generated = {generated} is outside 0 to {len(context.tokens)}, the context's length")
        context.check_room_behind()
        super().__init__(context)
        self.speculates = True
        self.accepted: list[int] = []
        self.path: list[int] = []
        self.token = -1
        self.drafted = 0
        self._draft, self._named = merged(tokens, parents)
        self._ends = ends
        self._sampler = sampler
        self._history: History | None = None
        if sampler.penalties is not None:
            start = len(context.tokens) - generated
            self._history = History(sampler.penalties, context.tokens[:start])
            self._history.advance(context.tokens[start:])
        if context.pending == 0:
            # The last token's logits are wanted, so it is computed once more.
            context.uncompute(len(context.tokens) - 1)

    @property
    def usage(self) -> Usage:
        """The accepted tokens and the model's own, as if they had been generated."""
        accepted = len(self.accepted)
        return Usage(tokens=accepted + (self.token >= 0), steps=self.steps, drafted=self.drafted, accepted=accepted)

    def propose(self) -> Draft:
        """Return the program's draft, cut before an end-of-text."""
        return self._draft.without(self._ends)

    def next_work(self, in_flight: Work) -> NextWork:
        """Return UNKNOWN: behind the last chunk stands the program's draft, which is asked for in each step."""
        return NextWork.UNKNOWN

    def work(self, budget: int, draft: Draft, ahead: int = 0) -> Work:
        """Return a prefill chunk, or the pending tokens with the draft after them."""
        pending = self.context.tokens[self.context.table.length + ahead :]
        if len(pending) > budget:
            return Work(pending[:budget])
        room = min(budget - len(pending), self.context.max_length - len(self.context.tokens) - 1)
        draft = draft.likeliest(room)
        adjustments = None if self._history is None else self._history.rows(draft)
        return Work([*pending, *draft.tokens], len(draft) + 1, draft, None, self._sampler, adjustments=adjustments)

    def commit(self, done: Verified) -> None:
        """Append the accepted tokens and the next one, and end."""
        if not done.tokens:
            return
        self.steps, self.drafted = 1, len(done.work.draft)
        index = {verified: node for node, verified in match_nodes(self._draft, done.work.draft).items()}
        self.path = [self._named[index[node]] for node in done.path]
        self.accepted, self.token = list(done.tokens[:-1]), done.tokens[-1]
        self.context.write(done.tokens)
        self._end()


def check_draft(context: CachedSequence, tokens: Sequence[int], parents: Sequence[int]) -> None:
    """Raises InvalidRequest, which names what is wrong, for a tree (``check_tree``) that is no draft behind the context."""
    context.check_tokens(tokens)
    if parents and context.irregular_from is not None:
        raise InvalidRequest("a draft tree does not go with explicit positions or an attention mask: send a chain")


def merged(tokens: Sequence[int], parents: Sequence[int]) -> tuple[Draft, dict[int, int]]:
    """Return the draft without duplicate siblings, and the first given index of each of its nodes."""
    builder = DraftBuilder()
    nodes = builder.add(PROGRAM, Proposal(tokens, parents), [1.0] * len(tokens))
    draft, places = builder.build()
    named: dict[int, int] = {}
    for index, node in enumerate(nodes):
        named.setdefault(places[node], index)
    return draft, named
