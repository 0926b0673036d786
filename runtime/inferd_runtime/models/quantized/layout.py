"""What a quantized checkpoint says of itself in its config.json, and what is refused of it. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from inferd.protocol import InvalidRequest

AWQ, GPTQ, COMPRESSED, FP8, FBGEMM = "awq", "gptq", "compressed-tensors", "fp8", "fbgemm_fp8"
PACKAGES = {
    "bitsandbytes": "bitsandbytes", "aqlm": "aqlm", "quanto": "optimum", "quark": "quark", "eetq": "eetq",
    "higgs": "flute", "hqq": "hqq", "torchao": "torchao", "vptq": "vptq", "spqr": "spqr_quant",
    "fp_quant": "fp_quant", "auto-round": "auto_round",
}  # fmt: skip
"""Methods that transformers reads with a package of their own."""
COMPRESSED_FORMATS = (
    "pack-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "mixed-precision",
    "dense",
)
WAY_OUT = (
    "serve the original checkpoint with --weights int4 or int8 (on a GPU fp8, too), or one in AWQ (gemm), GPTQ (4 or 8 bits) "
    "or compressed-tensors (pack-quantized in 4 or 8 bits, float-quantized, int-quantized)"
)


@dataclass(frozen=True)
class StoredLayout:
    """How the weights are stored. ``bits`` of AWQ and GPTQ; ``added``: what is added to the zeros that GPTQ stores."""

    method: str
    bits: int = 0
    added: int = 0


def stored_layout(name: str, config: Mapping[str, Any]) -> StoredLayout | None:
    """Return the layout that this runtime reads by itself, by the config.json of the model called ``name``.

    None for a checkpoint that is not quantized, or that transformers reads. Raises InvalidRequest, which says what to do, for
    one that neither does.
    """
    found = config.get("quantization_config") or config.get("compression_config") or {}
    if not found:
        return None
    method = str(found.get("quant_method") or ("compressed-tensors" if "config_groups" in found else "unknown"))
    reason = _refused(method, found)
    if reason:
        raise InvalidRequest(
            f"model {name!r} cannot be served: its weights are quantized by {method}, {reason}: {WAY_OUT}"
        )
    if method == GPTQ:
        version = str(found.get("checkpoint_format") or "gptq")
        return StoredLayout(GPTQ, int(found.get("bits", 4)), added=0 if version == "gptq_v2" else 1)
    if method == AWQ:
        return StoredLayout(AWQ, int(found.get("bits", 4)))
    return StoredLayout(method) if method in (COMPRESSED, FP8, FBGEMM) else None


def _refused(method: str, found: Mapping[str, Any]) -> str:
    """Return why a checkpoint cannot be read, "" if nothing is known against it."""
    if method == AWQ:
        return _refused_awq(found)
    if method == GPTQ:
        return _refused_gptq(found)
    if method == COMPRESSED:
        return _refused_compressed(found)
    package = PACKAGES.get(method, "")
    return f"which needs the package {package}" if package and find_spec(package) is None else ""


def _refused_awq(found: Mapping[str, Any]) -> str:
    version = str(found.get("version", "gemm")).lower()
    if version != "gemm":
        return f"version {version}, whose layout is not read"
    return "" if int(found.get("bits", 4)) == 4 else f"in {found['bits']} bits"


def _refused_gptq(found: Mapping[str, Any]) -> str:
    version = str(found.get("checkpoint_format") or "gptq").lower()
    if version not in ("gptq", "gptq_v2"):
        return f"format {version}, whose layout is not read"
    if found.get("dynamic"):
        return "with settings of their own for some modules (dynamic)"
    return "" if int(found.get("bits", 4)) in (4, 8) else f"in {found['bits']} bits"


def _refused_compressed(found: Mapping[str, Any]) -> str:
    formats = {str(found.get("format") or "dense"), *_group_formats(found)}
    unknown = sorted(formats - set(COMPRESSED_FORMATS))
    if unknown:
        return f"format {unknown[0]}, whose layout is not read"
    sparse = str((found.get("sparsity_config") or {}).get("format", "dense"))
    if sparse != "dense":
        return f"sparsity format {sparse}, whose layout is not read"
    return "with transforms of its inputs" if found.get("transform_config") else ""


def _group_formats(found: Mapping[str, Any]) -> Iterator[str]:
    groups = found.get("config_groups") or {}
    yield from (str(group["format"]) for group in groups.values() if isinstance(group, Mapping) and group.get("format"))
