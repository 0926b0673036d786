"""What a program may depend on."""

from __future__ import annotations

import pytest

from inferd.protocol import InvalidRequest, LimitExceeded
from inferd_runtime.server.packages.requirements import MAX_REQUIREMENTS, check_python, checked_requirements


def test_requirements_have_one_way_of_writing() -> None:
    assert checked_requirements(["B_b >= 1", "a[x]", "b-b>=1", "inferd>=1"]) == ("a[x]", "b-b>=1")


@pytest.mark.parametrize(
    "text",
    [
        "p @ https://example.com/p.whl", "p @ file:///etc/passwd", "--index-url=http://x", "../p", "p; import os",
        "p\n--pre", "", "x" * 300, "p===../../../srv/p-1.0-py3-none-any.whl", "p===1.0",
    ],
)  # fmt: skip
def test_what_is_no_name_in_the_index_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="the dependency"):
        checked_requirements([text])


def test_too_many_are_refused() -> None:
    with pytest.raises(LimitExceeded):
        checked_requirements([f"p{number}" for number in range(MAX_REQUIREMENTS + 1)])


def test_another_python_is_refused_by_name() -> None:
    check_python(">=3.11")
    check_python("")
    for wanted in ("<3.12", "nonsense"):
        with pytest.raises(InvalidRequest, match="requires-python"):
            check_python(wanted)
