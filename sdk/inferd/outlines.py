"""Outlines programs on this runtime: a model for Outlines whose every call is a generation here.

    from inferd.outlines import OutlinesModel
    model = OutlinesModel("ws://localhost:8000", token)
    model("Ada Lovelace, 36", Person)              # JSON text of a pydantic model
    model.generator(Literal["yes", "no"])("Sure?") # Outlines' own generator

Needs the package outlines (`pip install inferd[outlines]`); not part of what runs inside the runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from inferd.constraints import Lark
from inferd.context import Context
from inferd.protocol import InvalidRequest
from inferd.sampling import Sampler
from inferd.schema import AnyJson, Choice, JsonSchema, OutputConstraint, Regex

try:
    from outlines import grammars, types
    from outlines.generator import BlackBoxGenerator
    from outlines.inputs import Chat
    from outlines.models.base import Model, ModelTypeAdapter
    from outlines.types import dsl
    from outlines.types.utils import get_schema_from_signature, is_callable, is_date, is_datetime, is_time
except ImportError as error:
    raise ImportError(
        "inferd.outlines needs the package outlines, which is there up to Python 3.13: pip install inferd[outlines]"
    ) from error

T = TypeVar("T")
# What Outlines makes of Python's own types, which is text of Python; here it is JSON.
_PYTHON_TERMS = ((types.string, str), (types.boolean, bool), (types.integer, int), (types.number, float))
_TEXT_TYPES: tuple[tuple[Callable[[Any], bool], Any], ...] = (
    (is_datetime, types.datetime),
    (is_date, types.date),
    (is_time, types.time),
)


class TypeAdapter(ModelTypeAdapter):
    """Inputs and output types of Outlines as those of this package."""

    def format_input(self, model_input: str | Chat) -> list[dict[str, str]]:
        """Return messages with role and content; text alone is a user's message. Raises InvalidRequest for anything else."""
        if isinstance(model_input, str):
            return [{"role": "user", "content": model_input}]
        if not isinstance(model_input, Chat):
            raise InvalidRequest(f"the input must be a string or a Chat, not {type(model_input).__name__}")
        for message in model_input.messages:
            if message["role"] not in ("system", "user", "assistant") or not isinstance(message["content"], str):
                raise InvalidRequest(
                    f"a message has role system, user or assistant and content of text, not {message!r}"
                )
        return list(model_input.messages)

    def format_output_type(self, output_type: Any = None) -> OutputConstraint | None:
        """Return the constraint that an output type stands for, None for free text.

        Python types become JSON, as do Outlines' own terms for them; strings of a Literal or an Enum alone, choices,
        dates and times, and regular expressions are bare text. Raises InvalidRequest for what has no such meaning.
        """
        if output_type is None or isinstance(output_type, OutputConstraint):
            return output_type
        if isinstance(output_type, dsl.Term):
            return _of_term(output_type)
        if get_origin(output_type) is Literal:
            return _of_values(get_args(output_type), output_type)
        if isinstance(output_type, enum.EnumMeta):
            members: list[enum.Enum] = list(output_type)
            return _of_values([member.value for member in members], output_type)
        for test, term in _TEXT_TYPES:
            if test(output_type):
                return Regex(_regex(term))
        if not isinstance(output_type, type) and get_origin(output_type) is None and is_callable(output_type):
            return JsonSchema({**get_schema_from_signature(output_type), "additionalProperties": False})
        return JsonSchema(output_type)


class OutlinesModel(Model):
    """An Outlines model over a runtime; also the model of Outlines' own generators, made by :meth:`generator`.

    Every call opens a session of its own and runs an event loop until it ends, so it cannot be used where one runs
    already: there, :class:`inferd.Context` does the same without Outlines. Results are text, JSON text for JSON.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, model: str | None = None) -> None:
        """``url`` and ``token`` as for :func:`inferd.connect`; without a URL, the session in force is used. ``model``
        is the served model's name, by default the first."""
        self.type_adapter = TypeAdapter()
        self._url = url
        self._token = token
        self._model = model

    def generator(self, output_type: Any = None) -> BlackBoxGenerator:
        """Return Outlines' generator for one output type. ``outlines.Generator`` itself takes a closed list of models."""
        self.type_adapter.format_output_type(output_type)  # what cannot be used is refused here
        return BlackBoxGenerator(self, output_type)  # type: ignore[arg-type]

    def __call__(self, model_input: Any, output_type: Any = None, backend: str | None = None, **options: Any) -> str:
        """Return the text for one input. ``options`` are those of ``Context.generate``, and ``sampler`` (default: the most likely
        token). Raises InvalidRequest for a ``backend``: the runtime chooses it."""
        _refuse_backend(backend)
        return self.generate(model_input, output_type, **options)

    def batch(
        self, model_input: list[Any], output_type: Any = None, backend: str | None = None, **options: Any
    ) -> list[str]:
        """Return the texts for several inputs, generated together."""
        _refuse_backend(backend)
        return self.generate_batch(model_input, output_type, **options)

    def stream(
        self, model_input: Any, output_type: Any = None, backend: str | None = None, **options: Any
    ) -> Iterator[str]:
        """Yield pieces of the text as they come."""
        _refuse_backend(backend)
        return self.generate_stream(model_input, output_type, **options)

    def generate(self, model_input: Any, output_type: Any = None, **options: Any) -> str:
        """Return what calling the model returns."""
        return self.generate_batch([model_input], output_type, **options)[0]

    def generate_batch(self, model_input: Sequence[Any], output_type: Any = None, **options: Any) -> list[str]:
        """Return what :meth:`batch` returns."""
        constraint = self.type_adapter.format_output_type(output_type)
        chats = [self.type_adapter.format_input(each) for each in model_input]

        async def together() -> list[str]:
            async with self._session(), asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._text(chat, constraint, options)) for chat in chats]
            return [task.result() for task in tasks]

        return _run(together())

    def generate_stream(self, model_input: Any, output_type: Any = None, **options: Any) -> Iterator[str]:
        """Yield what :meth:`stream` yields."""
        constraint = self.type_adapter.format_output_type(output_type)
        chat = self.type_adapter.format_input(model_input)
        return self._pieces(chat, constraint, options)

    def _pieces(self, chat: list[dict[str, str]], constraint: Any, options: dict[str, Any]) -> Iterator[str]:
        with asyncio.Runner() as runner:
            pieces = self._stream(chat, constraint, options)
            try:
                while (piece := runner.run(_next(pieces))) is not None:
                    yield piece
            finally:
                runner.run(pieces.aclose())

    async def _stream(self, chat: list[dict[str, str]], constraint: Any, options: dict[str, Any]) -> Any:
        async with self._session(), self._context(chat) as context:
            async for step in _generation(context, constraint, options):
                if step.text:
                    yield step.text

    async def _text(self, chat: list[dict[str, str]], constraint: Any, options: dict[str, Any]) -> str:
        async with self._context(chat) as context:
            text: str = await _generation(context, constraint, options).collect_text()
            return text

    def _context(self, chat: list[dict[str, str]]) -> Context:
        context = Context(self._model)
        for message in chat:
            getattr(context, message["role"])(message["content"])
        return context

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[None]:
        if self._url is None:
            yield
            return
        from inferd.transport.websocket import Connection

        async with Connection(self._url, self._token):
            yield


def _generation(context: Context, constraint: OutputConstraint | None, options: dict[str, Any]) -> Any:
    rest = {**options}
    sampler = rest.pop("sampler", None) or Sampler.argmax()
    return context.generate(sampler, constrain=constraint, **rest)


def _run(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner() as runner:
        return runner.run(work)


async def _next(pieces: AsyncIterator[str]) -> str | None:
    return await anext(pieces, None)


def _refuse_backend(backend: str | None) -> None:
    if backend is not None:
        raise InvalidRequest(f"backend {backend!r}: the runtime chooses the backend, it is not the call's to choose")


def _of_term(term: Any) -> OutputConstraint:
    if isinstance(term, dsl.JsonSchema):
        if term.whitespace_pattern is not None and re.fullmatch(term.whitespace_pattern, "") is None:
            raise InvalidRequest("JSON is written without white space, which whitespace_pattern does not allow")
        return JsonSchema(term.schema)
    if isinstance(term, dsl.CFG):
        return AnyJson() if term.definition == grammars.json else Lark(term.definition)
    if isinstance(term, dsl.Choice):
        return _of_values(term.items, term)
    python = next((kind for known, kind in _PYTHON_TERMS if term == known), None)
    return Regex(_regex(term)) if python is None else JsonSchema(python)


def _of_values(values: Sequence[Any], what: Any) -> OutputConstraint:
    """Return the constraint for listed values: text alone is bare; other values, and text among them, are JSON."""
    listed = list(values)
    if all(isinstance(value, str) for value in listed):
        return Choice(listed)
    if not all(value is None or isinstance(value, str | bool | int | float) for value in listed):
        raise InvalidRequest(f"{what!r} holds values that are not JSON")
    return JsonSchema({"enum": listed})


def _regex(term: Any) -> str:
    if any(isinstance(part, dsl.JsonSchema) for part in _parts(term)):
        raise InvalidRequest(
            "a JSON schema inside a regular expression is not supported: Outlines drops keywords there"
        )
    try:
        pattern: str = dsl.to_regex(term)
    except TypeError as error:
        raise InvalidRequest(f"{type(term).__name__} cannot be written as a regular expression: {error}") from error
    return pattern


def _parts(term: Any) -> Iterator[Any]:
    yield term
    for part in (getattr(term, "term", None), *(getattr(term, "terms", None) or ())):
        if part is not None:
            yield from _parts(part)
