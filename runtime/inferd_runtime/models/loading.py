"""Loading a model by its name: from what was proved before where that still counts, else through transformers.

transformers takes seconds to import and its modules gigabytes to build; a start that finds a proof needs neither.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from inferd.protocol import InvalidRequest
from inferd_runtime.models.fitting.fit import ModelSize
from inferd_runtime.models.loaded import DTYPES, LoadedModel
from inferd_runtime.models.options import AUTO, ModelOptions
from inferd_runtime.models.proved.decoder import ProvedDecoder, read_weights
from inferd_runtime.models.proved.store import KeptProof, ProofStore
from inferd_runtime.models.shape import Probed
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.models.tokenizer import HubTokenizer
from inferd_runtime.models.weights.file_blocks import bytes_saved


def size_of(options: ModelOptions, proofs: ProofStore | None = None) -> ModelSize:
    """Return the sizes of a model. Raises what :func:`~inferd_runtime.models.fitting.inspection.measure` raises."""
    size = _measured(options, proofs)
    if size.matrices is None or options.device not in ("", "cpu") or size.dtype != "float32":
        return size
    return size.in_blocks(bytes_saved(resolve(options.name), size.matrices.tied))


def _measured(options: ModelOptions, proofs: ProofStore | None) -> ModelSize:
    proof = _proof(options.name, options.device, options.dtype, 1, proofs)
    if proof is not None:
        return replace(proof.size, name=options.name).held(options.weights, options.device or "cpu")
    from inferd_runtime.models.fitting.inspection import measure  # imports transformers

    return measure(options)


def load(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "",
    ranks: int = 1,
    proofs: ProofStore | None = None,
    weights: str = "",
) -> LoadedModel:
    """Load weights and tokenizer. ``dtype`` "" is float32 on the CPU and the checkpoint's own elsewhere; "auto" is the latter, or
    what was measured to be faster on the CPU (:func:`~inferd_runtime.models.weights.choice.choose_dtype`).

    ``weights``: how they are held on a GPU (:mod:`~inferd_runtime.models.weights.on_device`); on the CPU the driver's builder
    decides. ``proofs``: where to look for a proof of the model, and to keep it; None loads through transformers, whose modules
    then run by themselves. With ``ranks`` above 1, every rank of the group that was joined
    (:func:`~inferd_runtime.models.parallel.join`) calls this, and gets its part of the weights; ``device`` is the kind.
    Raises NotFound when there is no such folder or hub model or a part of it is not there, InvalidRequest naming the reason
    when it cannot be served.
    """
    source, number = resolve(name), _dtype(dtype, device)
    # Some images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE: products of float32, of positions too, would keep 10 bits of mantissa.
    torch.set_float32_matmul_precision("highest")
    proof = _proof(name, device, dtype, ranks, proofs)
    if proof is not None:
        return _load_proved(name, source, proof)
    from inferd_runtime.models.first_load import load_first, proof_of  # imports transformers

    loaded = replace(load_first(name, source, device, number, ranks, weights), source=source)
    provable = proofs is not None and device == "cpu" and ranks == 1 and loaded.stored is None
    made = proof_of(loaded, source, dtype) if provable else None
    if made is None or proofs is None:
        return loaded
    return replace(loaded, keep_proof=lambda: proofs.keep(source, dtype, made))


def _proof(name: str, device: str, dtype: str, ranks: int, proofs: ProofStore | None) -> KeptProof | None:
    if proofs is None or device not in ("", "cpu") or ranks > 1:
        return None
    return proofs.find(resolve(name), dtype)


def _load_proved(name: str, source: str, proof: KeptProof) -> LoadedModel:
    weights = read_weights(Path(source), DTYPES[proof.size.dtype])
    kept = proof.tokenizer
    return LoadedModel(
        name=name,
        module=ProvedDecoder(proof.decoder, weights).eval(),
        tokenizer=HubTokenizer(kept.json, proof.eos_tokens, kept.chat_template, kept.special),
        probe=Probed(proof.kv, tuple(rule.rule() for rule in proof.rules), proof.context),
        vocab_size=proof.vocab_size,
        max_context=proof.context,
        fingerprint=proof.fingerprint,
        source=source,
    )


def _dtype(name: str, device: str) -> torch.dtype | str:
    if not name:
        return torch.float32 if device == "cpu" else AUTO
    if name == AUTO:
        return AUTO
    if name not in DTYPES:
        raise InvalidRequest(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]
