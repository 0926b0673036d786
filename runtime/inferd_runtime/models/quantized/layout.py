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
    """How the weights are stored. ``bits`` of AWQ and GPTQ; ``added``: what is added to the zeros that GPTQ stores.

    ``held_bits``: what a product reads of a weight, as far as the configuration tells; 0 where that is dense. ``group``: the
    inputs that share a scale, 0 for all.
    """

    method: str
    bits: int = 0
    added: int = 0
    held_bits: int = 0
    group: int = 0


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
    group = max(0, int(found.get("group_size", 128)))
    if method == GPTQ:
        version, bits = str(found.get("checkpoint_format") or "gptq"), int(found.get("bits", 4))
        # Groups by activation are not side by side: those weights are dense.
        held = 4 if bits == 4 and not found.get("desc_act") else 0
        return StoredLayout(GPTQ, bits, added=0 if version == "gptq_v2" else 1, held_bits=held, group=group)
    if method == AWQ:
        return StoredLayout(AWQ, int(found.get("bits", 4)), held_bits=4, group=group)
    if method == COMPRESSED:
        return _compressed_layout(found)
    return StoredLayout(method, held_bits=8 if method == FBGEMM else 0) if method in (FP8, FBGEMM) else None


def _compressed_layout(found: Mapping[str, Any]) -> StoredLayout:
    groups = [group.get("weights") or {} for group in (found.get("config_groups") or {}).values()]
    weights = groups[0] if len(groups) == 1 else {}
    strategy, bits = weights.get("strategy"), weights.get("num_bits")
    if bits == 4 and weights.get("type", "int") == "int" and weights.get("actorder") != "group":
        return StoredLayout(COMPRESSED, held_bits=4, group=max(0, int(weights.get("group_size") or 0)))
    return StoredLayout(COMPRESSED, held_bits=8 if bits == 8 and strategy in ("channel", "tensor") else 0)


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
