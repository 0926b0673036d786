"""Checks of what a program passes to the SDK. Each raises InvalidRequest, which names the argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TypeAlias

from inferd.model import Model
from inferd.protocol import MAX_LOGPROBS, InvalidRequest
from inferd.sampling import Sampler
from inferd.speculation import Speculator
from inferd.speculation_stats import SpeculationCycle

CycleCallback: TypeAlias = Callable[[SpeculationCycle], object]


def model_name(model: str | Model | None) -> str:
    """The name to send for a ``model`` argument."""
    if model is None:
        return ""
    if isinstance(model, Model):
        return model.name
    return checked_text("model", model)


def checked_text(name: str, value: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}")
    return value


def checked_count(name: str, value: int) -> None:
    """A whole number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequest(f"{name} must be a whole number of at least 0, not {value!r}")


def checked_priority(value: int) -> int:
    """A whole number from -3 to 3."""
    if isinstance(value, bool) or not isinstance(value, int) or not -3 <= value <= 3:
        raise InvalidRequest(f"priority must be a whole number from -3 to 3, not {value!r}")
    return value


def checked_flag(name: str, value: bool) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be True or False, not {value!r}")
    return value


def checked_logprobs(value: int | None) -> int | None:
    """A whole number from 0 to MAX_LOGPROBS, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_LOGPROBS:
        raise InvalidRequest(f"logprobs must be a whole number from 0 to {MAX_LOGPROBS}, or None, not {value!r}")
    return value


def checked_sampler(sampler: Sampler) -> Sampler:
    """A Sampler."""
    if not isinstance(sampler, Sampler):
        raise InvalidRequest(f"sampler must be a Sampler, such as Sampler.argmax(), not {sampler!r}")
    return sampler


def checked_pass_sampler(sampler: Sampler) -> Sampler:
    """A Sampler for one pass: without penalties, which count what was generated, and without a bias of its own."""
    if checked_sampler(sampler).adjusts:
        raise InvalidRequest("sampler: penalized() and biased() go with generate and verify; forward has bias=")
    return sampler


def checked_stop(stop: Sequence[str]) -> tuple[str, ...]:
    """Texts that are not empty."""
    if isinstance(stop, str) or not isinstance(stop, Sequence):
        raise InvalidRequest(f"stop must be a list of strings, not {stop!r}")
    if not all(isinstance(text, str) and text for text in stop):
        raise InvalidRequest(f"stop must hold strings that are not empty, not {list(stop)!r}")
    return tuple(stop)


def checked_speculator(speculator: Speculator | None) -> Speculator | None:
    """A Speculator, or None."""
    if speculator is not None and not isinstance(speculator, Speculator):
        raise InvalidRequest(f"speculator must be an instance of a Speculator subclass, not {speculator!r}")
    return speculator


def checked_cycle(on_cycle: CycleCallback | None) -> CycleCallback | None:
    """A function that is not ``async``, or None."""
    if on_cycle is not None and (not callable(on_cycle) or inspect.iscoroutinefunction(on_cycle)):
        raise InvalidRequest(f"on_cycle must be an ordinary function of one argument, not {on_cycle!r}")
    return on_cycle
