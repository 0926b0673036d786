"""``inferd doctor``: what this machine has and lacks for inferd, and which settings are dangerous."""

from __future__ import annotations

from dataclasses import asdict

from inferd_runtime.cli.doctor_checks import CHECKS, Finding
from inferd_runtime.cli.output import print_json, print_table
from inferd_runtime.cli.parsing import Parser, add_json, add_settings, settings_of
from inferd_runtime.settings.settings import FIELDS, Settings

DESCRIPTION = """Look at versions, processor, memory, disk, sandbox, isolation, models, server and settings.

Takes the settings of `inferd serve`. Ends with 1 when something is missing that is needed."""


def doctor(argv: list[str]) -> int:
    """Look at everything; returns 1 if something is missing that is needed."""
    parser = Parser("doctor", DESCRIPTION)
    add_settings(parser, FIELDS)
    add_json(parser, "print {ok, findings: [{area, state, text}]}")
    parsed = parser.parse_args(argv)
    findings = examine(settings_of(parsed))
    ok = all(finding.state != "missing" for finding in findings)
    if parsed.as_json:
        print_json({"ok": ok, "findings": [asdict(finding) for finding in findings]})
    else:
        print_table(("AREA", "STATE", ""), [(each.area, each.state, each.text) for each in findings])
    return 0 if ok else 1


def examine(settings: Settings) -> list[Finding]:
    """Return what all checks found; a check that the system does not allow is a warning."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check(settings)
        except OSError as error:
            findings.append(Finding(check.__name__, "warning", f"cannot be looked at: {error}"))
    return findings
