"""``inferd batch`` against a real server, and against one that is busy: each line is answered exactly once, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from .conftest import TOKEN, LiveServer

SECONDS = 120


def command(folder: Path, url: str, *options: str) -> list[str]:
    files = str(folder / "in.jsonl"), str(folder / "out.jsonl")
    return [sys.executable, "-m", "inferd_runtime.cli", "batch", *files, "--url", url, "--json", *options]


def run(folder: Path, url: str, *options: str) -> tuple[int, dict[str, Any]]:
    done = subprocess.run(
        command(folder, url, *options), env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def environment() -> dict[str, str]:
    return {**os.environ, "INFERD_TOKEN": TOKEN}


def write(folder: Path, *requests: tuple[str, dict[str, Any]]) -> None:
    lines = [
        json.dumps({"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body})
        for number, (url, body) in enumerate(requests)
    ]
    (folder / "in.jsonl").write_text("\n".join(lines) + "\n")


def answers(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def chat(tokens: int = 4) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": "Say something."}]
    return "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": tokens}


def test_every_route_answers_and_an_error_is_a_line_like_others(tmp_path: Path, server: LiveServer) -> None:
    write(
        tmp_path,
        chat(),
        ("/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 2}),
        ("/v1/embeddings", {"model": "tiny", "input": "a"}),
        ("/v1/responses", {"model": "tiny", "input": "a", "max_output_tokens": 2, "store": False}),
        ("/v1/chat/completions", {"model": "nobody", "messages": [{"role": "user", "content": "a"}]}),
    )
    code, told = run(tmp_path, server.url)
    assert (code, told) == (0, {"requests": 5, "kept": 0, "answered": 5, "failed": 1})
    found = {each["custom_id"]: each for each in answers(tmp_path)}
    assert [found[f"line-{n}"]["response"]["status_code"] for n in range(5)] == [200, 200, 200, 200, 404]
    assert [found[f"line-{n}"]["response"]["body"].get("object") for n in range(4)] == [
        "chat.completion",
        "text_completion",
        "list",
        "response",
    ]
    assert found["line-4"]["error"] is None
    assert found["line-0"]["response"]["request_id"]
    assert len({each["id"] for each in found.values()}) == 5


def test_a_batch_that_was_killed_goes_on_and_answers_each_line_once(tmp_path: Path, server: LiveServer) -> None:
    write(tmp_path, *[chat(60)] * 24)
    output = tmp_path / "out.jsonl"
    with subprocess.Popen(command(tmp_path, server.url, "--at-once", "3"), env=environment()) as batch:
        wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") >= 4)
        batch.send_signal(signal.SIGKILL)
    kept = len(answers(tmp_path))
    assert 4 <= kept < 24
    with output.open("a") as file:
        file.write('{"id": "batch_req_torn", "custom_id": "line-2')
    code, told = run(tmp_path, server.url)
    assert (code, told) == (0, {"requests": 24, "kept": kept, "answered": 24 - kept, "failed": 0})
    assert sorted(each["custom_id"] for each in answers(tmp_path)) == sorted(f"line-{n}" for n in range(24))
    before = output.read_bytes()
    assert run(tmp_path, server.url)[1]["answered"] == 0
    assert output.read_bytes() == before


class _Busy(BaseHTTPRequestHandler):
    """Answers each request with 429, then 503, then a body of two lines."""

    statuses: Iterator[int]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = next(self.statuses)
        body = b'{"ok":\n true}'
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def busy_server(*statuses: int) -> Iterator[str]:
    handler = type("Handler", (_Busy,), {"statuses": iter(statuses)})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    write(tmp_path, chat())
    with busy_server(429, 503, 200) as url:
        assert run(tmp_path, url)[1]["failed"] == 0
    (answer,) = answers(tmp_path)
    assert answer["response"] == {"status_code": 200, "request_id": "", "body": {"ok": True}}


def test_a_token_that_is_not_taken_ends_the_batch_instead_of_answering_every_line(tmp_path: Path) -> None:
    write(tmp_path, chat(), chat(), chat())
    with busy_server(200, 401, 200, 200) as url:
        code, told = run(tmp_path, url, "--at-once", "1")
        assert (code, told["error"]["code"]) == (2, "client.unauthorized")
        assert len(answers(tmp_path)) == 1
        assert run(tmp_path, url) == (0, {"requests": 3, "kept": 1, "answered": 2, "failed": 0})


def test_a_server_that_is_gone_ends_the_batch_and_keeps_what_there_is(tmp_path: Path) -> None:
    write(tmp_path, chat(), chat())
    with busy_server(200, 200) as url:
        pass
    code, told = run(tmp_path, url)
    assert code == 5
    assert "start again to go on" in told["error"]["message"]
    assert answers(tmp_path) == []


@pytest.mark.parametrize(("name", "code"), [("in.jsonl", 2), ("none.jsonl", 2)])
def test_wrong_files_are_refused(tmp_path: Path, name: str, code: int) -> None:
    write(tmp_path, chat())
    line = [sys.executable, "-m", "inferd_runtime.cli", "batch", str(tmp_path / name), str(tmp_path / "in.jsonl")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == code, done.stderr
