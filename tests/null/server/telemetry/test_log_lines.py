"""Log lines: fields, escapes, and what children write."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from inferd.protocol import Unavailable
from inferd_runtime.log_lines import (
    LINES_OF_STRANGERS,
    MAX_TEXT,
    OF_STRANGERS,
    configure_logging,
    log_fields,
    printable,
    relay_child_line,
    run_fields,
)
from inferd_runtime.server.database_file import storage_errors
from inferd_runtime.server.telemetry.request_ids import RequestIds

NASTY = "\x1b]0;title\x07\x9b2J\r\n2026-01-01 inferd: forged\u202e\ud800\x00" + (
    UNSEEN := "\u061c\u180e\u2060\u2064\U000e0041"
)
log = logging.getLogger("inferd.test")
Lines = Callable[[str], io.StringIO]


@pytest.fixture
def lines() -> Iterator[Lines]:
    root = logging.getLogger()
    level, handlers = root.level, []

    def start(kind: str, least: str = "info") -> io.StringIO:
        stream = io.StringIO()
        for handler in set(root.handlers) - set(handlers):  # pytest's, whose report cannot carry lone surrogates
            root.removeHandler(handler)
        handlers.append(configure_logging(kind, least, stream))
        return stream

    yield start
    for handler in handlers:
        root.removeHandler(handler)
    root.setLevel(level)
    for name in OF_STRANGERS:
        logging.getLogger(name).filters.clear()


def test_a_disk_that_is_full_is_not_filled_by_what_the_log_says_of_it(lines: Lines) -> None:
    """Each pull from a durable queue, and each event of a run, was a line: 500 a second."""
    stream = lines("console")
    for _ in range(1000):
        with pytest.raises(Unavailable), storage_errors(Path("runs.sqlite3"), "the store of runs"):
            raise sqlite3.OperationalError("database or disk is full")
    assert 1 <= stream.getvalue().count("\n") <= 2 * LINES_OF_STRANGERS  # a minute may begin meanwhile


@pytest.mark.parametrize("kind", ["console", "json"])
def test_texts_of_strangers_stay_on_their_line_and_cannot_steer_a_terminal(lines: Lines, kind: str) -> None:
    stream = lines(kind)
    log.info("it said %s", NASTY, extra=run_fields(NASTY, NASTY))
    text = stream.getvalue()
    assert text.count("\n") == 1
    shown = json.loads(text)["message"] if kind == "json" else text.rstrip("\n")
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in shown)
    assert all(mark not in text for mark in ("\u202e", "\ud800", *UNSEEN))
    assert "forged" in text
    text.encode()


def test_a_traceback_cannot_forge_lines_either(lines: Lines) -> None:
    console, as_json = lines("console"), lines("json")
    try:
        raise ValueError(NASTY)
    except ValueError:
        log.exception("failed")
    first, *rest = console.getvalue().splitlines()
    assert first.endswith("inferd.test: error: failed")
    assert rest
    assert all(line.startswith("    ") for line in rest)
    assert "\x1b" not in console.getvalue()
    value = json.loads(as_json.getvalue())
    assert "ValueError" in value["exception"]
    assert "\x1b" not in value["exception"]


def test_long_texts_are_cut() -> None:
    assert printable("a" * MAX_TEXT) == "a" * MAX_TEXT
    assert printable("a" * 10**7) == "a" * MAX_TEXT + "... (10000000 characters)"


def test_lines_have_run_request_and_tenant(lines: Lines) -> None:
    console, as_json = lines("console"), lines("json")
    with log_fields(request="req-1", tenant="ann"):
        log.info("launched", extra=run_fields("run-1", "bob"))
        log.warning("plain")
    log.info("outside")
    first, second, third = map(json.loads, as_json.getvalue().splitlines())
    assert {key: first[key] for key in ("level", "message", "run", "request", "tenant")} == {
        "level": "info", "message": "launched", "run": "run-1", "request": "req-1", "tenant": "bob",
    }  # fmt: skip
    assert (second["tenant"], "run" in second) == ("ann", False)
    assert not {"run", "request", "tenant"} & third.keys()
    assert "launched  [run=run-1 request=req-1 tenant=bob]" in console.getvalue()


def test_the_level_is_the_least_that_is_written(lines: Lines) -> None:
    stream = lines("json", "warning")
    log.info("no")
    log.warning("yes")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["yes"]


def test_a_childs_lines_keep_level_and_fields_and_the_rest_is_text(lines: Lines) -> None:
    child = lines("json")
    log.error("broke", extra=run_fields("run-7", "ann"))
    line = child.getvalue().strip()
    parent = lines("json")
    for each in (
        line,
        "plain \x1b[2J",
        '{"time":',
        '{"time":"x","level":"shout","message":"x"}',
        '{"time":' + "[" * 5000,
    ):
        relay_child_line(logging.getLogger("inferd.worker-1"), each)
    first, *rest = map(json.loads, parent.getvalue().splitlines())
    assert (first["level"], first["message"], first["run"], first["tenant"]) == ("error", "broke", "run-7", "ann")
    assert first["logger"] == "inferd.worker-1"
    assert [one["level"] for one in rest] == ["info"] * 4


async def answer(request: Request) -> Response:
    log.info("in the route")
    if "fail" in request.query_params:
        raise RuntimeError("a bug")
    return PlainTextResponse("ok")


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-1.2_3", True), ("", False), ("a" * 65, False), ("a b", False), ("<x>", False)]
)
async def test_request_ids_are_taken_given_back_and_logged(lines: Lines, given: str, kept: bool) -> None:
    stream = lines("json", "debug")
    transport = httpx.ASGITransport(app=RequestIds(Starlette(routes=[Route("/x", answer)])), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        found = (await client.get("/x", headers={"x-request-id": given})).headers["x-request-id"]
        assert (found == given) == kept
        assert "x-request-id" in (await client.get("/x?fail=1")).headers
        assert "x-request-id" in (await client.get("/nix")).headers
    logged = [json.loads(line) for line in stream.getvalue().splitlines() if '"inferd.' in line]
    assert [one["request"] for one in logged[:2]] == [found, found]
    assert logged[1]["message"].startswith("GET /x: 200 in ")
