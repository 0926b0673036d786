"""The format of calls, tried on what a chat template writes."""

from __future__ import annotations

import pytest
from chat_models import KINDS, make

from inferd_runtime.models.chat_formats import tool_format_of
from inferd_runtime.models.jinja_template import JinjaTemplate, RenderBudget
from inferd_runtime.models.template_input import TemplateInput
from inferd_runtime.models.written_calls import written_format

CHAT = """{{%- for message in messages %}}<|{{{{ message.role }}}}|>
{{{{ message.content }}}}
{{%- for call in message.tool_calls or [] %}}{{%- set called = call.function %}}{}{{%- endfor %}}<|end|>
{{% endfor %}}{{%- if add_generation_prompt %}}<|assistant|>
{}{{%- endif %}}{{%- if tools %}}{{%- endif %}}"""
JSON_CALL = '{{ {"name": called.name, "arguments": called.arguments} | tojson }}'
XML = "{% for key, value in called.arguments.items() %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n{% endfor %}"
DASHED = (
    '{% set dash = "|DSML|" %}<{{ dash }}calls><{{ dash }}invoke name="{{ called.name }}">{{ called.arguments.city }}'
)
CALLS = {
    "as its marks say": (f"<tool_call>\n{JSON_CALL}\n</tool_call>", "", "hermes", "hermes"),
    "with arguments in marks": (
        f"<tool_call>\n<function={{{{ called.name }}}}>\n{XML}</function>\n</tool_call>", "", "qwen3_coder", "qwen3_coder",
    ),
    "JSON alone": (JSON_CALL, "", "json", "json"),
    "behind reasoning that the prompt opens": (
        f"<think>\n\n</think>\n\n<tool_call>\n{JSON_CALL}\n</tool_call>", "<think>\n", "hermes", "hermes",
    ),
    "marks in the midst of others": ("]ns[<tool_call>]ns[<invoke name={{ called.name }}>", "", "hermes", "unknown"),
    "marks that are put together": (DASHED, "", "json", "unknown"),
    "a name before its JSON": ("<fun={{ called.name }}>{{ called.arguments | tojson }}</fun>", "", "json", "unknown"),
    "a list, where a note names other marks": (
        f"{{# like <tool_call> #}}<tool_calls>[{JSON_CALL}]</tool_calls>", "", "hermes", "jamba",
    ),
    "nothing": ("", "", "json", "json"),
    "nothing but a note": ("{# <tool_call> #}", "", "hermes", "hermes"),
    "a refusal": ('{{ raise_exception("no") }}<tool_call>', "", "hermes", "hermes"),
}  # fmt: skip


class Text:
    """A template and its text."""

    def __init__(self, source: str) -> None:
        self.chat_template = source
        self._template = JinjaTemplate(source, {})

    def render(self, conversation: TemplateInput, budget: RenderBudget) -> str:
        return self._template.render(conversation, budget)


@pytest.mark.parametrize(("call", "cue", "by_marks", "found"), CALLS.values(), ids=CALLS)
def test_calls_have_the_format_that_reads_them(call: str, cue: str, by_marks: str, found: str) -> None:
    template = Text(CHAT.format(call, cue))
    assert (tool_format_of(template.chat_template), written_format(template)) == (by_marks, found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_templates_of_known_models_keep_the_format_of_their_marks(kind: str) -> None:
    assert written_format(make(KINDS[kind])) == tool_format_of(KINDS[kind].template)
