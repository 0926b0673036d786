"""The shapes of the tiny models, and weights to start from that can already look back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from tiny_tokenizer import VOCABULARY
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

HEAD_DIM, ROPE_THETA = 64, 1_000_000.0
# Queries and keys are normalised, which bounds the scores: with 64 dimensions and a scale of one a head
# can hardly pick one token out of 512. Copying needs that from the start.
QK_SCALE, POSITION_SCALE = 1.4, 2.0
# Rotary pairs that turn more than this each token tell neighbours apart ...
FAST_TURN = 0.15
# ... and those that turn less than this look the same across a whole row, so that contents can be matched.
SLOW_TURN = 0.01


@dataclass(frozen=True)
class Shape:
    """The sizes that tell the two models apart."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int


SHAPES = {"target": Shape(192, 4, 4, 2, 512), "draft": Shape(96, 2, 2, 1, 256)}


def build(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A fresh model."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=HEAD_DIM,
        intermediate_size=shape.mlp,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, QK_SCALE)
        torch.nn.init.constant_(layer.self_attn.k_norm.weight, QK_SCALE)
    teach_to_copy(model, shape.heads // shape.kv_heads)
    return model


@torch.no_grad()
def teach_to_copy(model: Qwen3ForCausalLM, group: int) -> None:
    """Start two heads as an induction circuit, which training then refines.

    Copying needs a head that tells each place which token stood before it, and a second one that looks
    for a place whose previous token is the present one. To find the pair by chance takes a small model
    longer than the whole run: without this start the loss on repeated text did not fall in it.
    """
    embedding = model.model.embed_tokens.weight
    basis = torch.linalg.qr(torch.randn(embedding.shape[1], embedding.shape[1]))[0].T
    common, basis = basis[0], basis[1:]
    embedding -= (embedding @ common)[:, None] * common
    embedding += 0.2 * common
    slow = pairs(turns() < SLOW_TURN)
    content, before = torch.zeros(2, HEAD_DIM, len(common))
    content[slow], before[slow] = basis[: slow.sum()], basis[-slow.sum() :]
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    look_back(first, common, group)
    wire(first, content, 0.15 * before)
    wire(second, content, 0.3 * content)
    second.q_proj.weight[:HEAD_DIM] = content
    second.k_proj.weight[:HEAD_DIM] = before


def turns() -> Tensor:
    """How far each rotary pair turns from one token to the next."""
    half = HEAD_DIM // 2
    return torch.as_tensor(ROPE_THETA ** (-torch.arange(half) / half))


def pairs(values: Tensor) -> Tensor:
    """The same values for both halves of each rotary pair."""
    return torch.cat([values, values])


def look_back(attention: Qwen3Attention, common: Tensor, group: int) -> None:
    """Make the first heads attend to one token before, two tokens before, and so on.

    They read only the direction that all embeddings have in common, so that nothing but the rotary
    positions decides where they look.
    """
    fast = (turns() > FAST_TURN).float()
    attention.k_proj.weight[:HEAD_DIM] = pairs(fast)[:, None] * common
    for head in range(group):
        turn = turns() * (head + 1)
        query = torch.cat([fast * (turn.cos() + turn.sin()), fast * (turn.cos() - turn.sin())])
        attention.q_proj.weight[head * HEAD_DIM : (head + 1) * HEAD_DIM] = query[:, None] * common
    attention.q_norm.weight.fill_(POSITION_SCALE)
    attention.k_norm.weight.fill_(POSITION_SCALE)


def wire(attention: Qwen3Attention, read: Tensor, write: Tensor) -> None:
    """Let the first head carry what it reads to another part of the residual, above the others' noise."""
    attention.o_proj.weight *= 0.2
    attention.v_proj.weight[:HEAD_DIM] = read
    attention.o_proj.weight[:, :HEAD_DIM] = write.T
