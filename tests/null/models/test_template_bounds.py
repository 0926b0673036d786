"""A chat template is a stranger's code: what it may make, and for how long it may run."""

from __future__ import annotations

import pytest

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.models.jinja_template import MAX_SOURCE, JinjaTemplate, RenderBudget
from inferd_runtime.models.template_input import TemplateInput

MESSAGES = [{"role": "user", "content": "hello there"}, {"role": "assistant", "content": "hi"}]
DOUBLED = "{% set ns = namespace(x='x', y=[1]) %}{% for i in range(40) %}"
END = "{% endfor %}{{ ns.x|length }}"
LARGE = {
    "product": "{{ 'x' * 1000 * 1000 * 1000 }}",
    "product of lists": "{{ ([[1] * 1000] * 1000 * 1000)|length }}",
    "sum of texts": DOUBLED + "{% set ns.x = ns.x + ns.x %}" + END,
    "joined texts": DOUBLED + "{% set ns.x = ns.x ~ ns.x %}" + END,
    "sum of lists": DOUBLED + "{% set ns.y = ns.y + ns.y %}" + END,
    "list of itself twice": DOUBLED + "{% set ns.y = [ns.y, ns.y] %}" + END,
    "object of itself twice": DOUBLED + "{% set ns.y = {'a': ns.y, 'b': ns.y} %}" + END,
    "pair of itself": DOUBLED + "{% set ns.y = (ns.y, ns.y) %}" + END,
    "dict of itself twice": DOUBLED + "{% set ns.y = dict(a=ns.y, b=ns.y) %}" + END,
    "arguments of a macro": "{% macro f(ns) %}{% set ns.y = varargs %}{% endmacro %}"
    + DOUBLED + "{% set t = f(ns, ns.y, ns.y) %}" + END,
    "what a macro writes": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + DOUBLED + "{% set ns.x = f(ns.x) %}" + END,
    "a block": DOUBLED + "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}" + END,
    "square": "{% set ns = namespace(x=12345) %}{% for i in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "power": "{{ 10 ** 10 ** 10 }}",
    "width": "{{ '%09999999999d' % 1 }}",
    "width that is an argument": "{{ '%*d' % (999999999, 1) }}",
    "width of a filter": "{{ '%9999999999d'|format(1) }}",
    "width of a format": "{{ '{:>9999999999}'.format(1) }}",
    "width within a format": "{{ '{:{}}'.format(1, 999999999) }}",
    "centred": "{{ 'x'|center(9999999999) }}",
    "padded": "{{ 'x'.ljust(9999999999) }}",
    "bytes": "{{ 'x'.encode().ljust(9999999999) }}",
    "number as bytes": "{{ (5).to_bytes(9999999999, 'big') }}",
    "batch": "{{ [1]|batch(9999999999, 'x')|list }}",
    "slice": "{{ [1]|slice(9999999999)|list }}",
    "indent": "{{ 'a\nb'|indent(9999999999) }}",
    "indent of JSON": "{{ [1]|tojson(indent='x' * 1000) }}",
    "replace": "{% set b = 'x' * 1000 * 100 %}{{ b|replace('x', b) }}",
    "method replace": "{% set b = 'x' * 1000 * 100 %}{{ b.replace('x', b) }}",
    "join": "{% set b = 'x' * 1000 * 100 %}{{ ([b] * 1000)|join }}",
    "method join": "{% set b = 'x' * 1000 * 100 %}{{ b.join('y' * 1000) }}",
    "sum": "{{ ([[1]] * 1000)|sum(start=[]) }}",
    "round": "{{ 1|round(999999999, 'ceil') }}",
    "texts of nothing": "{{ lipsum(n=100000) }}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "source": "{{ x }}" * MAX_SOURCE,
}  # fmt: skip


def rendered(source: str, seconds: float = 5.0) -> str:
    return JinjaTemplate(source, {}).render(TemplateInput(MESSAGES), RenderBudget(seconds, 1_000_000))


@pytest.mark.parametrize("source", LARGE.values(), ids=LARGE)
def test_a_template_does_not_make_gigabytes_or_work_without_end_in_one_step(source: str) -> None:
    """Of 20 such templates 12 took gigabytes, eight did not end within 12 s, and most held the engine's interpreter meanwhile."""
    with pytest.raises(InvalidRequest):
        rendered(source)


@pytest.mark.parametrize("inner", ["", "{% for c in r if c < 0 %}{% endfor %}"])
def test_loops_in_loops_end_in_time(inner: str) -> None:
    """They did not: a loop over a value that was there had no look at the clock."""
    with pytest.raises(LimitExceeded, match="chat template takes more than"):
        rendered(
            "{% set r = range(100000)|list %}{% for a in r %}{% for b in r %}" + inner + "{% endfor %}{% endfor %}", 0.1
        )


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{% for m in messages %}{{ loop.index ~ '/' ~ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            "1/2,2/2",
        ),
        ("{% for m in messages recursive %}{{ loop.depth }}{{ loop([]) }}{% else %}-{% endfor %}", "1-1-"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content|replace('l', 'L') }}{% endfor %}", "heLLo there"),
        ("{% for m in none_there %}x{% else %}empty{% endfor %}", "empty"),
        ("{% set l = [1] + [2, (3, 4)] %}{{ l|join('-') }} {{ l * 2 }}", "1-2-(3, 4) [1, 2, (3, 4), 1, 2, (3, 4)]"),
        ("{% set a, b = 1, {'k': [2]} %}{{ a }}{{ b['k'][0] + a }} {{ b|tojson }}", '13 {"k": [2]}'),
        ("{{ messages|map(attribute='role')|join(', ') }}", "user, assistant"),
        ("{{ messages|join('+', attribute='role') }} {{ [1, 2]|sum }} {{ 2.567|round(1) }}", "user+assistant 3 2.6"),
        ("{{ '%s: %02d' % ('a', 7) }} {{ '%s'|format('b') }} {{ '{} {:.2f}'.format('c', 1.5) }}", "a: 07 b c 1.50"),
        ("{{ 'year 2024: %s' % 'x' }} {{ ', '.join(['a', 'b']) }} {{ 'a\nb'|indent(2) }}", "year 2024: x a, b a\n  b"),
        ("{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, b=3) }}", "1(2,){'b': 3}"),
        ("{{ 3 * 4 }} {{ 2 ** 10 }} {{ 7 % 4 }} {{ 'ab' * 2 }} {{ 1 + 2.5 }}", "12 1024 3 abab 3.5"),
        ("{% set x %}a{{ 'b' }}{% endset %}{{ x + 'c' }}{{ dict(a=1).a }}", "abc1"),
    ],
)
def test_what_templates_do_is_as_in_jinja(source: str, text: str) -> None:
    assert rendered(source) == text
