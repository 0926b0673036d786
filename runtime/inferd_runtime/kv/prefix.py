"""The prefix index: which full pages of tokens are in the cache already, by everything that came before them.

A page is found by exact comparison of (what came before, its own tokens), never by a bare hash, so that no collision can
bring one text's KV into another. What comes before the first page is the *root*: the tenant and the adapter. Tenants
never share a root, so that no timing tells one what another has computed.

Tree of pages after RadixAttention (Zheng et al., SGLang, 2024), with pages as its only edges.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

PageTokens = tuple[int, ...]
PrefixKey = tuple[Hashable, PageTokens]


class PrefixNode(NamedTuple):
    """A page in the tree. ``ident`` stands for its content and all before it; it never stands for anything else."""

    ident: int
    page: int


class PrefixIndex:
    """Full pages by their content and everything before it. Holds no references: the pool says which pages live."""

    def __init__(self) -> None:
        self._nodes: dict[PrefixKey, PrefixNode] = {}
        self._keys: dict[int, PrefixKey] = {}
        self._pages: dict[int, int] = {}
        self._last = 0

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, before: Hashable, tokens: PageTokens) -> PrefixNode | None:
        """Return the page that holds ``tokens`` behind ``before`` (a root or a node's ident), None if there is none."""
        return self._nodes.get((before, tokens))

    def page_of(self, ident: int) -> int | None:
        """Return the page that an ident stands for, None if it is no longer in the index."""
        return self._pages.get(ident)

    def add(self, before: Hashable, tokens: PageTokens, page: int, ident: int | None = None) -> int:
        """Enter a computed page and return its ident. If its content is in the index already, the first page stays.

        ``ident``: the page is a copy, to the bit, of the one that this stood for.
        """
        key = (before, tokens)
        node = self._nodes.get(key)
        if node is None:
            if ident is None:
                self._last = ident = self._last + 1
            node = self._nodes[key] = PrefixNode(ident, page)
            self._keys[page] = key
            self._pages[ident] = page
        return node.ident

    def forget(self, page: int) -> None:
        """Take a page out of the index before its content changes. Pages behind it cannot be found any more either."""
        key = self._keys.pop(page, None)
        if key is not None:
            del self._pages[self._nodes.pop(key).ident]

    def meanings(self) -> dict[int, PrefixKey]:
        """Return what each ident in the index stands for: what comes before its page, and the page's tokens."""
        return {node.ident: key for key, node in self._nodes.items()}

    def check_integrity(self) -> None:
        """Raise AssertionError if the two directions disagree."""
        assert len(self._nodes) == len(self._keys) == len(self._pages), "prefix index: nodes and pages differ in number"
        for page, key in self._keys.items():
            assert self._nodes[key].page == page, f"prefix index: page {page} is entered under another key"
            assert self._pages[self._nodes[key].ident] == page, f"prefix index: page {page} has another ident"
