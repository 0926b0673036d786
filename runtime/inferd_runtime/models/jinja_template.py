"""Chat templates: Jinja as Hugging Face's templates expect it, in Jinja's own sandbox, bounded in time and size."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_items
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from inferd.partial import finished_members
from inferd.protocol import InferdError, InvalidRequest, LimitExceeded, cut
from inferd_runtime.models import template_bounds as bounds
from inferd_runtime.models.template_input import END_MARK, TemplateInput

RENDER_SECONDS = 1.0
"""Processor time that the renderings of one request may take. One of an ordinary conversation takes less than a millisecond."""
RENDER_LIMIT = "render_seconds"
MAX_INDENT = 64
LOOKS = 32
"""Steps of a template between two looks at the clock."""
MAX_SOURCE = 128 << 10
"""Characters of a template; known ones have up to 40,000, and compiling takes 20 MB and seconds for each 100,000."""
MAX_REASON = 500
MARK = END_MARK + " "


@dataclass
class RenderBudget:
    """The processor time and the characters that the renderings of one request may take, in one thread."""

    seconds: float
    characters: int

    def __post_init__(self) -> None:
        self._end = time.thread_time() + self.seconds
        self._left = self.characters

    def check_time(self) -> None:
        """Raises LimitExceeded once the time is over."""
        if time.thread_time() > self._end:
            raise LimitExceeded(
                f"the chat template takes more than {self.seconds} s for these messages",
                limit=RENDER_LIMIT, value=self.seconds, raise_with="fewer messages and tools",
            )  # fmt: skip

    def spend(self, characters: int) -> None:
        """Count characters that a template wrote. Raises LimitExceeded for too many."""
        self.check_time()
        self._left -= characters
        if self._left < 0:
            raise LimitExceeded(
                f"the rendered messages have more than {self.characters} characters, which no context holds",
                limit="context_tokens", value=self.characters, raise_with="a model with a longer context",
            )  # fmt: skip


class JinjaTemplate:
    """A chat template. ``special``: the variables for special tokens that it may use, such as bos_token."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        self._source = source
        self._special = dict(special)
        self._environment = _Environment()

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that the template asks for. Raises InvalidRequest for a template that is none."""
        with _refusals():
            _check_source(self._source)
            return frozenset(meta.find_undeclared_variables(self._environment.parse(self._source)))

    def prepare(self) -> None:
        """Compile the template, if it is one."""
        with suppress(InvalidRequest), _refusals():
            _ = self._template, self.variables

    @cached_property
    def _template(self) -> Template:
        _check_source(self._source)
        return self._environment.from_string(self._source)

    def render(self, conversation: TemplateInput, budget: RenderBudget) -> str:
        """Return the text. Raises InvalidRequest when the template refuses the messages, LimitExceeded past the budget."""
        messages = [_as_read(message) for message in conversation.messages]
        if conversation.continue_final:
            messages[-1]["content"] += MARK
        values = {
            **self._special, "documents": None, **(conversation.arguments or {}), "messages": messages,
            "tools": [dict(tool) for tool in conversation.tools] or None, "add_generation_prompt": conversation.cue,
        }  # fmt: skip
        with _refusals(), self._environment.within(budget):
            text = "".join(self._pieces(values, budget))
        return _cut_at_mark(text) if conversation.continue_final else text

    def _pieces(self, values: Mapping[str, Any], budget: RenderBudget) -> Iterator[str]:
        for piece in self._template.generate(values):
            budget.spend(len(piece))
            yield piece


def _check_source(source: str) -> None:
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"it has more than {MAX_SOURCE} characters")


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn whatever a template raises into InvalidRequest: it is foreign code, which fails in any way on unusual messages."""
    try:
        yield
    except InferdError:
        raise
    except Exception as error:  # the boundary of a model's own template
        reason = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"this model's chat template refuses the messages: {cut(reason, MAX_REASON)}") from error


class _Current(threading.local):
    """The budget of the rendering that runs in this thread, and the steps since the last look at the clock."""

    budget: RenderBudget | None = None
    steps = 0


class _Environment(ImmutableSandboxedEnvironment):
    """What transformers gives its templates, with a look at the clock at each step that a loop can hardly do without."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})
    code_generator_class = bounds.BoundedCode

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        self._current = _Current()
        self.filters = bounds.bounded_filters() | {"tojson": _to_json, "items": _items}
        self.globals.update(raise_exception=_refuse, strftime_now=_now, namespace=_Namespace)
        for name in bounds.NO_GLOBALS:
            del self.globals[name]

    @contextmanager
    def within(self, budget: RenderBudget) -> Iterator[None]:
        """Let the renderings of this thread take from a budget."""
        self._current.budget = budget
        try:
            yield
        finally:
            self._current.budget = None

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See Jinja."""
        self._step()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See Jinja."""
        self._step()
        return super().getitem(obj, argument)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """See Jinja."""
        __self._step()
        if isinstance(text := getattr(__obj, "__self__", None), str):
            args = bounds.check_method(text, __obj.__name__, args)
        if isinstance(__obj, Macro) and (__obj.catch_varargs or __obj.catch_kwargs):
            bounds.measured([args, kwargs])
        return __self.made(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse what makes a large value out of a small one, and do everything else."""
        if isinstance(left, str) and isinstance(right, str) and operator == "+":  # most of what templates do
            bounds.bounded(len(left) + len(right))
            return left + right
        bounds.check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """See Jinja. No method that makes a large value out of a small one."""
        large = isinstance(obj, bounds.PLAIN) or (isinstance(obj, str) and attr in bounds.NO_METHODS)
        return not large and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """See Jinja."""
        made = super().wrap_str_format(value)
        if made is None:
            return None

        def formatted(*args: Any, **kwargs: Any) -> str:
            bounds.check_format(value.__self__, *args, kwargs)
            text: str = made(*args, **kwargs)
            return text

        return formatted

    def made(self, value: Any) -> Any:
        """Return a list or an object that the template has made. Raises TemplateError for one that is too large."""
        if isinstance(value, (list, tuple, dict)):
            bounds.measured(value)
        return value

    def joined(self, *parts: Any) -> str:
        """Return what ``~`` makes of values."""
        bounds.bounded(bounds.measured(parts))
        return "".join(map(str, parts))

    def concat(self, parts: Iterable[str]) -> str:
        """Return the text of a macro or of a block that is set."""
        whole = list(parts)
        bounds.bounded(sum(map(len, whole)))
        return "".join(whole)

    def watched(self, values: Any) -> _Watched:
        """Return what a loop goes through, with a look at the clock now and then."""
        return _Watched(values, self._step)

    def _step(self) -> None:
        current = self._current
        current.steps += 1
        if current.steps >= LOOKS and current.budget is not None:
            current.steps = 0
            current.budget.check_time()


@dataclass
class _Watched:
    """What a loop goes through: a step for each value."""

    values: Any
    step: Callable[[], None]

    def __iter__(self) -> Iterator[Any]:
        for value in self.values:
            self.step()
            yield value

    def __len__(self) -> int:
        return len(self.values)


class _GenerationTag(Extension):
    """``{% generation %}``, which marks what the assistant wrote: for training. Here it is what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements in the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore."""

    def __repr__(self) -> str:
        return "<Namespace>"  # Jinja's has all that is in it, itself included

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"a namespace has no attribute {name!r}")
        super().__setitem__(name, value)


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as transformers' filter writes it; Jinja's own would escape it for HTML."""
    if (len(indent) if isinstance(indent, str) else indent or 0) > MAX_INDENT:
        raise TemplateError(f"tojson indents by {MAX_INDENT} at most")
    if sum(map(len, separators or ())) > MAX_INDENT:
        raise TemplateError(f"tojson separates by {MAX_INDENT} characters at most")
    if isinstance(value, _BrokenJson):
        return str(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _BrokenJson(str):
    """The arguments of a call that was cut: to a template that writes them as JSON, what there is of it."""

    __slots__ = ()


class _Arguments(dict[str, Any]):
    """The arguments of a call: to a template that writes them as a text, as DeepSeek's do, their JSON."""

    def __str__(self) -> str:
        return _to_json(dict(self))

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield an object's members, as Jinja's filter does; those that are complete where it was cut."""
    yield from do_items(finished_members(value) if isinstance(value, _BrokenJson) else value)


def _as_read(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a message as templates read it: its reasoning under two names, the arguments of calls as JSON."""
    read = dict(message)
    if read.get("reasoning_content") is not None:
        read["thinking"] = read["reasoning_content"]
    if read.get("tool_calls"):
        read["tool_calls"] = [_call_as_read(call) for call in read["tool_calls"]]
    return read


def _call_as_read(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = call["function"].get("arguments")
    read = _BrokenJson(arguments) if isinstance(arguments, str) else _Arguments(arguments or {})
    return {**call, "function": {**call["function"], "arguments": read}}


def _cut_at_mark(text: str) -> str:
    """Return the text up to the end of the last message, without the space there if the template takes it off."""
    at = text.rfind(END_MARK)
    if at < 0:
        raise InvalidRequest("continue_final: this model's chat template does not write the last message as it is")
    return text[:at] if text.startswith(MARK, at) else text[:at].rstrip()
