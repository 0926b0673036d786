"""Token healing: a prompt that ends inside what the model knows as one token is cut back, and its end written again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inferd import protocol as p
from inferd_runtime.engine.context import Context
from inferd_runtime.session.host import ServedModel


@dataclass(frozen=True)
class Healing:
    """What was cut from a context: ``tokens`` from index ``start`` on, whose text is ``prefix``."""

    context: Context
    model: ServedModel
    start: int
    tokens: Sequence[int]
    prefix: str

    @classmethod
    def of(cls, request: p.StartGenerate, context: Context, model: ServedModel) -> Healing | None:
        """Where to cut for a request that wants it; None where there is nothing to heal. Raises InvalidRequest."""
        if not request.heal:
            return None
        if context.irregular_from is not None:
            raise p.InvalidRequest("heal does not go with explicit positions or an attention mask")
        healed = model.healer.heal(context.tokens)
        if not healed.prefix:
            return None
        start = len(healed.tokens)
        return cls(context, model, start, context.tokens[start:], healed.prefix)

    def constrain(self, request: p.StartGenerate) -> p.StartGenerate:
        """The request whose output begins with what was cut."""
        members = [] if request.constraint is None else [request.constraint]
        return dataclasses.replace(request, constraint=p.Constraint("prefixed", value=self.prefix, members=members))

    def cut(self) -> None:
        """Cut the context."""
        self.context.truncate(self.start)

    def restore(self) -> None:
        """Put back what was cut, unless all of it was written again."""
        written = self.model.tokenizer.decode(self.context.tokens[self.start :])
        if not written.startswith(self.prefix):
            self.context.truncate(self.start)
            self.context.append(self.tokens)

    def behind(self, decode: Callable[[int], str]) -> Callable[[int], str]:
        """A stream decoder that leaves out the text that was cut."""
        left = len(self.prefix)

        def decoded(token: int) -> str:
            nonlocal left
            text = decode(token)
            skipped = min(left, len(text))
            left -= skipped
            return text[skipped:]

        return decoded


def check_healing(request: p.StartGenerate) -> None:
    """Refuse what healing does not go with. Raises InvalidRequest."""
    if not request.heal:
        return
    if request.program_constraint:
        raise p.InvalidRequest(
            "heal and program_constraint exclude each other: healing is a constraint on the first tokens"
        )
    if request.constraint is not None and request.constraint.best_effort:
        raise p.InvalidRequest("heal does not go with mode best_effort, which checks the output as a whole")
