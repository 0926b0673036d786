"""Command line: check that grammars accept what schemas allow and refuse the rest: `check` a file, or a draft's `suite`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from inferd_grammar.conformance.checking import Checker, Summary, load_table, read_cases
from inferd_grammar.conformance.suite import COLUMNS, run_suite, table, totals
from inferd_grammar.errors import GrammarError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    status: int = options.run(options)
    return status


def _suite(options: argparse.Namespace) -> int:
    outcomes = run_suite(options.folder)
    print(table(outcomes))
    print(json.dumps({column.replace(" ", "_"): totals(outcomes)[column] for column in COLUMNS}))
    return 0 if outcomes else 2


def _check(options: argparse.Namespace) -> int:
    """Returns the exit status: 1 if an invalid instance got through."""
    try:
        tokens = load_table(options.tokenizer)
        cases = read_cases(options.cases, options.limit)
        checker = Checker(tokens, options.mode, options.backend, options.seconds)
    except (GrammarError, OSError, ValueError) as error:
        print(f"inferd_grammar check: {error}", file=sys.stderr)
        return 2
    summary = Summary(options.mode)
    with checker:
        for case in cases:
            result = checker.run(case)
            summary.add(result)
            for line in result.remarks:
                print(f"{case['name']}: {line}", flush=True)
    print(json.dumps(summary.figures()))
    return int(summary.invalid_refused < summary.invalid_total)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m inferd_grammar", description=__doc__)
    commands = parser.add_subparsers(required=True)
    check = commands.add_parser("check", help="compile each schema and try its instances; ends in one JSON line")
    check.add_argument("cases", type=Path, help="a JSON object a line: {name, schema, tests: [{valid, data}]}")
    check.add_argument("--mode", choices=("strict", "best_effort"), default="strict")
    check.add_argument(
        "--tokenizer", type=Path, help="a folder with tokenizer.json; without it single bytes are tokens"
    )
    check.add_argument("--backend", default="auto")
    check.add_argument("--limit", type=int, help="run only this many cases, spread evenly over the file")
    check.add_argument("--seconds", type=float, default=20.0, help="time limit of one case; then its process is ended")
    check.set_defaults(run=_check)
    suite = commands.add_parser("suite", help="the JSON-Schema-Test-Suite of one draft; prints a table by keyword")
    suite.add_argument("folder", type=Path, help="the folder of the draft's required tests")
    suite.set_defaults(run=_suite)
    return parser


if __name__ == "__main__":
    sys.exit(main())
