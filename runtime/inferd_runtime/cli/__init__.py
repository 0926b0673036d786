"""The command line: ``inferd VERB ...``.

This file says which verbs there are; each is imported only when it is used, so that the command line starts fast.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from inferd_runtime import __version__

VERBS: dict[str, tuple[str, str]] = {
    "run": ("run", "run a program once; needs no server"),
    "serve": ("serve", "serve a runtime over HTTP and WebSocket"),
    "serve-draft": ("serve_draft", "serve a draft model to servers on other machines"),
    "upload": ("remote", "upload a program to a server"),
    "programs": ("programs", "list the programs on a server; programs rm"),
    "launch": ("launch", "run an uploaded program and stream what it prints"),
    "attach": ("attach", "follow a run, and send it what you type"),
    "send": ("attach", "send a message to a run"),
    "ps": ("remote", "list a server's runs"),
    "batch": ("batch", "answer a file of requests in OpenAI's batch format"),
    "logs": ("remote", "show what a run printed"),
    "stop": ("remote", "cancel a run"),
    "pull": ("pull", "download a model"),
    "models": ("models", "list the models on this machine; models rm | served | fit"),
    "token": ("token", "create, list, rotate and revoke access tokens"),
    "secret": ("secret", "set, list and remove secrets that programs use by name"),
    "tenants": ("tenants", "show what tenants use of what they may have; --stop ends one's work"),
    "cluster": ("cluster", "several runtimes as one: cluster up | status | scale | down"),
    "doctor": ("doctor", "check this machine, the settings and the server"),
    "build-runner": ("build", "build the sandbox's Python component before the first run"),
}
"""Each verb's module in this package and its line in the overview."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code (see :mod:`inferd_runtime.cli.boundary`)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview(), file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        print(f"inferd {__version__}")
        return 0
    verb, *rest = arguments
    if verb not in VERBS:
        print(f"inferd: there is no command {verb!r}\n\n{_overview()}", file=sys.stderr)
        return 2
    boundary = importlib.import_module("inferd_runtime.cli.boundary")
    code: int = boundary.guarded(f"inferd_runtime.cli.{VERBS[verb][0]}", verb.replace("-", "_"), rest)
    return code


def _overview() -> str:
    lines = [f"  {verb:<14}{text}" for verb, (_, text) in VERBS.items()]
    return "\n".join(["usage: inferd COMMAND ...      (inferd COMMAND --help tells more)", "", *lines, "  --version"])
