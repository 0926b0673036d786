"""Checks of the types of arguments; ranges are checked by the protocol. Each raises InvalidRequest, which names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

from inferd.calls.generate_arguments import OnLength
from inferd.custom_sampler import ChooseToken, CustomSampler
from inferd.model import Model
from inferd.protocol import InvalidRequest, ReasoningSpec, check_snapshot_name
from inferd.protocol.texts import checked_text, kind_of
from inferd.sampling import Sampler
from inferd.speculation import Speculator
from inferd.speculation_stats import SpeculationCycle

CycleCallback: TypeAlias = Callable[[SpeculationCycle], object]


def model_name(model: str | Model | None) -> str:
    """Return the name to send for a ``model`` argument."""
    if model is None:
        return ""
    if isinstance(model, Model):
        return model.name
    return checked_text("model", model)


def checked_mapping(name: str, value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the values by their names; none for None."""
    if value is not None and not isinstance(value, Mapping):
        raise InvalidRequest(f"{name} must be a dict, with each value by its name, not {kind_of(value)}")
    return dict(value or {})


def snapshot_name(name: str) -> str:
    """Return the name. Raises InvalidRequest for one that no snapshot may have."""
    check_snapshot_name(checked_text("name", name))
    return name


def checked_flag(name: str, value: bool) -> bool:
    """Return True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, not {value!r}")
    return value


def checked_sampler(sampler: Sampler) -> Sampler:
    """Return a Sampler."""
    if not isinstance(sampler, Sampler):
        raise InvalidRequest(f"sampler must be a Sampler, such as Sampler.argmax(), not {sampler!r}")
    return sampler


def checked_chooser(sampler: Sampler | CustomSampler | ChooseToken) -> Sampler | CustomSampler:
    """Return a Sampler, or one of the program's own."""
    return sampler if isinstance(sampler, (Sampler, CustomSampler)) else CustomSampler.of(sampler)


def checked_texts(name: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return a sequence of strings as a tuple."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidRequest(f"{name} must be a list of strings, not {texts!r}")
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest(f"{name} must hold strings, not {list(texts)!r}")
    return tuple(texts)


def checked_reasoning(reasoning: ReasoningSpec | None) -> ReasoningSpec | None:
    """Return a ReasoningSpec, or None."""
    if reasoning is not None and not isinstance(reasoning, ReasoningSpec):
        raise InvalidRequest(f"reasoning must be a ReasoningSpec, not {reasoning!r}")
    if reasoning is not None:
        checked_text("reasoning: begin", reasoning.begin)
        checked_text("reasoning: end", reasoning.end)
    return reasoning


def checked_speculator(speculator: Speculator | None) -> Speculator | None:
    """Return a Speculator, or None."""
    if speculator is not None and not isinstance(speculator, Speculator):
        raise InvalidRequest(f"speculator must be an instance of a Speculator subclass, not {speculator!r}")
    return speculator


def checked_on_length(on_length: OnLength | None) -> OnLength | None:
    """Return the name of a way to deal with the end of the budget, or None."""
    if on_length is not None and on_length not in get_args(OnLength):
        raise InvalidRequest(f"on_length must be one of {', '.join(get_args(OnLength))} or None, not {on_length!r}")
    return on_length


def checked_cycle(on_cycle: CycleCallback | None) -> CycleCallback | None:
    """Return a function that is not ``async``, or None."""
    if on_cycle is not None and (not callable(on_cycle) or inspect.iscoroutinefunction(on_cycle)):
        raise InvalidRequest(f"on_cycle must be an ordinary function of one argument, not {on_cycle!r}")
    return on_cycle
