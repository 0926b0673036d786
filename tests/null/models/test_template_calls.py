"""Calls of tools in a conversation as templates read them, those that were cut among them."""

from __future__ import annotations

import pytest

from inferd_runtime.models.jinja_template import JinjaTemplate, RenderBudget
from inferd_runtime.models.template_input import TemplateInput

CALL = "{% for call in messages[0].tool_calls %}"
AS_JSON = CALL + "{{ call.function.arguments | tojson }}{% endfor %}"
BY_KIND = (
    CALL + "{% if call.function.arguments is string %}{{ call.function.arguments }}{% else %}"
    "{{ call.function.arguments | tojson }}{% endif %}{% endfor %}"
)
BY_NAME = (
    CALL + "{% for name, value in call.function.arguments | items %}{{ name }}={{ value }};{% endfor %}{% endfor %}"
)
JOINED = CALL + "{{ '<sep>' + call.function.arguments + '<end>' }}{% endfor %}"
PRINTED = CALL + "{{ call.function.arguments }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "arguments", "written"),
    [
        (AS_JSON, {"city": "Rome"}, '{"city": "Rome"}'),
        (AS_JSON, '{"city": "Ro', '{"city": "Ro'),
        (BY_KIND, '{"city": "Ro', '{"city": "Ro'),
        (BY_NAME, {"city": "Rome", "days": 3}, "city=Rome;days=3;"),
        (BY_NAME, '{"days": 3, "city": "Ro', "days=3;"),
        (BY_NAME, "Rome", ""),
        (AS_JSON, "[1]", "[1]"),
        (JOINED, {"city": "Rome"}, '<sep>{"city": "Rome"}<end>'),
        (JOINED, '{"city": "Ro', '<sep>{"city": "Ro<end>'),
        (PRINTED, {"city": "Rome"}, '{"city": "Rome"}'),
    ],
)
def test_arguments_are_written_as_they_are(template: str, arguments: object, written: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    rendered = JinjaTemplate(template, {}).render(TemplateInput([message]), RenderBudget(1.0, 1000))
    assert rendered == written
    assert type(call["function"]["arguments"]) is type(arguments)  # type: ignore[index]
