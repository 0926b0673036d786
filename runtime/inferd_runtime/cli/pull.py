"""``inferd pull``: bring a model to this machine."""

from __future__ import annotations

from inferd_runtime.cli.models import as_json
from inferd_runtime.cli.output import print_json, say
from inferd_runtime.cli.parsing import Parser, add_json, add_settings, settings_of
from inferd_runtime.cli.progress import ProgressBar
from inferd_runtime.models.store.catalog import KNOWN
from inferd_runtime.models.store.pull import Pull
from inferd_runtime.models.store.store import ModelStore

PULL = """Bring a model to this machine: a hub id (owner/name), a .gguf file, a folder, or a known name:

    {names}

`--model NAME` then takes it. A second pull of the same model does nothing; one that was interrupted goes on.
`inferd models` lists what is here, `inferd models rm NAME` deletes it."""


def pull(argv: list[str]) -> int:
    """Pull a model and say where it is."""
    parser = Parser("pull", PULL.format(names=", ".join(KNOWN)))
    parser.add_argument("source", metavar="MODEL", help="what to bring")
    parser.add_argument("--name", default="", metavar="NAME", help="what to call it; default: as its source is called")
    add_settings(parser, ("models_bytes",))
    add_json(parser, "print {name, source, license, folder, bytes}")
    parsed = parser.parse_args(argv)
    bar = ProgressBar()
    try:
        budget = settings_of(parsed).models_bytes
        model = Pull(ModelStore(), parsed.source, parsed.name, budget, bar.stage).run()
    finally:
        bar.close()
    if parsed.as_json:
        print_json(as_json(model))
    else:
        note = model.note
        say(f"{note.name}: {model.folder} ({model.size / 1e6:.0f} MB, licence: {note.license or 'not named'})")
        say(f"try it: inferd run --model {note.name} PROGRAM")
    return 0
