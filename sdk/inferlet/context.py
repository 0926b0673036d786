"""``Context``: tokens that are computed, and a buffer of those that are to be."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

from inferd.protocol import DeleteSaved, NotFound, OpenSaved, SaveContext, TakeSaved
from inferd.protocol.snapshots import SNAPSHOT_NAME
from inferd.protocol.tokens import checked_tokens
from inferlet import turns
from inferlet.adapter import Adapter
from inferlet.blocking import call
from inferlet.forward import Forward
from inferlet.generation import Constraints, Generator
from inferlet.model import Model, model_and_name
from inferlet.refused import refuse
from inferlet.sample import Sampler
from inferlet.sequence import HeldSequence
from inferlet.spec import Speculator


class Context:
    """A conversation, or any other run of tokens.

    What :meth:`system`, :meth:`user`, :meth:`assistant`, :meth:`cue`, :meth:`seal` and :meth:`append` add is buffered, and
    computed by :meth:`flush` or by the next generation.
    """

    def __init__(self, model: Model | None = None) -> None:
        self._adopt(HeldSequence.empty(model or Model.load()))

    @classmethod
    def open(cls, model: Model | str, name: str | None = None) -> Context | None:
        """Return a new context that starts as the saved one. If nothing is saved under the name: None, or, for a name
        without a model, NotFound, as in Pie's later programs.
        """
        where, saved = model_and_name(model, name)
        return cls._saved(where, OpenSaved(stored_name(saved), where.name), raises=name is None)

    @classmethod
    def take(cls, model: Model | str, name: str | None = None) -> Context | None:
        """As :meth:`open`, and delete what was saved."""
        where, saved = model_and_name(model, name)
        return cls._saved(where, TakeSaved(stored_name(saved), where.name), raises=name is None)

    @staticmethod
    def delete(model: Model | str, name: str | None = None) -> None:
        """Delete what was saved. Raises NotFound."""
        where, name = model_and_name(model, name)
        call(where.port, DeleteSaved(stored_name(name)))

    @classmethod
    def _saved(cls, model: Model, request: OpenSaved | TakeSaved, *, raises: bool) -> Context | None:
        try:
            held = HeldSequence.opened(model, request)
        except NotFound:
            if raises:
                raise
            return None
        return cls._of(held)

    @classmethod
    def _of(cls, held: HeldSequence) -> Context:
        context = cls.__new__(cls)
        context._adopt(held)
        return context

    def _adopt(self, held: HeldSequence) -> None:
        self.held = held
        self._tokens: list[int] = []
        self._turns: list[turns.Turn] = []

    def fork(self) -> Context:
        """Return a second context with the same tokens and the same buffer."""
        copy = Context._of(self.held.fork())
        copy._tokens, copy._turns = list(self._tokens), list(self._turns)
        return copy

    def save(self, name: str) -> None:
        """Keep a copy, without the buffer, under a name. Raises InvalidRequest for one in use."""
        self.held.block(SaveContext(self.held.number, stored_name(name)))

    def snapshot(self) -> str:
        """Keep a copy under a new name, and return the name."""
        name = f"snapshot-{uuid.uuid4().hex}"
        self.save(name)
        return name

    def release(self) -> None:
        """Give the context's memory back. Safe to call twice."""
        self.held.release()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def model(self) -> Model:
        """Its model."""
        return self.held.model

    @property
    def page_size(self) -> int:
        """Tokens per page."""
        return self.model.info.page_size

    @property
    def seq_len(self) -> int:
        """Number of tokens, without the buffer."""
        return self.held.length

    def buffer(self) -> list[int]:
        """Return the tokens that are not computed yet."""
        self._render()
        return list(self._tokens)

    # -- Filling --------------------------------------------------------------------------------------------------

    def system(self, message: str) -> Context:
        """Add a system message."""
        self._turns.append(turns.turn("system", message))
        return self

    def user(self, message: str) -> Context:
        """Add a user message."""
        self._turns.append(turns.turn("user", message))
        return self

    def assistant(self, message: str) -> Context:
        """Add a whole assistant message."""
        self._turns.append(turns.turn("assistant", message))
        return self

    def cue(self) -> Context:
        """Begin the assistant's turn."""
        self._render(cue=True)
        return self

    def seal(self) -> Context:
        """End the assistant's turn."""
        self._render()
        self._tokens += turns.seal(self.model)
        return self

    def append(self, tokens: Iterable[int]) -> Context:
        """Add tokens as they are."""
        self._render()
        self._tokens += checked_tokens("tokens", list(tokens))
        return self

    def _render(self, *, cue: bool = False) -> None:
        """Turn buffered messages into tokens: together, so that a template sees which follow each other."""
        if not self._turns and not cue:
            return
        waiting, self._turns = self._turns, []
        begins = bool(waiting) and not self.seq_len and not self._tokens
        self._tokens += (turns.opening if begins else turns.continuation)(self.model, waiting, cue=cue)

    def take_buffer(self) -> list[int]:
        """Return the buffer, and empty it. (Not in Pie.)"""
        self._render()
        taken, self._tokens = self._tokens, []
        return taken

    async def flush(self) -> None:
        """Compute the buffer."""
        tokens = self.take_buffer()
        if tokens:
            await self.held.append(tokens)
            await self.held.compute()

    def truncate(self, n: int) -> None:
        """Drop the last ``n`` computed tokens; the buffer stays. Raises ValueError for more than there are."""
        if not 0 <= n <= self.seq_len:
            raise ValueError(f"cannot drop {n} tokens: the context holds {self.seq_len}")
        self.held.truncate(self.seq_len - n)

    # -- Computing ------------------------------------------------------------------------------------------------

    def forward(self) -> Forward:
        """Return a pass to describe and execute."""
        return Forward(self)

    def generate(
        self,
        sampler: Sampler,
        *,
        max_tokens: int | None = None,
        stop: Iterable[int] | None = None,
        constrain: Constraints | None = None,
        logit_mask: list[int] | None = None,
        speculator: Speculator | None = None,
        system_speculation: bool | None = None,
        adapter: Adapter | None = None,
        zo_seed: int | None = None,
        horizon: int | None = None,
        rebid_each_step: bool = True,
        auto_flush: bool = True,
    ) -> Generator:
        """Return a generator of tokens.

        ``auto_flush``: the assistant's turn is begun first, and ``stop`` is by default what ends a text of the model; else both
        are the program's own affair. Several constraints hold together. ``horizon`` and ``rebid_each_step`` change nothing.
        Raises ValueError for a ``speculator`` with ``system_speculation``.
        """
        if speculator is not None and system_speculation:
            raise ValueError("speculator and system_speculation are mutually exclusive")
        if zo_seed is not None:
            refuse("generate(zo_seed=...)", "adapters are not trained here")
        if auto_flush:
            self.cue()
            stop = self.model.info.eos_tokens if stop is None else stop
        return Generator(
            self,
            sampler,
            max_tokens=max_tokens,
            stop=stop,
            constrain=constrain,
            logit_mask=logit_mask,
            speculator=speculator,
            system_speculation=bool(system_speculation),
            adapter=adapter,
        )

    # -- The market -----------------------------------------------------------------------------------------------

    def set_bid(self, value: float) -> None:
        """Do nothing: nothing is bought here."""

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Do nothing around a block: a context that computes nothing costs nothing here."""
        yield

    # -- Media ----------------------------------------------------------------------------------------------------

    async def append_image(self, image: Any) -> NoReturn:
        """Refuse: there are no pictures."""
        refuse("Context.append_image", "the runtime serves models of text")

    async def append_images(self, images: Any) -> NoReturn:
        """Refuse: there are no pictures."""
        refuse("Context.append_images", "the runtime serves models of text")

    async def append_audio(self, audio: Any) -> NoReturn:
        """Refuse: there is no sound."""
        refuse("Context.append_audio", "the runtime serves models of text")

    async def append_audios(self, audios: Any) -> NoReturn:
        """Refuse: there is no sound."""
        refuse("Context.append_audios", "the runtime serves models of text")

    async def append_video(self, video: Any) -> NoReturn:
        """Refuse: there are no pictures."""
        refuse("Context.append_video", "the runtime serves models of text")

    def __repr__(self) -> str:
        return f"Context({self.seq_len} tokens of {self.model.name!r})"


def stored_name(name: str) -> str:
    """Return the name that a snapshot has in the runtime: the same, or a hash of one that the runtime does not take."""
    if SNAPSHOT_NAME.fullmatch(name):
        return name
    return f"pie-{hashlib.sha256(name.encode()).hexdigest()}"
