"""LoRA adapters as PEFT writes them: ``adapter_config.json`` beside ``adapter_model.safetensors``. No tensors here.

What the fields mean is PEFT's (huggingface/peft, ``LoraConfig``): LoRA of Hu et al. 2021, ``use_rslora`` of Kalajdzievski 2023.
An option that would change the result and is not applied here is refused by name, and so is one that nobody here knows.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from inferd.protocol import InvalidRequest, NotFound
from inferd_runtime.json_cost import containers, refuse_slow_numbers

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
ALL_LINEAR = "all-linear"
MAX_CONTAINERS = 1000
"""Lists and objects in a configuration, which is read in the step loop: a dozen is usual."""
PLAIN_NAME = re.compile(r"[\w.-]+")
LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")
PLAIN_STARTS = frozenset((True, False, None, "gaussian", "eva", "orthogonal"))
"""``init_lora_weights`` that leave the base weights alone; the others (pissa, olora, loftq, ...) train on changed ones."""
INERT = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config", "fan_in_fan_out",
        "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config", "megatron_core", "peft_version",
        "qalora_group_size", "revision", "runtime_config", "task_type",
    }
)  # fmt: skip
"""They tell how it was trained or saved. PEFT takes ``fan_in_fan_out`` from the kind of the module, and so does this."""

T = TypeVar("T")
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Names = str | list[str] | None


class _Fields(msgspec.Struct):
    """The fields of the configuration that are applied."""

    peft_type: str
    target_modules: Names = None
    exclude_modules: Names = None
    layers_to_transform: int | list[int] | None = None
    r: PositiveInt = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, PositiveInt] | None = None
    alpha_pattern: dict[str, float] | None = None
    bias: str = "none"
    init_lora_weights: bool | str | None = True


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """The two files. ``trusted``: the operator's own, whose regular expressions may be evaluated."""

    config: bytes
    weights: bytearray
    trusted: bool = False

    @classmethod
    def read(cls, folder: Path) -> AdapterFiles:
        """Return the files of an operator's folder. Raises NotFound, or InvalidRequest when the weights are a pickle."""
        if not (folder / CONFIG).is_file():
            raise NotFound(f"no adapter in {folder}: there is no {CONFIG}")
        if not (folder / WEIGHTS).is_file():
            pickled = (folder / "adapter_model.bin").is_file()
            hint = "; adapter_model.bin is a pickle, which can run code, and is never read" if pickled else ""
            raise InvalidRequest(f"the adapter in {folder} has no {WEIGHTS}{hint}")
        return cls((folder / CONFIG).read_bytes(), bytearray((folder / WEIGHTS).read_bytes()), trusted=True)

    def digest(self) -> str:
        """Return a hash of both files, 16 hexadecimal digits."""
        digest = hashlib.sha256(len(self.config).to_bytes(8, "little") + self.config)
        digest.update(self.weights)
        return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class AdapterSize:
    """The largest rank of an adapter, and the bytes that it takes on the device."""

    rank: int
    bytes: int


class Patterns(Generic[T]):
    """Values by the ends of modules' paths. PEFT's rule: the first key that, as a regular expression, matches an end.

    Plain names are looked up, however many there are; only other keys are tried one after another.
    """

    def __init__(self, values: Mapping[str, T]) -> None:
        self.values = values
        self._order = {key: at for at, key in enumerate(values)}
        self.expressions = [key for key in values if not PLAIN_NAME.fullmatch(key)]

    def find(self, module: str, default: T) -> T:
        """Return the value for a module."""
        found = [end for end in ends_of(module) if end in self._order]
        found += [key for key in self.expressions if re.match(rf"(.*\.)?({key})$", module)]
        return self.values[min(found, key=self._order.__getitem__)] if found else default


def ends_of(module: str) -> set[str]:
    """Return every end of a path: of ``a.b.c`` that is ``a.b.c``, ``b.c`` and ``c``."""
    parts = module.split(".")
    return {".".join(parts[first:]) for first in range(len(parts))}


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Which modules an adapter changes, and how much: ``scaling * B @ A`` is added to a module's weight."""

    rank: int
    alpha: float
    rslora: bool
    targets: str | frozenset[str]
    excluded: str | frozenset[str]
    layers: frozenset[int] | None
    ranks: Patterns[int]
    alphas: Patterns[float]

    @property
    def max_rank(self) -> int:
        """The largest rank that it names."""
        return max([self.rank, *self.ranks.values.values()])

    @classmethod
    def parse(cls, files: AdapterFiles) -> LoraConfig:
        """Read the configuration. Raises InvalidRequest that names the option that is wrong or not supported."""
        refuse_slow_numbers(files.config, CONFIG)
        if containers(files.config) > MAX_CONTAINERS:
            raise InvalidRequest(f"{CONFIG}: more than {MAX_CONTAINERS} lists and objects")
        try:
            raw = msgspec.json.decode(files.config, type=dict[str, Any])
            fields = msgspec.convert(raw, _Fields)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"{CONFIG}: {error}") from None
        _check(fields, raw)
        config = cls(
            rank=fields.r,
            alpha=fields.lora_alpha,
            rslora=fields.use_rslora,
            targets=_names(fields.target_modules),
            excluded=_names(fields.exclude_modules),
            layers=_layers(fields.layers_to_transform),
            ranks=Patterns(fields.rank_pattern or {}),
            alphas=Patterns(fields.alpha_pattern or {}),
        )
        config._check_patterns(files.trusted)
        return config

    def names(self, module: str) -> bool:
        """True if the adapter is meant for a module of this path."""
        if _listed(self.excluded, module) or not _listed(self.targets, module):
            return False
        if self.layers is None or isinstance(self.targets, str):
            return True
        layer = LAYER.match(module)
        return layer is not None and int(layer[1]) in self.layers

    def rank_of(self, module: str) -> int:
        """Return the rank at a module."""
        return self.ranks.find(module, self.rank)

    def scaling_of(self, module: str) -> float:
        """Return what B @ A is multiplied by at a module."""
        rank, alpha = self.rank_of(module), self.alphas.find(module, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def _check_patterns(self, trusted: bool) -> None:
        """Raise InvalidRequest for a regular expression in an untrusted file: one that backtracks would stop the engine."""
        patterns = {"target_modules": self.targets, "exclude_modules": self.excluded}
        patterns |= {f"a key of rank_pattern, {key!r},": key for key in self.ranks.expressions}
        patterns |= {f"a key of alpha_pattern, {key!r},": key for key in self.alphas.expressions}
        for name, text in patterns.items():
            if isinstance(text, frozenset) or text in ("", ALL_LINEAR):
                continue
            if not trusted:
                raise InvalidRequest(f"{CONFIG}: {name} is a regular expression; name the modules instead")
            try:
                re.compile(text)
            except re.error as error:
                raise InvalidRequest(f"{CONFIG}: {name} is no regular expression: {error}") from None


def _check(fields: _Fields, raw: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for an option that is not applied here."""
    if fields.peft_type != "LORA":
        raise InvalidRequest(f"{CONFIG}: peft_type {fields.peft_type!r} is not supported, only LORA")
    if fields.bias != "none":
        raise InvalidRequest(f"{CONFIG}: bias {fields.bias!r} is not supported, only 'none'")
    if fields.init_lora_weights not in PLAIN_STARTS:
        raise InvalidRequest(f"{CONFIG}: init_lora_weights {fields.init_lora_weights!r} changes the base weights")
    if not fields.target_modules:
        raise InvalidRequest(f"{CONFIG}: target_modules names no module")
    on = [key for key, value in raw.items() if value and key not in INERT and key not in _Fields.__struct_fields__]
    if on:
        raise InvalidRequest(f"{CONFIG}: {on[0]} is not supported")
    for alpha in (fields.lora_alpha, *(fields.alpha_pattern or {}).values()):
        if not math.isfinite(alpha):
            raise InvalidRequest(f"{CONFIG}: lora_alpha {alpha} is not a finite number")


def _names(value: Names) -> str | frozenset[str]:
    return value if isinstance(value, str) else frozenset(value or ())


def _layers(value: int | list[int] | None) -> frozenset[int] | None:
    if value is None or value == []:
        return None
    return frozenset([value] if isinstance(value, int) else value)


def _listed(names: str | frozenset[str], module: str) -> bool:
    """True if ``names`` hold the module: a text is a regular expression for the whole path, a list holds paths or ends."""
    if isinstance(names, str):
        return names == ALL_LINEAR or (bool(names) and re.fullmatch(names, module) is not None)
    return not names.isdisjoint(ends_of(module))
