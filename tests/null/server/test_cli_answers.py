"""What the command line makes of answers that are JSON, and no server's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from inferd.protocol import InternalError
from inferd.transport.answers import NOT_OURS, fields_of, json_of
from inferd_runtime.cli import attach, launch, models, programs, remote, tenants
from inferd_runtime.cli.boundary import guarded

USAGE = {"tokens": 1, "wall_ms": 1.0}
RUN = {
    "id": "run-1", "program": {"name": "p", "version": "1"}, "state": "succeeded", "created_at": 1.0, "finished_at": 2.0,
    "error": None, "usage": USAGE, "next_event": 1, "result": None,
}  # fmt: skip
PARAMETER = {"name": "text", "annotation": "str", "schema": {"type": "string"}, "required": False}
ARGUMENTS = {"additionalProperties": False}
FINISHED = {"index": 0, "type": "finished", "time": 2.0, "state": "succeeded", "error": None, "usage": USAGE}


def described(**parameter: Any) -> Any:
    return {"interface": {"doc": "", "parameters": [{**PARAMETER, **parameter}], "arguments": ARGUMENTS}}


CASES: list[tuple[Callable[[list[str]], int], list[str], dict[str, Any]]] = [
    (remote.ps, [], {"/v1/runs": []}),
    (remote.ps, [], {"/v1/runs": {"runs": [{**RUN, "usage": {}}]}}),
    (remote.ps, [], {"/v1/runs": {"runs": [{**RUN, "created_at": None}]}}),
    (remote.ps, ["--json"], {"/v1/runs": {"runs": [{**RUN, "state": "\ud800"}]}}),
    (remote.ps, [], {"/v1/runs": {"runs": [{**RUN, "created_at": float("nan")}]}}),
    (remote.upload, ["inferlets/extract/main.py"], {"/v1/programs": {"id": "a", "name": "b", "version": "c"}}),
    (programs.programs, [], {"/v1/programs": {"programs": [{"name": "a"}]}}),
    (programs.programs, ["rm", "a"], {"/v1/programs/a": {"removed": "1"}}),
    (remote.stop, ["run-1"], {"/v1/runs/run-1": RUN, "/v1/runs/run-1/cancel": {**RUN, "id": 5}}),
    (remote.logs, ["run-1"], {"/v1/runs/run-1": {**RUN, "next_event": "5"}}),
    (remote.logs, ["run-1"], {"/v1/runs/run-1": RUN, "/v1/runs/run-1/events": FINISHED}),
    (remote.logs, ["run-1", "-f"], {"/v1/runs/run-1": RUN, "/v1/runs/run-1/events": {**FINISHED, "index": "0"}}),
    (attach.attach, ["run-1"], {"/v1/runs/run-1": RUN, "/v1/runs/run-1/events": {**FINISHED, "type": "file"}}),
    (attach.send, ["run-1", "--file", "README.md"], {"/v1/runs/run-1": RUN, "/v1/runs/run-1/files": {"file": None}}),
    (launch.launch, ["p"], {"/v1/programs/p": {"interface": 5}}),
    (launch.launch, ["p"], {"/v1/programs/p": described(name=5)}),
    (launch.launch, ["p"], {"/v1/programs/p": described(schema={"anyOf": [5]})}),
    (launch.launch, ["p"], {"/v1/programs/p": described(), "/v1/runs": {"id": None}}),
    (tenants.tenants, [], {"/v1/tenants": {"tenants": [{"tenant": "ann", "quotas": [], "use": {}}]}}),
    (tenants.tenants, ["--stop", "ann"], {"/v1/tenants/ann/stop": 5}),
    (models.models, ["served"], {"/v1/models": {"models": [{"name": 1}]}}),
]


class LyingServer:
    """Answers each path as ``answers`` says."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                body = json.dumps(outer.answers.get(self.path.partition("?")[0], {})).encode() + b"\n"
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_DELETE = do_GET

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"


@pytest.fixture(scope="module")
def server() -> Iterator[LyingServer]:
    found = LyingServer()
    thread = threading.Thread(target=found.http.serve_forever)
    thread.start()
    yield found
    found.http.shutdown()
    thread.join()
    found.http.server_close()


@pytest.mark.parametrize(("verb", "arguments", "answers"), CASES)
def test_an_answer_of_another_shape_is_no_bug_of_inferds(
    server: LyingServer, verb: Callable[[list[str]], int], arguments: list[str], answers: dict[str, Any],
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """658 of 1,865 answers with one odd value ended the command as "a bug in inferd", with a traceback."""
    monkeypatch.setenv("INFERD_URL", server.url)
    server.answers = answers
    assert guarded(verb.__module__, verb.__name__, arguments) in (5, 70)
    said = "".join(capsys.readouterr())
    assert NOT_OURS in said or "is it an inferd server?" in said
    assert "a bug in inferd" not in said


def test_an_answer_may_say_more_than_is_read() -> None:
    assert fields_of({"id": "a", "new": 1}, id=str) == {"id": "a", "new": 1}
    for odd in ([], None, {"id": 1}, {}):
        with pytest.raises(InternalError, match=NOT_OURS):
            fields_of(odd, id=str)
    assert json_of(b'"\\ud83d\\ude00"') == "😀"
    for text in (b'"\\ud800"', b"[" * 100_000, b"{", b"\xff"):
        with pytest.raises(InternalError, match=NOT_OURS):
            json_of(text)


def test_a_long_list_of_runs_leaves_out_what_has_been_over_for_long_but_nothing_that_goes_on(
    server: LyingServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFERD_URL", server.url)
    over = [{**RUN, "id": f"run-over{number}"} for number in range(30)]
    server.answers = {"/v1/runs": {"runs": [*over, {**RUN, "id": "run-active", "finished_at": None}]}}
    assert remote.ps([]) == 0
    shown = capsys.readouterr().out
    assert ("run-over19" in shown, "run-over20" in shown, "run-active" in shown) == (True, False, True)
    assert "and 10 older ones: --all" in shown
    assert remote.ps(["--all"]) == 0
    assert capsys.readouterr().out.count("run-over") == 30
