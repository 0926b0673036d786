"""The options of one model: ``NAME[,dtype=...][,device=...][,pages=...][,weights=...][,activations=...]``. No torch here."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inferd.protocol import InvalidRequest
from inferd_runtime.models.option_lists import check_once, read_entries, read_entry, split_options

DTYPES = ("float32", "bfloat16", "float16")
AUTO = "auto"
"""The dtype that was measured to be faster, where the checkpoint leaves a choice."""
WEIGHTS = ("half", "int8", "int4")
"""How weights can be held on the CPU in less than the model's dtype, see :mod:`inferd_runtime.models.weights`."""
DEVICE_WEIGHTS = ("fp8", "int8", "int4")
"""The same on a GPU."""
ACTIVATIONS = ("int8",)
"""What rows can be rounded to before weights in blocks on the CPU."""
DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True)
class ModelOptions:
    """A model to serve. "" and 0 leave the choice to the defaults of :meth:`over`, and after them to the runtime."""

    name: str
    dtype: str = ""
    device: str = ""
    pages: int = 0
    weights: str = ""
    activations: str = ""

    @property
    def row_bits(self) -> int:
        """How many bits of a row are enough where weights are in blocks on the CPU: 16, unless somebody has asked for float32."""
        if self.activations:
            return 8
        return 16 if self.dtype in ("", AUTO) and not self.weights and self.device in ("", "cpu") else 32

    @classmethod
    def parse(cls, text: str) -> ModelOptions:
        """Read ``NAME[,key=value]``. Raises InvalidRequest that names the part that is wrong."""
        return cls.of(split_options("model", text))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ModelOptions:
        """Read a table with a ``name``. Raises InvalidRequest that names the key that is wrong."""
        name = str(values.get("name", ""))
        if not name or "," in name:
            raise InvalidRequest(f"a model's name must not be empty or contain a comma, got {name!r}")
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = [key for key in values if key not in names]
        if unknown:
            raise InvalidRequest(f"model {name!r} has no option {unknown[0]!r}; there are {', '.join(names[1:])}")
        pages = _positive(name, values["pages"]) if "pages" in values else 0
        texts = {key: str(values[key]) for key in ("dtype", "device", "weights", "activations") if key in values}
        return cls(name, pages=pages, **texts).checked()

    def over(self, defaults: ModelOptions) -> ModelOptions:
        """Return the same options, with those that are not set taken from ``defaults``."""
        return ModelOptions(
            self.name, self.dtype or defaults.dtype, self.device or defaults.device, self.pages or defaults.pages,
            self.weights or defaults.weights, self.activations or defaults.activations,
        )  # fmt: skip

    def checked(self) -> ModelOptions:
        """Return itself. Raises InvalidRequest for a dtype, device or way to hold weights or rows that exists nowhere."""
        if self.dtype and self.dtype not in (*DTYPES, AUTO):
            raise InvalidRequest(f"dtype {self.dtype!r} is not one of {', '.join((*DTYPES, AUTO))}")
        every = dict.fromkeys((*WEIGHTS, *DEVICE_WEIGHTS))
        if self.weights and self.weights not in every:
            raise InvalidRequest(f"weights {self.weights!r} is not one of {', '.join(every)}")
        there = DEVICE_WEIGHTS if self.device.startswith("cuda") else WEIGHTS
        if self.weights and self.device and self.weights not in there:
            where = "a GPU" if there is DEVICE_WEIGHTS else "the CPU"
            raise InvalidRequest(f"weights {self.weights!r}: on {where} weights are held as {', '.join(there)}")
        if self.activations and self.activations not in ACTIVATIONS:
            raise InvalidRequest(f"activations {self.activations!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.activations and (self.device.startswith("cuda") or self.weights == "half"):
            raise InvalidRequest("activations can be int8 only on the CPU, before weights in blocks of few bits")
        if self.device and not DEVICE.fullmatch(self.device):
            raise InvalidRequest(f"device {self.device!r} is not one of cpu, cuda, cuda:N")
        return self


def _positive(name: str, value: Any) -> int:
    if not re.fullmatch(r"[1-9]\d*", str(value)):
        raise InvalidRequest(f"model {name!r}: pages must be a positive whole number, got {value!r}")
    return int(value)


def read_models(value: Any) -> tuple[ModelOptions, ...]:
    """Return the models of a setting: one text with ``;`` between models, or a list of texts and tables.

    Raises InvalidRequest that names what is wrong, and the model that is there twice.
    """
    # An empty part is not dropped: it is a model whose name was forgotten.
    models = read_entries(value.split(";") if isinstance(value, str) else value, "a model", _read_model)
    if not models:
        raise InvalidRequest(f"expected a model or a list of models, got {value!r}")
    check_once("model", [(model.name,) for model in models])
    return models


def _read_model(entry: Any) -> ModelOptions:
    return read_entry(entry, ModelOptions, ModelOptions.parse, ModelOptions.of, "a model's name or its table")
