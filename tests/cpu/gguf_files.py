"""Small GGUF files: a random Llama with a byte-level vocabulary of ASCII, its weights in blocks of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants

from inferd_runtime.models.weights.gguf_kinds import KINDS

Type = GGMLQuantizationType
CONTEXT = 128
TOKENS = [*(chr(33 + i) for i in range(91)), "ab", "<|endoftext|>", "<|end|>"]


@dataclass(frozen=True)
class SmallFile:
    """What is written. ``others``: kinds of weights whose names end so. ``head``: there is a head beside the embedding."""

    kind: str
    width: int = 64
    inner: int = 96
    heads: int = 2
    others: Mapping[str, str] = field(default_factory=dict)
    head: bool = False
    layers: int = 2
    tokenizer: str = "gpt2"

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each weight."""
        wide, inner = (self.width, self.width), (self.inner, self.width)
        layer = {
            "attn_norm": (self.width,), "ffn_norm": (self.width,), "attn_q": wide, "attn_k": wide, "attn_v": wide,
            "attn_output": wide, "ffn_gate": inner, "ffn_up": inner, "ffn_down": inner[::-1],
        }  # fmt: skip
        found = {"token_embd": (len(TOKENS), self.width), "output_norm": (self.width,)}
        found |= {"output": (len(TOKENS), self.width)} if self.head else {}
        found |= {f"blk.{at}.{name}": shape for at in range(self.layers) for name, shape in layer.items()}
        return {f"{name}.weight": shape for name, shape in found.items()}

    def kind_of(self, name: str) -> str:
        """Return the kind of a weight of this name."""
        return next((kind for end, kind in self.others.items() if name.endswith(f"{end}.weight")), self.kind)

    def write(self, path: Path) -> None:
        """Write the file."""
        writer, random = GGUFWriter(path, "llama"), np.random.default_rng(7)
        self._describe(writer)
        for name, shape in self.shapes().items():
            if len(shape) == 1:
                writer.add_tensor(name, random.normal(0, 0.1, shape).astype(np.float32))
            else:
                kind = self.kind_of(name)
                writer.add_tensor(name, rows_in(kind, shape, random), raw_dtype=Type[kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def _describe(self, writer: GGUFWriter) -> None:
        writer.add_string("general.name", "small")
        writer.add_string("general.license", "mit")
        writer.add_block_count(self.layers)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(self.width)
        writer.add_feed_forward_length(self.inner)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_vocab_size(len(TOKENS))
        writer.add_tokenizer_model(self.tokenizer)
        writer.add_tokenizer_pre("default")
        writer.add_token_list(TOKENS)
        writer.add_token_types([1] * 92 + [3, 3])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(93)
        writer.add_bos_token_id(93)


def rows_in(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return random weights in blocks as a file holds them: of random bytes where gguf cannot quantize."""
    if kind.endswith("_K") or kind.startswith("IQ"):
        return random_blocks(kind, shape, random)
    return np.asarray(quants.quantize(random.normal(0, 0.1, shape).astype(np.float32), Type[kind]))


def random_blocks(kind: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return blocks of random bytes, their scales and offsets small numbers of both signs."""
    span, size = GGML_QUANT_SIZES[Type[kind]]
    blocks = random.integers(0, 256, (shape[0], shape[1] // span, size), dtype=np.uint8)
    for at in (KINDS[kind].scale, KINDS[kind].offset):
        if at is not None:
            small = random.normal(0, 3e-4, (*blocks.shape[:2], 1)).astype(np.float16)
            blocks[..., at : at + 2] = small.view(np.uint8)
    return blocks.reshape(shape[0], -1)
