"""The prefix index: which full pages of tokens are in the cache already, by everything that came before them.

A page is found by exact comparison of (what came before, its own tokens), never by a bare hash, so that no collision can
bring one text's KV into another. What comes before the first page is the *root*: the tenant and the adapter. Tenants
never share a root, so that no timing tells one what another has computed.

Tree of pages after RadixAttention (Zheng et al., SGLang, 2024), with pages as its only edges.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

Tokens = tuple[int, ...]
Key = tuple[Hashable, Tokens]


class Node(NamedTuple):
    """A page in the tree. ``ident`` stands for it and all before it; it is never used again."""

    ident: int
    page: int


class PrefixIndex:
    """Full pages by their content and everything before. Holds no references: the pool says which pages live."""

    def __init__(self) -> None:
        self._nodes: dict[Key, Node] = {}
        self._keys: dict[int, Key] = {}
        self._last = 0

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, before: Hashable, tokens: Tokens) -> Node | None:
        """The page that holds ``tokens`` behind ``before`` (a root or a node's ident)."""
        return self._nodes.get((before, tokens))

    def add(self, before: Hashable, tokens: Tokens, page: int) -> int:
        """Enter a computed page; the ident that stands for it. When its content is there already, the first page stays."""
        key = (before, tokens)
        node = self._nodes.get(key)
        if node is None:
            self._last += 1
            node = self._nodes[key] = Node(self._last, page)
            self._keys[page] = key
        return node.ident

    def forget(self, page: int) -> None:
        """The page's content is about to go. What came behind it cannot be found any more and goes in its turn."""
        key = self._keys.pop(page, None)
        if key is not None:
            del self._nodes[key]

    def check_integrity(self) -> None:
        """Raises AssertionError when the two directions disagree."""
        assert len(self._nodes) == len(self._keys), "prefix index: nodes and pages differ in number"
        for page, key in self._keys.items():
            assert self._nodes[key].page == page, f"prefix index: page {page} is entered under another key"
