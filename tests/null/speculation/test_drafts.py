"""The draft tree: merging, cutting, the likeliest part, against plain sets of paths."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferd_runtime.speculation.drafts import ROOT, Draft, DraftBuilder, Proposal

Path = tuple[int, ...]


@st.composite
def proposals(draw: Any) -> Proposal:
    """A small tree over few tokens, so that proposals meet."""
    count = draw(st.integers(1, 6))
    parents = [draw(st.integers(-1, node - 1)) for node in range(count)]
    tokens = [draw(st.integers(0, 2)) for _ in range(count)]
    return Proposal(tokens, parents)


def paths(draft: Draft | Proposal) -> list[Path]:
    """Each node as the tokens that lead to it."""
    found: list[Path] = []
    for node, token in enumerate(draft.tokens):
        parent = draft.parents[node] if draft.parents else node - 1
        found.append((*(() if parent == ROOT else found[parent]), token))
    return found


def merged(given_proposals: list[Proposal]) -> tuple[Draft, list[list[int]]]:
    builder, nodes = DraftBuilder(), []
    for at, proposal in enumerate(given_proposals):
        survival = [0.9 / (1 + at + len(path)) for path in paths(proposal)]
        nodes.append(builder.add(f"source{at}", proposal, survival))
    draft, places = builder.build()
    return draft, [[places[node] for node in each] for each in nodes]


@given(st.lists(proposals(), min_size=1, max_size=4))
def test_a_merged_draft_holds_every_path_once(given_proposals: list[Proposal]) -> None:
    draft, nodes = merged(given_proposals)
    wanted = {path for proposal in given_proposals for path in paths(proposal)}
    assert sorted(paths(draft)) == sorted(wanted)
    for proposal, places in zip(given_proposals, nodes, strict=True):
        assert [paths(draft)[place] for place in places] == paths(proposal)
    for node, parent in enumerate(draft.parents):
        assert parent < node
        assert parent == ROOT or draft.survival[node] <= draft.survival[parent]
        first = next(at for at, proposal in enumerate(given_proposals) if paths(draft)[node] in paths(proposal))
        assert draft.sources[node] == f"source{first}"


@given(st.lists(proposals(), min_size=1, max_size=4))
def test_a_merged_draft_is_depth_first(given_proposals: list[Proposal]) -> None:
    """So that a matcher that walks it goes back as little as it can."""
    draft, _ = merged(given_proposals)
    stack: list[int] = []
    for node, parent in enumerate(draft.parents):
        while stack and stack[-1] != parent:
            stack.pop()
        assert parent == ROOT or stack, "it would have to enter a branch twice"
        stack.append(node)


@given(st.lists(proposals(), min_size=1, max_size=3), st.integers(0, 12))
def test_the_likeliest_part_is_closed_and_likeliest(given_proposals: list[Proposal], count: int) -> None:
    draft, _ = merged(given_proposals)
    part = draft.likeliest(count)
    kept = paths(part)
    assert len(part) == min(count, len(draft))
    assert all(path[:-1] in kept or len(path) == 1 for path in kept)
    left = [draft.survival[node] for node, path in enumerate(paths(draft)) if path not in kept]
    assert not left or not kept or min(part.survival) >= max(left)


@given(st.lists(proposals(), min_size=1, max_size=3), st.sets(st.integers(0, 2), max_size=2))
def test_without_tokens_their_subtrees_are_gone(given_proposals: list[Proposal], unwanted: set[int]) -> None:
    draft, _ = merged(given_proposals)
    assert paths(draft.without(unwanted)) == [path for path in paths(draft) if not unwanted & set(path)]


@given(st.lists(proposals(), min_size=1, max_size=3))
def test_the_chain_of_a_tree_follows_its_likeliest_children(given_proposals: list[Proposal]) -> None:
    draft, _ = merged(given_proposals)
    chain = draft.chain()
    assert chain.is_chain
    longest = paths(chain)[-1]
    for at in range(len(longest)):
        siblings = [
            draft.survival[node]
            for node, path in enumerate(paths(draft))
            if path[:-1] == longest[:at] and len(path) == at + 1
        ]
        assert chain.survival[at] == max(siblings)
    assert not any(path[:-1] == longest for path in paths(draft))


@given(st.lists(proposals(), min_size=1, max_size=3), st.lists(st.integers(0, 2), max_size=4))
def test_children_say_what_follows(given_proposals: list[Proposal], tokens: list[int]) -> None:
    draft, _ = merged(given_proposals)
    node = ROOT
    for at, token in enumerate(tokens):
        node = draft.children().get((node, token), ROOT)
        there = tuple(tokens[: at + 1]) in paths(draft)
        assert (node != ROOT) == there
        if not there:
            return
        assert paths(draft)[node] == tuple(tokens[: at + 1])


def test_a_chain_cut_at_a_token_passes_it_on_with_its_distribution() -> None:
    """Rejection sampling that never saw the token a draft was cut at would favour it."""
    rows = np.eye(4, dtype=np.float32)
    chain = Draft([0, 1, 2, 3], range(-1, 3), ["draft_model"] * 4, list(accumulate([0.5] * 4, mul)), rows)
    cut = chain.without({2})
    assert (list(cut.tokens), cut.refused) == ([0, 1], 2)
    assert cut.probabilities is not None
    assert cut.probabilities.tolist() == rows.tolist()
    assert cut.likeliest(3) is cut


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_shorter_draft_verifies_as_many_of_the_drawn_tokens_whatever_they_are(count: int) -> None:
    """A refused token counts as one of them: else it would be tried where another one is not."""
    rows = np.eye(4, dtype=np.float32)
    chain = Draft([0, 1, 2, 3], range(-1, 3), ["draft_model"] * 4, [0.5] * 4, rows)
    for draft in (chain, chain.without({2})):
        shorter = draft.likeliest(count)
        assert (list(shorter.tokens), shorter.refused, shorter.uncut_length) == ([0, 1][:count], -1, count)
    assert chain.without({1}).likeliest(2).refused == 1
