"""How large what a chat template makes may be, in characters and members, before it is made: a template is a stranger's code.

Its loops are looked at one by one elsewhere (:mod:`~inferd_runtime.models.jinja_template`); here are the single steps that a
template can make something large with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import Environment, TemplateError, nodes, pass_environment
from jinja2.compiler import CodeGenerator, Frame
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.visitor import NodeTransformer

MOST = 64 << 20
"""Characters of a value with all that is in it, each member counted as MEMBER: more than any conversation has."""
MEMBER = 64
MOST_BITS = 1 << 14
MAX_FACTOR = 1000
"""The largest factor of a text or a list, exponent, width and precision: values of requests may stand there."""
PADDED = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
NO_METHODS = PADDED | {"encode", "format_map", "maketrans", "translate"}
"""Of texts: they make a large one out of a small one, or something that has such methods."""
PLAIN = (int, float, complex, bytes)
"""Values whose methods no template needs."""
NO_FILTERS = frozenset({
    "batch", "center", "filesizeformat", "pprint", "random", "slice", "striptags", "urlize", "wordwrap", "xmlattr",
})  # fmt: skip
NO_GLOBALS = frozenset({"cycler", "joiner", "lipsum"})
WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(?:\d{4}|\*)|[:.][^{}]*\d{4}|\{[^{}]*\{")
"""A width or precision of four digits, or one that is an argument."""


def measured(value: Any) -> int:
    """Return how large a value is with all that is in it. Raises TemplateError for more than MOST."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        total += MEMBER + (len(one) if isinstance(one, str) else 0)
        if total > MOST:
            raise TemplateError(f"the template makes a value of more than {MOST} characters")
        if isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):
            left += one
    return total


def bounded(size: int) -> None:
    """Raise TemplateError for a value of so many characters."""
    if size > MOST:
        raise TemplateError(f"the template makes a value of more than {MOST} characters")


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise TemplateError for an operation that makes a large value."""
    factors = [factor for factor in (left, right) if isinstance(factor, int)]
    if len(factors) == 2 and operator == "*" and left.bit_length() + right.bit_length() > MOST_BITS:
        raise TemplateError(f"a product of more than {MOST_BITS} bits")
    if any(abs(factor) > MAX_FACTOR for factor in factors) and (
        operator == "**" or (operator, len(factors)) == ("*", 1)
    ):
        raise TemplateError(f"{operator} by more than {MAX_FACTOR}")
    if operator == "*" and len(factors) == 1:
        bounded(measured(right if left is factors[0] else left) * max(factors[0], 0))
    if operator == "+" and isinstance(left, (list, tuple)) and isinstance(right, type(left)):
        bounded(measured(min(left, right, key=len)) + len(max(left, right, key=len)))
    if operator == "%" and isinstance(left, str):
        check_format(left, right)


def check_format(text: str, *values: Any) -> None:
    """Raise TemplateError for a format with a width that makes a large text, and for what it would be filled with."""
    if WIDE_FORMAT.search(text):
        raise TemplateError(f"a format with a width or precision of {MAX_FACTOR} or more")
    bounded(measured(values) * (1 + text.count("{") + text.count("%")))


def check_method(text: str, method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a call of a text's method. Raises TemplateError where what it makes would be too large."""
    if method == "join" and arguments:
        parts = list(arguments[0])
        bounded(measured(parts) + len(text) * len(parts))
        return (parts, *arguments[1:])
    if method == "replace" and len(arguments) > 1:
        check_replaced(text, str(arguments[0]), str(arguments[1]))
    return arguments


def check_replaced(text: str, old: str, new: str) -> None:
    """Raise TemplateError where a replacement makes too much of a text."""
    bounded(len(text) + text.count(old) * len(new))


class Bounds(NodeTransformer):
    """Has each literal, each text that is joined and each loop's values go through the environment."""

    def visit_List(self, node: nodes.List) -> nodes.Node:
        """See Jinja."""
        return self._through("made", node)

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """See Jinja."""
        return self._through("made", node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """See Jinja."""
        self.generic_visit(node)
        return _call("joined", node.nodes)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """See Jinja."""
        self.generic_visit(node)
        node.iter = _call("watched", [node.iter])
        return node

    def _through(self, function: str, node: Any) -> nodes.Node:
        self.generic_visit(node)
        return _call(function, [node])


def _call(function: str, arguments: list[Any]) -> nodes.Call:
    attribute = nodes.EnvironmentAttribute(function)
    return nodes.Call(attribute, arguments, [], None, None, lineno=arguments[0].lineno if arguments else 1)


class BoundedCode(CodeGenerator):
    """Jinja's, for a template with :class:`Bounds`."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        """See Jinja."""
        super().visit_Template(Bounds().visit(node), frame)


def bounded_filters() -> dict[str, Callable[..., Any]]:
    """Return Jinja's filters without those that no template needs, the others with bounds."""
    kept = {name: FILTERS[name] for name in FILTERS.keys() - NO_FILTERS}
    return kept | {
        "format": _format,
        "indent": _indent,
        "join": _join,
        "replace": _replace,
        "round": _round,
        "sum": _sum,
    }


def _format(text: Any, *values: Any, **named: Any) -> str:
    check_format(str(text), *values, named)
    made: str = FILTERS["format"](text, *values, **named)
    return made


def _indent(text: str, width: int | str = 4, *options: Any, **named: Any) -> str:
    space = len(width) if isinstance(width, str) else width
    bounded((text.count("\n") + 1) * max(space, 0) + len(text))
    made: str = FILTERS["indent"](text, width, *options, **named)
    return made


@pass_environment
def _join(environment: Environment, values: Iterable[Any], separator: Any = "", attribute: Any = None) -> str:
    read = str if attribute is None else make_attrgetter(environment, attribute)
    parts, between = [read(value) for value in values], str(separator)
    bounded(measured(parts) + len(between) * len(parts))
    return between.join(map(str, parts))


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    check_replaced(str(text), str(old), str(new))
    return str(text).replace(str(old), str(new), -1 if count is None else count)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > MAX_FACTOR:
        raise TemplateError(f"round to more than {MAX_FACTOR} digits")
    made: float = FILTERS["round"](value, precision, method)
    return made


@pass_environment
def _sum(environment: Environment, values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        raise TemplateError("sum adds numbers")
    return FILTERS["sum"](environment, values, attribute, start)
