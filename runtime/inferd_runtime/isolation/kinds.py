"""The kinds of child processes, by what they are trusted with."""

from __future__ import annotations

from enum import StrEnum


class ChildKind(StrEnum):
    """What a child process is for, and so what it may do.

    ``worker`` runs strangers' programs, ``parser`` and ``compiler`` read strangers' text, and none of the three needs anything
    of the machine. ``model`` owns weights and devices: the engine, draft models, ranks. ``builder`` makes the sandbox's runner.
    ``egress`` connects to strangers' servers, and needs no file but those with which names are looked up and certificates
    verified. ``tool_server`` speaks to a server of tools that the operator named, and starts it where it is a command.
    ``installer`` fetches and unpacks packages that programs depend on; it runs nothing of them.
    """

    WORKER = "worker"
    PARSER = "parser"
    COMPILER = "compiler"
    MODEL = "model"
    BUILDER = "builder"
    EGRESS = "egress"
    TOOL_SERVER = "tool_server"
    INSTALLER = "installer"
