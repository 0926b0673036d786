"""Matchers: the state of one text under a compiled grammar, with masks, rollback and forced tokens."""
