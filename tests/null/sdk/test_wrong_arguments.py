"""Arguments of the wrong type are refused by their names, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import inferd
from inferd import AttentionMask, Context, Entropy, InvalidRequest, ReasoningSpec, Sampler, http, queue
from inferd.samplers import Typical, chain
from inferd.testing import FakeRuntime

URL = "https://api.example.com/"


@inferd.tool
def add(a: int) -> int:
    """Add."""
    return a


def text() -> Context:
    return Context().append("a")


def generate(**options: Any) -> Any:
    return text().generate(Sampler.argmax(), **options).collect_text()


def run_tools(**options: Any) -> Any:
    return Context().user("a").run_tools([add], **options).collect()


WRONG: dict[str, Callable[[], Any]] = {
    "probes must be a list": lambda: text().forward([5], probes=Entropy()),  # type: ignore[arg-type]
    "probes must be a list of": lambda: generate(probes=Entropy()),
    r"attention_mask\[0\] must hold": lambda: text().forward([5], attention_mask=[True]),  # type: ignore[list-item]
    "spans must be a list": lambda: text().forward([5], attention_mask=AttentionMask.spans(5)),  # type: ignore[arg-type]
    r"spans\[0\] must be a list": lambda: text().forward([5], attention_mask=AttentionMask.spans([5])),  # type: ignore[list-item]
    "runs must be a list": lambda: text().forward([5], attention_mask=AttentionMask.runs(5)),  # type: ignore[arg-type]
    "stop must be a list": lambda: generate(stop="x"),
    "shown must be a list": lambda: generate(shown="<think>"),
    "reasoning: begin must be a string": lambda: generate(reasoning=ReasoningSpec(5, "</think>")),  # type: ignore[arg-type]
    "reasoning: end must be a string": lambda: generate(reasoning=ReasoningSpec("<think>", 5)),  # type: ignore[arg-type]
    "stage of a chain must be one such as": lambda: chain("typical"),  # type: ignore[arg-type]
    "not <class 'inferd.samplers.Typical'>": lambda: chain(Typical),  # type: ignore[arg-type]
    "timeout must be seconds": lambda: run_tools(timeout="x"),
    "reasoning_budget must be a whole": lambda: run_tools(reasoning_budget="x"),
    "template_arguments must be a dict": lambda: run_tools(template_arguments=5),
    "wait_s must be a number": lambda: inferd.launch("a", wait_s="x"),  # type: ignore[arg-type]
    "most must be a whole number": lambda: queue.pull_many("a", "x"),  # type: ignore[arg-type]
    "url must be a string": lambda: http.fetch(5),  # type: ignore[arg-type]
    "headers must be a dict": lambda: http.fetch(URL, headers=["a"]),  # type: ignore[arg-type]
    "a header's name must be a string": lambda: http.fetch(URL, headers={5: "a"}),  # type: ignore[dict-item]
    "a secret's name must be a string": lambda: http.fetch(URL, headers={"a": http.secret(5)}),  # type: ignore[arg-type]
    "a secret's prefix must be a string": lambda: http.fetch(URL, headers={"a": http.secret("a", prefix=5)}),  # type: ignore[arg-type]
    "timeout must be a number": lambda: http.fetch(URL, timeout="x"),  # type: ignore[arg-type]
    "redirects must be a whole number": lambda: http.fetch(URL, redirects="x"),  # type: ignore[arg-type]
    "body must be bytes, text or .* not dict: use json=": lambda: http.fetch(URL, body={"a": 1}),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("says", WRONG)
async def test_an_argument_of_the_wrong_type_is_no_error_of_pythons_from_inside(says: str) -> None:
    with FakeRuntime([]) as runtime, pytest.raises(InvalidRequest, match=says):
        await WRONG[says]()
    assert runtime.requests == []
