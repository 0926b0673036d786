"""What a program is told that uses the SDK in another way than it works."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import inferd.http
import inferd.mcp
import inferd.tools
from inferd import Choice, Context, Sampler, Step
from inferd_runtime.sandbox.runner.failure import describe


def told(program: Callable[[], Any]) -> str:
    with pytest.raises((TypeError, AttributeError, ImportError)) as caught:
        program()
    return describe(caught.value, {__file__}).message


def awaited() -> None:
    async def main() -> None:
        await Context().user("Hi")  # type: ignore[misc]

    asyncio.run(main())


def connected() -> None:
    async def main() -> None:
        await inferd.mcp.connect("notes")  # type: ignore[misc]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        (lambda: Context().generate(max_tokens=5), "; its parameters are (sampler, *, max_tokens=256,"),  # type: ignore[call-arg]
        (lambda: Context().generate(Sampler.argmax(), top_k=1), "; its parameters are (sampler, *, max_tokens="),  # type: ignore[call-arg]
        (lambda: Choice("yes", "no"), "; its parameters are (options)"),  # type: ignore[call-arg]
        (lambda: Sampler.top_p(temp=1), "; its parameters are (temperature=0.6, p=0.95, "),  # type: ignore[call-arg]
        (lambda: Sampler(temperature=1), "; its parameters are (sampling); Sampler.argmax, Sampler.multinomial, "),  # type: ignore[call-arg]
        (lambda: Step([1], "a").token, ", saved_us, sources, text, tokens, truncated"),  # type: ignore[attr-defined]
        (lambda: inferd.context.ToolRun, "; `from inferd.tools import ToolRun` finds it"),  # type: ignore[attr-defined]
        (lambda: Context().generate(Sampler.argmax()).text(), "; a Generator has aclose, checked,"),  # type: ignore[attr-defined]
        (lambda: inferd.http.get("http://x"), "; inferd.http has "),  # type: ignore[attr-defined]
        (lambda: "a" + Step([1], "b"), "; a Step has "),  # type: ignore[operator]
        (lambda: "".join([Step([1], "b")]), ", saved_us, sources, text, tokens, truncated"),  # type: ignore[list-item]
        (lambda: Step([1], "b")["text"], ", saved_us, sources, text, tokens, truncated"),  # type: ignore[index]
        (lambda: json.dumps(Step([1], "b")), "; a Step has "),
        (connected, "; what makes a McpServer is done at once: leave out `await`"),
        (awaited, "; what makes a Context is done at once: leave out `await`"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_the_sdk_is_told_what_does(program: Callable[[], Any], remedy: str) -> None:
    assert remedy in told(program)


def test_a_name_that_stands_in_another_module_of_the_sdk_is_told_with_that_module() -> None:
    def program() -> None:
        from inferd import ToolRun  # noqa: F401

    assert told(program).endswith("; `from inferd.tools import ToolRun` finds it")


def test_a_name_that_the_sdk_has_nearly_so_is_told_with_that_one() -> None:
    def program() -> None:
        from inferd import Samplers  # noqa: F401

    assert told(program).endswith("; inferd has Sampler, CustomSampler")
    assert told(lambda: inferd.embed("x")).endswith("; inferd has Model.embed")


def test_what_says_itself_what_to_do_is_told_once() -> None:
    assert "has aclose" not in told(lambda: list(Context().generate(Sampler.argmax())))  # type: ignore[call-overload]
    assert "collect_text()" in told(lambda: "a" + Context().generate(Sampler.argmax()))  # type: ignore[operator]


def test_a_programs_own_functions_and_classes_are_none_of_the_sdks() -> None:
    class Person:
        def generate(self, text: str) -> str:
            return text

    assert "parameters" not in told(lambda: Person().generate())  # type: ignore[call-arg]
    assert ";" not in told(lambda: Person().txt)  # type: ignore[attr-defined]
