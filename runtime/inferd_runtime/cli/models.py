"""``inferd models`` (or ``models list``): what is on this machine; its verbs ``rm``, ``served`` and ``fit``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from inferd.protocol import InvalidRequest
from inferd_runtime.cli.answers import Models, answer_as
from inferd_runtime.cli.client import Server
from inferd_runtime.cli.output import print_json, print_table
from inferd_runtime.cli.parsing import CLIENT_SETTINGS, Parser, add_json, add_settings, settings_of
from inferd_runtime.models.names import EMBEDDED
from inferd_runtime.models.options import ModelOptions
from inferd_runtime.models.store.store import ModelStore, StoredModel

if TYPE_CHECKING:
    from inferd_runtime.models.fitting.fit import Fit

MODELS = """List the models on this machine: those that `inferd pull` brought, and the embedded ones.

    inferd models rm NAME       delete one
    inferd models served        what a server serves
    inferd models fit NAME      whether a model fits this machine's memory"""
FIT = """Estimate from its configuration alone, without reading weights, whether a model fits this machine's memory.

Exit code 0: it fits; 1: it does not, and what would make it fit is said. Whether inferd supports every layer of the model
is found out when it is loaded."""
KV_SOURCES = {"layers": "seen layer by layer", "config": "by the configuration's heads and width"}


def models(argv: list[str]) -> int:
    """Do what the first argument says; list the models on this machine where it says nothing."""
    verbs = {"fit": fit, "list": listed, "rm": remove, "served": served}
    if argv and argv[0] in verbs:
        return verbs[argv[0]](argv[1:])
    return listed(argv)


def listed(argv: list[str]) -> int:
    """List the models on this machine."""
    parser = Parser("models", MODELS)
    add_json(parser, "print {models: [{name, source, license, folder, bytes}]}")
    parsed = parser.parse_args(argv)
    store = ModelStore()
    here = store.models()
    if parsed.as_json:
        print_json({"models": [as_json(model) for model in here]})
        return 0
    rows = [(m.note.name, f"{m.size / 1e6:.0f} MB", m.note.license or "-", m.note.source) for m in here]
    rows += [
        (name, f"{size / 1e6:.0f} MB", "-", "a pull that has not ended") for name, size in store.unfinished().items()
    ]
    rows += [(name, "-", "Apache-2.0", "embedded") for name in EMBEDDED]
    print_table(("MODEL", "SIZE", "LICENCE", "SOURCE"), rows)
    return 0


def as_json(model: StoredModel) -> dict[str, Any]:
    """Return a stored model as the command line prints it."""
    note = model.note
    return {
        "name": note.name, "source": note.source, "license": note.license, "folder": str(model.folder),
        "bytes": model.size,
    }  # fmt: skip


def remove(argv: list[str]) -> int:
    """Delete a pulled model."""
    parser = Parser(
        "models rm",
        "Delete a pulled model, or what an interrupted pull has left; of a folder of your own only its name here.",
    )
    parser.add_argument("name", metavar="NAME")
    name = parser.parse_args(argv).name
    print(f"{name} is removed ({ModelStore().remove(name) / 1e6:.0f} MB)")
    return 0


def served(argv: list[str]) -> int:
    """List the models that a server serves."""
    parser = Parser("models served", "List the models that a server serves; the first is the default.")
    add_settings(parser, CLIENT_SETTINGS)
    add_json(parser, "print {models: [...]}")
    parsed = parser.parse_args(argv)
    answer = Server.of(settings_of(parsed)).get("/v1/models")
    if parsed.as_json:
        print_json(answer)
        return 0
    rows = [
        (model["name"], str(model["vocab_size"]), str(model["max_context"]))
        for model in answer_as(Models, answer)["models"]
    ]
    print_table(("MODEL", "VOCABULARY", "CONTEXT"), rows)
    return 0


def fit(argv: list[str]) -> int:
    """Estimate whether a model fits; returns 0 or 1."""
    parsed = _fit_parser().parse_args(argv)
    settings = settings_of(parsed)
    options = ModelOptions.parse(parsed.name)
    options = options.over(settings.engine.defaults)
    estimate = _estimate(options, parsed)
    if parsed.as_json:
        print_json(_as_json(estimate))
    else:
        _show(estimate)
    return 0 if estimate.fits else 1


def _fit_parser() -> Parser:
    parser = Parser("models fit", FIT)
    parser.add_argument("name", metavar="NAME", help="as for --model")
    add_settings(parser, ("device", "dtype", "weights", "pages"))
    parser.add_argument("--context", type=_positive, default=0, metavar="N", help="tokens that each stream must hold")
    parser.add_argument("--streams", type=_positive, default=0, metavar="N", help="streams that must fit at once")
    parser.add_argument("--page-size", type=_positive, default=16, metavar="N", help="tokens of a KV page")
    add_json(parser, "print the estimate, sizes in bytes")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return int(text)


def _estimate(options: ModelOptions, parsed: argparse.Namespace) -> Fit:
    """Return the estimate. Raises InvalidRequest for options that contradict each other or the model."""
    if options.pages and (parsed.context or parsed.streams):
        raise InvalidRequest("give --pages, or --context and --streams, not both")
    # Torch is imported here, because no other command of this process needs it.
    from inferd_runtime.models.devices import available_bytes, check_device
    from inferd_runtime.models.fitting.fit import CacheRequest, Fit
    from inferd_runtime.models.loading import size_of

    size = size_of(options)
    if parsed.context > size.max_context:
        raise InvalidRequest(f"--context {parsed.context} is more than the model's {size.max_context} tokens")
    device = check_device(options.device)
    asked = CacheRequest(parsed.context, parsed.streams, options.pages, parsed.page_size)
    return Fit(size, device, asked, available_bytes(device))


def _as_json(estimate: Fit) -> dict[str, Any]:
    size = estimate.model
    return {
        "model": size.name, "fits": estimate.fits, "device": estimate.device, "dtype": size.dtype,
        "parameters": size.parameters, "weight_bytes": size.weight_bytes, "step_bytes": size.step_bytes,
        "kv_token_bytes": size.kv_token_bytes, "kv_source": size.kv_source, "max_context": size.max_context,
        "quantized": size.quantized, "held_as": size.held_as,
        "available_bytes": estimate.available, "needs_bytes": estimate.needs, "page_size": estimate.asked.page_size,
        "pages": estimate.pages, "contexts": estimate.contexts, "advice": estimate.advice,
    }  # fmt: skip


def _show(estimate: Fit) -> None:
    from inferd_runtime.models.fitting.fit import readable

    size, asked = estimate.model, estimate.asked
    context = asked.context or size.max_context
    rows = [
        ("parameters", f"{size.parameters:,}"),
        (
            "weights",
            readable(size.weight_bytes)
            + (f" (as if not quantized: {size.quantized})" if size.quantized else "")
            + (f" (held as {size.held_as})" if size.held_as else ""),
        ),
        ("activations", f"{readable(size.step_bytes)} (a bound on the widest step)"),
        ("KV per token", f"{readable(size.kv_token_bytes)} ({KV_SOURCES[size.kv_source]})"),
        ("available", readable(estimate.available)),
        ("needs", readable(estimate.needs)),
    ]
    if estimate.fits:
        held = f"{estimate.contexts} contexts of {context} tokens"
        rows.append(("KV pages", f"{estimate.pages} of {asked.page_size} tokens: {held}"))
    print_table((f"{size.name}", f"{size.dtype} on {estimate.device}"), rows)
    print(_verdict(estimate))


def _verdict(estimate: Fit) -> str:
    from inferd_runtime.models.fitting.fit import readable

    if estimate.fits:
        raised = not estimate.asked.pages and estimate.pages > estimate.default_pages
        return f"fits, served with --pages {estimate.pages}" if raised else "fits"
    text = f"does not fit: needs {readable(estimate.needs)}, has {readable(estimate.available)}"
    return f"{text}; would fit with {' or '.join(estimate.advice)}" if estimate.advice else text
