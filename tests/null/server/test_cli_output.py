"""What the command line prints, and the exit codes."""

from __future__ import annotations

import errno
import io
import json
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from inferd.protocol import ERRORS, ErrorInfo, InternalError, Unavailable
from inferd_runtime.cli.boundary import EXIT_CODES, error_text, exit_code, guarded, report
from inferd_runtime.cli.output import ControlFilter, ProgramOutput, figures, print_json, print_table, say
from inferd_runtime.cli.progress import ProgressBar, notice
from inferd_runtime.cli.run_screen import RunScreen
from inferd_runtime.sandbox.messages import RunUsage
from inferd_runtime.sandbox.runner_build.component import Progress

CLEANED = {
    "\x1b[31mred\x1b[0m": "red",
    "\x1b]0;title\x07text": "text",
    "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x1bPdcs\x1b\\after": "after",
    "a\x1b7b\x1bMc": "abc",
    "bell\x07 back\x08 nul\x00": "bell back nul",
    "c1 \x9b31m \x85": "c1 31m ",
    "kept\ttab\nline\rreturn é 漢": "kept\ttab\nline\rreturn é 漢",
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("text", "clean"), CLEANED.items())
def test_control_sequences_are_taken_out_however_they_are_cut(text: str, clean: str) -> None:
    assert ControlFilter().feed(text) == clean
    for cut in range(len(text)):
        pieces = ControlFilter()
        assert pieces.feed(text[:cut]) + pieces.feed(text[cut:]) == clean


@given(st.lists(st.text(st.sampled_from("\x1b[]P;0123m\x07\\ab\n\x9b"), max_size=8), max_size=8))
def test_no_control_character_gets_through(pieces: list[str]) -> None:
    cleaner = ControlFilter()
    shown = "".join(cleaner.feed(piece) for piece in pieces)
    assert not any((ord(char) < 32 and char not in "\t\n\r") or 127 <= ord(char) < 160 for char in shown)


def test_a_sequence_without_an_end_does_not_hold_text_for_ever() -> None:
    cleaner = ControlFilter()
    shown = "".join(cleaner.feed(piece) for piece in ["\x1b]0;", "x" * 5000, "visible"])
    assert "visible" in shown
    assert "\x1b" not in shown


def test_only_a_terminal_is_protected() -> None:
    for stream, expected in ((Terminal(), "red"), (io.StringIO(), "\x1b[31mred")):
        ProgramOutput(stream).write("\x1b[31mred")
        assert stream.getvalue() == expected


def test_a_line_is_ended_once() -> None:
    stream = io.StringIO()
    output = ProgramOutput(stream)
    output.end_line()
    output.write("text")
    output.end_line()
    output.end_line()
    assert stream.getvalue() == "text\n"


def test_every_error_has_an_exit_code_of_its_fault() -> None:
    for code in ERRORS:
        assert exit_code(ErrorInfo(code, "x")) == EXIT_CODES[code.partition(".")[0]]
    assert exit_code(ErrorInfo("something.new", "x")) == 70
    assert sorted(EXIT_CODES.values()) == [1, 2, 3, 4, 5, 70]


def test_errors_for_people_show_the_traceback_or_what_raises_the_limit() -> None:
    assert error_text(ErrorInfo("program", "E: x", {"traceback": "Traceback ...\nE: x\n"})) == "Traceback ...\nE: x"
    limit = ErrorInfo("limit", "too long", {"limit": "wall_s", "value": 1.0, "raise_with": "--wall-s"})
    assert error_text(limit) == "error: too long\n       what helps: --wall-s"


def test_a_token_that_is_missing_or_wrong_is_told_with_where_a_command_takes_it_from() -> None:
    assert "--token or INFERD_TOKEN" in error_text(ErrorInfo("client.unauthorized", "the token is wrong"))


def test_what_to_do_instead_is_not_lost_behind_a_traceback() -> None:
    missing = ErrorInfo("program", "E: no x; use y", {"traceback": "Traceback ...\nE: no x\n"})
    assert error_text(missing) == "Traceback ...\nE: no x\nerror: E: no x; use y"


def test_figures_are_one_line() -> None:
    line = figures(RunUsage(tokens=42, steps=17, drafted=60, accepted=25, wall_ms=420.0, peak_memory_mb=33.4))
    assert line == "42 tokens, 17 steps, 2.47 tokens/step, 60 drafted, 25 accepted, 0.42 s, 33 MiB"
    assert "- tokens/step" in figures(RunUsage())


def test_figures_that_are_none_do_not_reach_the_terminal() -> None:
    """A server's `usage` was shown as it came: {"tokens": "\\x1b]0;..."} steered the terminal."""
    event = {"type": "finished", "result": None, "error": None, "usage": {"tokens": "\x1b[2J"}}
    with pytest.raises(InternalError, match="tokens"):
        RunScreen(as_json=False).show_json(event)


def test_a_server_that_is_lost_while_a_run_is_followed_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came out of a task group, and was shown as a bug in inferd with exit code 70."""

    def lose(arguments: list[str]) -> int:
        raise ExceptionGroup("tasks", [ExceptionGroup("tasks", [Unavailable("the stream ended")])])

    monkeypatch.setitem(sys.modules, "losing", SimpleNamespace(lose=lose))
    assert guarded("losing", "lose", []) == EXIT_CODES["unavailable"]
    assert capsys.readouterr().err == "error: the stream ended\n"


def test_a_bugs_traceback_cannot_steer_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: list[str]) -> int:
        raise ValueError("\x1b]0;owned\x07 from a stranger's file")

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "failing", SimpleNamespace(fail=fail))
    assert guarded("failing", "fail", []) == EXIT_CODES["internal"]
    assert "Traceback" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_on_a_terminal_and_a_line_per_stage_elsewhere(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    bar = ProgressBar()
    for stage, fraction in (("Building", 0.2), ("Building", 0.5), ("Compiling", 0.9)):
        bar.update(Progress(stage, fraction))
    bar.close()
    with notice("Loading tiny"):
        pass
    shown = stream.getvalue()
    if terminal:
        assert "Compiling" in shown
        assert "90%" in shown
        assert shown.endswith("Loading tiny ...\r\x1b[2K")
    else:
        assert shown == "Building ...\nCompiling ...\n"


def test_a_table_is_plain_and_as_wide_as_its_cells(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 200
    print_table(("RUN", "STATE"), [("a", "failed"), (long, "\x1b[31mok\x1b[0m")])
    assert capsys.readouterr().out.splitlines() == [
        "RUN".ljust(202) + "STATE",
        "a".ljust(202) + "failed",
        long + "  ok",
    ]


def test_errors_names_and_json_cannot_steer_a_terminal_and_pipes_get_them_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evil = ErrorInfo("client.invalid", "no \x1b]0;owned\x07name \x9b2J", {"usage": "\x1b[2J"})
    for stream, clean in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "stdout", stream)
        report(evil, as_json=False)
        say("run-\x1b[31m1")
        print_json({"name": "\x1b[2J\x9b2J"})
        found = stream.getvalue()
        assert ("\x1b" not in found and "\x9b" not in found) == clean
        assert "no " in found
        assert "run-" in found
        assert json.loads(found.splitlines()[-1]) == {"name": "\x1b[2J\x9b2J"}, "the same value either way"


def test_a_cell_of_a_table_cannot_look_like_another_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [("x\nroot  admin", "y\r\u2028z")])
    assert capsys.readouterr().out.splitlines() == ["A              B", "x root  admin  y z"]


def test_half_a_surrogate_pair_does_not_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))
    monkeypatch.setitem(sys.modules, "speaker", SimpleNamespace(speak=lambda arguments: say("\ud800!") or 0))
    assert guarded("speaker", "speak", []) == 0
    assert written.getvalue() == b"\\ud800!\n"


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_file_that_the_system_does_not_give_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrapped: bool
) -> None:
    def write(arguments: list[str]) -> int:
        error = OSError(errno.EROFS, "Read-only file system", "/data")
        raise ExceptionGroup("tasks", [error]) if wrapped else error

    monkeypatch.setitem(sys.modules, "writer", SimpleNamespace(write=write))
    assert guarded("writer", "write", []) == EXIT_CODES["unavailable"]
    assert capsys.readouterr().err == "error: /data: Read-only file system\n"
