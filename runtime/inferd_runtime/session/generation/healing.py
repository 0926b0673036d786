"""Token healing: a prompt that ends inside what the model knows as one token is cut back, and its end written again."""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferd import protocol as p
from inferd_runtime.engine.sequences.cached_sequence import CachedSequence
from inferd_runtime.session.served_model import ServedModel


@dataclass(frozen=True)
class Healing:
    """The end that is cut from a context: ``tokens`` from index ``start`` on, whose text is ``prefix``.

    Progress in rewriting it is counted in bytes of tokens: a decoder may drop the space that a text begins with.
    """

    context: CachedSequence
    model: ServedModel
    start: int
    tokens: Sequence[int]
    prefix: str

    @classmethod
    def of(cls, context: CachedSequence, model: ServedModel) -> Healing | None:
        """Return where to cut the context; None if there is nothing to heal. Raises InvalidRequest."""
        if context.irregular_from is not None:
            raise p.InvalidRequest("heal does not go with explicit positions or an attention mask")
        healed = model.healer.heal(context.tokens)
        if not healed.prefix:
            return None
        start = len(healed.tokens)
        return cls(context, model, start, context.tokens[start:], healed.prefix)

    def constrain(self, request: p.StartGenerate) -> p.StartGenerate:
        """Return the request with an output that begins with the cut text."""
        members = [] if request.constraint is None else [request.constraint]
        return dataclasses.replace(request, constraint=p.ConstraintSpec("prefixed", value=self.prefix, members=members))

    def cut(self) -> None:
        """Cut the context."""
        self.context.truncate(self.start)

    def keep(self, length: int) -> tuple[int, Sequence[int]]:
        """Return what the context keeps if the generation ends at ``length`` tokens: how many of these, and the tokens
        to put back behind them (all that were cut, unless all of their text was written again).
        """
        return (length, ()) if length < self.start or self._covered(length) else (self.start, self.tokens)

    def restore(self) -> None:
        """Put back the cut tokens, unless all of their text was written again."""
        length, missing = self.keep(len(self.context.tokens))
        if missing:
            self.context.truncate(length)
            self.context.append(missing)

    def behind(self, decode: Callable[[int], str]) -> Callable[[int], str]:
        """Return a stream decoder that leaves out the cut text."""
        pieces, utf8 = self.model.grammars.table.tokens, codecs.getincrementaldecoder("utf-8")("replace")
        left, new, begun = len(self.prefix.encode()), "", False

        def decoded(token: int) -> str:
            nonlocal left, new, begun
            text = decode(token)
            if begun:
                return text
            new += utf8.decode(pieces[token][left:])
            left = max(0, left - len(pieces[token]))
            begun = not left and bool(text)
            return text[max(0, len(text) - len(new)) :] if begun else ""

        return decoded

    def _covered(self, length: int) -> bool:
        """True if the first ``length`` tokens hold all of the cut text."""
        pieces, wanted, written = self.model.grammars.table.tokens, self.prefix.encode(), b""
        for at in range(self.start, length):
            if len(written) >= len(wanted):
                break
            written += pieces[self.context.tokens[at]]
        return written.startswith(wanted)
