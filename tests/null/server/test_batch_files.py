"""The files of ``inferd batch``: what is refused by line, and an output that a kill has torn."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import InvalidRequest, Unavailable
from inferd_runtime.cli.batch_files import BatchResponse, answered, new_answer, open_answers, requests
from inferd_runtime.cli.batch_sending import LEAST_WAIT_SECONDS, MOST_WAIT_SECONDS, WAIT_SECONDS, wait_seconds


def line(custom_id: Any = "a", **changes: Any) -> str:
    return json.dumps(
        {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}, **changes}
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "in.jsonl"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (line("a") + "\n\n" + line("a"), "line 3: custom_id 'a' is that of line 1, too"),
        (line("a") + '\n{"method": "POST", "url": "/v1/embeddings", "body": {}}', "line 2: .*`custom_id`"),
        (line(7), "line 1: .*custom_id"),
        (line(""), "line 1: custom_id must have 1 to"),
        (line(method="GET"), "line 1: .*method"),
        (line(url="/v1/files"), "line 1: url must be one of /v1/chat/completions, .*, not '/v1/files'"),
        (line(body=[]), "line 1: .*object"),
        (line(body={"stream": True}), "line 1: body.stream"),
        (line(body={"background": True}), "line 1: body.background"),
        (line(extra=1), "line 1: .*`extra`"),
        ("{", "line 1: "),
        ("[" * 5000, "line 1: "),
        (line(body={"x": 1}).replace("1}", "NaN}"), "line 1: "),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(source: Path, text: str, message: str) -> None:
    source.write_text(text)
    with pytest.raises(InvalidRequest, match=message):
        list(requests(source))


def test_a_file_that_is_not_there_is_refused(source: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"in\.jsonl cannot be read"):
        list(requests(source))


def test_a_pipe_is_refused_instead_of_being_empty_when_it_is_read_again() -> None:
    """None of its requests was answered, and the command ended as if all were."""
    reader, writer = os.pipe()
    with open(reader, "rb"):
        with open(writer, "wb") as pipe:
            pipe.write(line().encode())
        with pytest.raises(InvalidRequest, match="is a pipe"):
            list(requests(Path(f"/dev/fd/{reader}")))


def test_a_body_is_sent_as_it_stands_in_its_line(source: Path) -> None:
    body = '{"input": 123456789012345678901234567890, "b":  1.50}'
    source.write_text(line(body=0).replace(": 0}", f": {body}}}"))
    (request,) = requests(source)
    assert bytes(request.body) == body.encode()


def answers_in(tmp_path: Path, source: Path) -> Path:
    """An output with answers to a and b."""
    source.write_text("\n".join(map(line, "abc")))
    output = tmp_path / "out.jsonl"
    with open_answers(output) as answers:
        for request in list(requests(source))[:2]:
            answers.append(new_answer(request, BatchResponse(200, "r", {"x": "\n"})))
    return output


@pytest.mark.parametrize("torn", ["{", '{"id": "x", "custom_id": "c", "response": null}', "x" * 3_000_000])
def test_a_torn_last_line_is_cut_off_and_the_rest_stays(tmp_path: Path, source: Path, torn: str) -> None:
    output = answers_in(tmp_path, source)
    whole = output.read_text()
    output.write_text(whole + torn)
    with open_answers(output):
        assert answered(output, {"a", "b", "c"}) == {"a", "b"}
    assert output.read_text() == whole


def test_an_output_without_a_complete_line_is_empty(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    output.write_text('{"custom_id"')
    with open_answers(output):
        assert answered(output, {"a"}) == set()


def test_answers_that_belong_to_another_input_are_refused(tmp_path: Path, source: Path) -> None:
    output = answers_in(tmp_path, source)
    with pytest.raises(InvalidRequest, match="line 2: it answers custom_id 'b', which the input does not have"):
        answered(output, {"a"})
    output.write_text(output.read_text() * 2)
    with pytest.raises(InvalidRequest, match="line 3: it is a second answer to custom_id 'a'"):
        answered(output, {"a", "b"})


def test_two_batches_do_not_write_one_file(tmp_path: Path) -> None:
    with open_answers(tmp_path / "out.jsonl"), pytest.raises(Unavailable, match="another"):  # noqa: SIM117
        with open_answers(tmp_path / "out.jsonl"):
            pass


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("2", 2.0),
        ("0", LEAST_WAIT_SECONDS),
        ("1e9", MOST_WAIT_SECONDS),
        ("", WAIT_SECONDS),
        ("nan", WAIT_SECONDS),
        ("-3", WAIT_SECONDS),
        ("Wed, 21 Oct 2026 07:28:00 GMT", WAIT_SECONDS),
    ],
)
def test_retry_after_says_how_long_to_wait(header: str, seconds: float) -> None:
    assert wait_seconds(header) == seconds


def test_the_mark_at_the_beginning_that_some_editors_write_is_no_part_of_the_first_line(source: Path) -> None:
    source.write_text(line("a") + "\n" + line("b"), encoding="utf-8-sig")
    assert [request.custom_id for request in requests(source)] == ["a", "b"]
