"""The table of Pie's names in the guide, and the package: neither says more than the other."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import inferlet

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "pie.md"
ROW = re.compile(r"^\| `([\w.]+)` \| (works|meaning|refused) \|", re.MULTILINE)
MODULES = ("chat", "http", "mcp", "messaging", "model", "reasoning", "runtime", "scheduling", "session", "tools", "zo")
OURS = "(Not in Pie.)"


def rows() -> dict[str, str]:
    return dict(ROW.findall(GUIDE.read_text()))


def members(name: str, value: Any) -> set[str]:
    """A class's public methods, properties and classes, except those that say that they are not Pie's."""
    own = {key: item for key, item in vars(value).items() if not key.startswith("_") and key != "to_wire"}
    kinds = (property, classmethod, staticmethod, type)
    return {
        f"{name}.{key}"
        for key, item in own.items()
        if (isinstance(item, kinds) or callable(item)) and OURS not in (item.__doc__ or "")
    }


def surface() -> set[str]:
    names = set(inferlet.__all__) - set(MODULES) - {"connect", "NotOffered"}  # not Pie's
    for name in set(names):
        value = getattr(inferlet, name)
        if inspect.isclass(value) and not issubclass(value, Exception):
            names |= members(name, value)
    for module in MODULES:
        found = importlib.import_module(f"inferlet.{module}")
        public = getattr(found, "__all__", None) or [
            name
            for name, value in vars(found).items()
            if not name.startswith("_") and getattr(value, "__module__", "") == found.__name__
        ]
        names |= {f"{module}.{name}" for name in public}
        for name in public:
            value = getattr(found, name)
            if inspect.isclass(value) and found.__name__ == value.__module__:
                names |= members(f"{module}.{name}", value)
    return names


def test_the_guide_has_a_row_for_every_name_and_no_other() -> None:
    table = set(rows())
    assert surface() - table == set()
    assert table - surface() == set()


@pytest.mark.parametrize(
    "name", ["Image.from_bytes", "Audio.from_bytes", "Video.from_bytes", "Speech", "SpeechBuilder", "write_wav"]
)
def test_media_are_refused_by_name(name: str) -> None:
    assert rows()[name] == "refused"
    value: Any = inferlet
    for part in name.split("."):
        value = getattr(value, part)
    with pytest.raises(inferlet.NotOffered, match=name):
        value(b"", 1)


@pytest.mark.parametrize("name", ["initialize", "update", "adapter_seed"])
def test_training_is_refused_by_name(name: str) -> None:
    function = getattr(inferlet.zo, name)
    arguments = [None] * len(inspect.signature(function).parameters)
    with pytest.raises(NotImplementedError, match=f"zo.{name} is refused"):
        function(*arguments)


def test_the_order_of_arguments_and_the_defaults_are_pies() -> None:
    generate = inspect.signature(inferlet.Context.generate).parameters
    assert list(generate) == [
        *("self", "sampler", "max_tokens", "stop", "constrain", "logit_mask", "speculator", "system_speculation"),
        *("adapter", "zo_seed", "horizon", "rebid_each_step", "auto_flush"),
    ]
    defaults = [generate[name].default for name in list(generate)[2:]]
    assert defaults == [None, None, None, None, None, None, None, None, None, True, True]
    assert str(inspect.signature(inferlet.Sampler.top_k_top_p)).startswith(
        "(temperature: 'float' = 0.6, k: 'int' = 40, p: 'float' = 0.95)"
    )
    assert inferlet.Distribution() == inferlet.Distribution(temperature=1.0, k=0)
    assert inferlet.Logprobs(range(3)).tokens == (0, 1, 2)
    assert inferlet.Logprobs().tokens == ()
