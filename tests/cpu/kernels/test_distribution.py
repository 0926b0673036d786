"""The joint distribution of speculated sequences is the target's: every verifier, kind of draft and sampler, vectorised.

Toy targets of 5 tokens, sequences of 3, all 125 of them in one chi-square test, and the significance of 0.001 divided by
the number of tests. A total variation of t adds at least 4 N t^2 to the statistic; 140 is found with a probability of .99:
t = .0059 with a million sequences, .048 with 15,000. What broken verifiers do is further off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from distribution import ToyTarget, p_value, sequence_counts, total_variation
from torch import Tensor

from inferd.protocol import Sampling
from inferd_runtime.kernels import verify
from inferd_runtime.kernels.noise import mix, stream, uniform
from inferd_runtime.kernels.processing import process
from inferd_runtime.kernels.verify import Drafts, Noise, Verdict, agreement, rejection

VOCAB, LENGTH, WIDTH, FIRST = 5, 3, 3, 0
FREE = np.ones((LENGTH, VOCAB, VOCAB), bool)
CHUNK = 250_000
SIGNIFICANCE = 0.001

GRAMMAR = FREE.copy()
GRAMMAR[0, :, 2:4] = False  # the first token is 0, 1 or 4,
GRAMMAR[1, 0, :4] = False  # behind 0 there is no choice,
GRAMMAR[1, 1, 1::2] = False  # behind 1 the even ones,
GRAMMAR[2, 4, 0] = False  # and 4 is never followed by 0 at the end.

SAMPLERS = {
    "argmax": Sampling(),
    "cold": Sampling(0.3),
    "plain": Sampling(1.0),
    "hot": Sampling(1.5),
    "top_k": Sampling(1.0, top_k=3),
    "top_p": Sampling(1.0, top_p=0.8),
    "min_p": Sampling(1.0, min_p=0.15),
    "all": Sampling(1.3, top_k=4, top_p=0.95, min_p=0.05),
    "grammar": Sampling(1.0),
}


@dataclass(frozen=True)
class Toy:
    """Processed scores float64[L, V, V] of the target, the raw ones of the draft model float32[V, V], the sampler."""

    scores: Tensor
    guesses: Tensor
    sampling: Sampling
    exact: ToyTarget

    @classmethod
    def make(cls, name: str, seed: int = 5) -> Toy:
        generator = np.random.default_rng(seed)
        logits = (generator.standard_normal((VOCAB, VOCAB)) * 1.2).astype(np.float32)
        guesses = logits + generator.standard_normal((VOCAB, VOCAB)).astype(np.float32)
        allowed = GRAMMAR if name == "grammar" else FREE
        rows = np.where(allowed, logits, -np.inf).astype(np.float32).reshape(-1, VOCAB)
        scores = processed(torch.from_numpy(rows), SAMPLERS[name]).reshape(LENGTH, VOCAB, VOCAB)
        exact = ToyTarget.of(logits, SAMPLERS[name], allowed)
        return cls(scores, torch.from_numpy(guesses), SAMPLERS[name], exact)

    def rows(self, places: Tensor, last: Tensor) -> Tensor:
        """float64[..., V]; behind the last place anything will do."""
        return self.scores[places.clamp(max=LENGTH - 1), last]


def processed(rows: Tensor, sampling: Sampling) -> Tensor:
    def filled(value: float) -> Tensor:
        return torch.full((len(rows),), value, dtype=torch.float64)

    return process(
        rows,
        temperature=filled(sampling.temperature),
        top_k=filled(sampling.top_k).long(),
        top_p=filled(sampling.top_p),
        min_p=filled(sampling.min_p),
    )


@dataclass(frozen=True)
class State:
    """Sequences that are not complete: their keys, how many tokens they have, and the last one; int64[n] each."""

    keys: Tensor
    places: Tensor
    last: Tensor

    def random(self, *shape: int, tag: int = 1) -> Tensor:
        """float64[n, *shape] that depends on the key and the place, and on nothing that verifies."""
        numbers = torch.arange(int(np.prod(shape))).reshape(shape)
        spread = (slice(None), *[None] * len(shape))
        return uniform(stream(self.keys, tag)[spread], self.places[spread], numbers)

    def lengths(self) -> Tensor:
        """From no draft to a whole one."""
        return (self.random(tag=2) * (WIDTH + 1)).long()


Drafter = Callable[[Toy, State], Drafts]


def sampled(q: Callable[[Toy, Tensor, Tensor], Tensor], noise: Callable[[State, int], Tensor]) -> Drafter:
    """A chain whose tokens are drawn from q(toy, places, last) float64[n, V] by Gumbel-argmax with the given noise."""

    def draft(toy: Toy, state: State) -> Drafts:
        tokens, rows, last = [], [], state.last
        for node in range(WIDTH):
            rows.append(q(toy, state.places + node, last))
            last = (rows[-1].log() + noise(state, node)).argmax(dim=1)
            tokens.append(last)
        return Drafts(torch.stack(tokens, 1), state.lengths(), None, torch.stack(rows, 1))

    return draft


def own_noise(state: State, node: int) -> Tensor:
    return -torch.log(-torch.log(state.random(VOCAB, tag=10 + node)))


def shared_noise(state: State, node: int) -> Tensor:
    """That of the target's own sampler at the same place."""
    u = uniform(state.keys[:, None], (state.places + node)[:, None], torch.arange(VOCAB))
    return -torch.log(-torch.log(u))


def model_q(toy: Toy, places: Tensor, last: Tensor) -> Tensor:
    return processed(toy.guesses, toy.sampling).softmax(dim=1)[last]


def target_q(toy: Toy, places: Tensor, last: Tensor) -> Tensor:
    return toy.rows(places, last).softmax(dim=1)


def elsewhere_q(toy: Toy, places: Tensor, last: Tensor) -> Tensor:
    """Mass only where the target has least: nowhere at all, where it excludes something."""
    scores = toy.rows(places, last)
    least = scores == scores.min(dim=1, keepdim=True).values
    return least / least.sum(dim=1, keepdim=True, dtype=torch.float64)


def half_q(toy: Toy, places: Tensor, last: Tensor) -> Tensor:
    """Nothing on the even tokens, whatever the target thinks of the others."""
    q = torch.zeros(len(last), VOCAB, dtype=torch.float64)
    q[:, 1::2] = 0.5
    return q


def certain(drafter: Drafter) -> Drafter:
    """The same tokens without their probabilities: legitimate where they do not depend on chance that the target knows."""
    return lambda toy, state: drafter(toy, state)._replace(probabilities=None)


def likeliest(toy: Toy, state: State) -> Drafts:
    """The draft model's argmax, a chain."""
    return certain(sampled(model_q, lambda state, node: torch.tensor(0.0)))(toy, state)


PARENTS = torch.tensor([-1, 0, 0, -1, 3, -1, 5])


def tree(toy: Toy, state: State) -> Drafts:
    """Three different children of the root, four grandchildren, drawn blindly."""
    nodes = len(PARENTS)
    order = state.random(VOCAB).argsort(dim=1)
    below = state.random(nodes, VOCAB, tag=3).argsort(dim=2)[:, :, 0]
    tokens = below.clone()
    tokens[:, [0, 3, 5]] = order[:, :3]
    tokens[:, 2] = (tokens[:, 1] + 1) % VOCAB
    lengths = (state.random(tag=2) * (nodes + 1)).long()
    return Drafts(tokens, lengths, PARENTS.expand(len(tokens), -1))


def shared_tree(toy: Toy, state: State) -> Drafts:
    """Two chains side by side, one of them drawn with the target's own noise."""
    one, other = sampled(model_q, shared_noise)(toy, state), sampled(half_q, own_noise)(toy, state)
    parents = torch.tensor([-1, 0, 1, -1, 3, 4]).expand(len(state.keys), -1)
    return Drafts(torch.cat([one.tokens, other.tokens], 1), torch.full_like(state.last, 2 * WIDTH), parents)


PAIRS = {
    "agreement, blind chain": (agreement, certain(sampled(half_q, own_noise))),
    "agreement, likeliest": (agreement, likeliest),
    "agreement, shared noise": (agreement, certain(sampled(model_q, shared_noise))),
    "agreement, tree": (agreement, tree),
    "agreement, tree with shared noise": (agreement, shared_tree),
    "rejection, draft model": (rejection, sampled(model_q, own_noise)),
    "rejection, draft model with the sampler's noise": (rejection, sampled(model_q, shared_noise)),
    "rejection, likeliest": (rejection, likeliest),
    "rejection, blind and certain": (rejection, certain(sampled(half_q, own_noise))),
    "rejection, p == q": (rejection, sampled(target_q, own_noise)),
    "rejection, disjoint": (rejection, sampled(elsewhere_q, own_noise)),
    "rejection, zeros": (rejection, sampled(half_q, own_noise)),
}


def generate(toy: Toy, verifier: Callable[..., Verdict], drafter: Drafter, first_key: int, count: int) -> Tensor:
    """int64[count, L]: sequences completed step by step, each with its own key and drafts of its own lengths."""
    keys = mix(torch.arange(first_key, first_key + count))
    tokens = torch.full((count, LENGTH + WIDTH + 1), -1)
    done = torch.zeros(count, dtype=torch.int64)
    live = torch.arange(count)
    while len(live):
        places = done[live]
        last = torch.where(places > 0, tokens[live, places - 1], FIRST)
        state = State(keys[live], places, last)
        drafts = drafter(toy, state)
        verdict = verifier(rows_behind(toy, state, drafts), drafts, Noise(state.keys, places))
        emitted = verdict.tokens[:, : WIDTH + 1]
        for at in range(emitted.shape[1]):
            there = at <= verdict.accepted
            tokens[live[there], places[there] + at] = emitted[there, at]
        done[live] = places + verdict.accepted + 1
        live = live[done[live] < LENGTH]
    return tokens[:, :LENGTH]


def rows_behind(toy: Toy, state: State, drafts: Drafts) -> Tensor:
    """float64[n, K + 1, V]: what the target's forward pass would bring."""
    parents = verify._chain(drafts.tokens) if drafts.parents is None else drafts.parents
    depths = verify._depths(parents)
    last = torch.cat([state.last[:, None], drafts.tokens], 1)
    return toy.rows(state.places[:, None] + depths, last)


def check(toy: Toy, verifier: Callable[..., Verdict], drafter: Drafter, runs: int, tests: int) -> None:
    counts = np.zeros(VOCAB**LENGTH, np.int64)
    for start in range(0, runs, CHUNK):
        tokens = generate(toy, verifier, drafter, start, min(CHUNK, runs - start))
        counts += sequence_counts(tokens.numpy(), VOCAB)
    joint = toy.exact.joint(FIRST)
    assert p_value(counts, joint) > SIGNIFICANCE / tests, f"total variation {total_variation(counts, joint):.4f}"


CASES = [(pair, sampler) for pair in PAIRS for sampler in SAMPLERS]
QUICK = ("all", "grammar")


LONG = [pytest.param(1_000_000, (name,), marks=pytest.mark.long, id=f"long-{name}") for name in SAMPLERS]


@pytest.mark.parametrize(("runs", "samplers"), [pytest.param(15_000, QUICK, id="quick"), *LONG])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_joint_distribution_is_the_targets(pair: str, runs: int, samplers: tuple[str, ...]) -> None:
    verifier, drafter = PAIRS[pair]
    for name in samplers:
        check(Toy.make(name), verifier, drafter, runs, len(CASES))


def test_temperature_zero_is_one_sequence() -> None:
    toy = Toy.make("argmax")
    answer = int(np.argmax(toy.exact.joint(FIRST)))
    for verifier, drafter in PAIRS.values():
        tokens = generate(toy, verifier, drafter, 0, 300)
        assert sequence_counts(tokens.numpy(), VOCAB)[answer] == 300


# -- Faults: each breaks a verifier the way that one in the field is known to have been broken ------------------------


def kept_after_rejection(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """Every token is tested alone; those that stand behind one that fell are counted."""
    alone = [
        rejection(target[:, node : node + 2], one_node(drafts, node), Noise(noise.keys, noise.positions + node))
        for node in range(WIDTH)
    ]
    stands = torch.stack([each.accepted for each in alone], 1).bool()
    first = torch.stack([each.tokens[:, 0] for each in alone], 1)
    last = torch.where(stands, torch.arange(WIDTH), -1).max(dim=1).values + 1
    honest = rejection(target, drafts, noise)
    tokens = torch.cat([first, first[:, -1:]], 1).scatter(
        1, honest.accepted[:, None], honest.tokens.gather(1, honest.accepted[:, None])
    )
    return honest._replace(accepted=torch.minimum(torch.maximum(last, honest.accepted), drafts.lengths), tokens=tokens)


def one_node(drafts: Drafts, node: int) -> Drafts:
    q = drafts.probabilities
    return Drafts(
        drafts.tokens[:, node : node + 1],
        (drafts.lengths > node).long(),
        None,
        None if q is None else q[:, node : node + 1],
    )


def bonus_overwritten(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """Where all stand, the last of them is replaced by the bonus sample."""
    done = rejection(target, drafts, noise)
    whole = (done.accepted == drafts.lengths) & (drafts.lengths > 0)
    last = torch.where(whole, done.accepted - 1, done.accepted)
    bonus = done.tokens.gather(1, done.accepted[:, None])
    return done._replace(accepted=last, tokens=done.tokens.scatter(1, last[:, None], bonus))


def residual_for_bonus(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """Where all stand, the bonus is drawn from the last row's residual instead of the row behind."""
    assert drafts.probabilities is not None
    at = (drafts.lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, VOCAB)
    p, q = target.softmax(dim=2).gather(1, at), drafts.probabilities.gather(1, at)
    left = (p - q).clamp(min=0)
    left = torch.where(left.sum(dim=2, keepdim=True) > 0, left, p)
    behind = torch.where((drafts.lengths > 0)[:, None, None], left.log(), target[:, :1])
    row = drafts.lengths[:, None, None].expand(-1, 1, VOCAB)
    return rejection(target.scatter(1, row, behind), drafts, noise)


def reusing_noise(*tags: int) -> Callable[..., Verdict]:
    """What these tags stand for is drawn with the noise that drew the draft."""

    def broken(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verify, "stream", lambda keys, tag: keys if tag in tags else stream(keys, tag))
            return rejection(target, drafts, noise)

    return broken


def independent_siblings(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """Each child of the root is tested alone against the same p, the last that stands wins."""
    assert drafts.parents is not None
    p = target.softmax(dim=2)
    tokens = torch.full((len(p), drafts.tokens.shape[1] + 1), -1)
    left, accepted = p[:, 0].clone(), torch.zeros(len(p), dtype=torch.int64)
    for node in (drafts.parents[0] == -1).nonzero()[:, 0].tolist():
        token = drafts.tokens[:, node : node + 1]
        u = uniform(stream(noise.keys, 100 + node), noise.positions, torch.zeros(1, dtype=torch.int64))
        stands = (u < p[:, 0].gather(1, token)[:, 0]) & (drafts.lengths > node)
        tokens[:, 0] = torch.where(stands, token[:, 0], tokens[:, 0])
        tokens[:, 1] = torch.where(
            stands,
            verify._sample(target[:, node + 1 : node + 2], noise.keys, noise.positions[:, None] + 1)[:, 0],
            tokens[:, 1],
        )
        accepted = torch.where(stands, 1, accepted)
        left = left.scatter(1, token, 0.0)
    left = torch.where(left.sum(dim=1, keepdim=True) > 0, left, p[:, 0])
    own = verify._sample(left.log()[:, None], noise.keys, noise.positions[:, None])[:, 0]
    tokens[:, 0] = torch.where(accepted > 0, tokens[:, 0], own)
    return Verdict(accepted, tokens, tokens[:, 1:])


def q_before_temperature(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """The draft model's raw distribution is taken for the one that was sampled."""
    assert drafts.probabilities is not None
    hotter = drafts.probabilities ** SAMPLERS["cold"].temperature
    return rejection(target, drafts._replace(probabilities=hotter / hotter.sum(dim=2, keepdim=True)), noise)


def p_edited_in_place(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """The residual of each row is written over the row before it is known whether it is needed."""
    assert drafts.probabilities is not None
    p = target.softmax(dim=2)
    p[:, :-1] = (p[:, :-1] - drafts.probabilities).clamp(min=0)
    edited = torch.where(p.sum(dim=2, keepdim=True) > 0, p, target.softmax(dim=2)).log()
    return rejection(edited, drafts, noise)


def first_unverified(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """The first draft token always stands."""
    sure = torch.full_like(target[:, 0], -torch.inf).scatter(1, drafts.tokens[:, :1], 0.0)
    rows = torch.where((drafts.lengths > 0)[:, None], sure, target[:, 0])
    return agreement(torch.cat([rows[:, None], target[:, 1:]], 1), drafts, noise)


def cut_at_what_was_drawn(target: Tensor, drafts: Drafts, noise: Noise) -> Verdict:
    """The draft ends before a token for what it is (here: 4), and the target is sampled there."""
    unwanted = (drafts.tokens == VOCAB - 1).long()
    before = torch.where(unwanted.any(dim=1), unwanted.argmax(dim=1), WIDTH)
    return rejection(target, drafts._replace(lengths=torch.minimum(drafts.lengths, before)), noise)


FAULTS = {
    "a token is kept behind a rejected one": (kept_after_rejection, "rejection, draft model", "plain"),
    "the bonus overwrites the last accepted token": (bonus_overwritten, "rejection, draft model", "plain"),
    "the bonus comes from a residual": (residual_for_bonus, "rejection, draft model", "plain"),
    "the draft's noise tests it and draws the residual": (
        reusing_noise(verify.ACCEPT, verify.RESIDUAL),
        "rejection, draft model with the sampler's noise",
        "plain",
    ),
    "the draft's noise draws the residual": (
        reusing_noise(verify.RESIDUAL),
        "rejection, draft model with the sampler's noise",
        "top_k",
    ),
    "siblings are tested independently": (independent_siblings, "agreement, tree", "plain"),
    "q is taken before temperature": (q_before_temperature, "rejection, draft model", "cold"),
    "p is edited in place": (p_edited_in_place, "rejection, draft model", "plain"),
    "the first token is never verified": (first_unverified, "agreement, blind chain", "plain"),
    "a draft is cut at a token for what it is": (cut_at_what_was_drawn, "rejection, draft model", "plain"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_test_finds_a_broken_verifier(fault: str) -> None:
    """In the same number of sequences with which the right one passes, at the same significance."""
    broken, pair, sampler = FAULTS[fault]
    verifier, drafter = PAIRS[pair]
    check(Toy.make(sampler), verifier, drafter, 20_000, 1)
    with pytest.raises(AssertionError, match="total variation"):
        check(Toy.make(sampler), broken, drafter, 20_000, len(CASES))
