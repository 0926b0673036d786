"""`python -m inferd_grammar check CASES.jsonl`: hold a file of schemas and instances against the grammar package."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from inferd_grammar.checking import Checker, Summary, load_table, read_cases
from inferd_grammar.errors import GrammarError


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 if an invalid instance got through."""
    options = _parser().parse_args(arguments)
    try:
        table = load_table(options.tokenizer)
        cases = read_cases(options.cases, options.limit)
    except (GrammarError, OSError, ValueError) as error:
        print(f"inferd_grammar check: {error}", file=sys.stderr)
        return 2
    summary = Summary(options.mode)
    with Checker(table, options.mode, options.backend, options.seconds) as checker:
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
    return parser


if __name__ == "__main__":
    sys.exit(main())
