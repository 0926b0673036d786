"""What the probe must not let through, made by hand from a model that it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from families import make
from family_table import BASE, SERVED
from transformers import AutoConfig, AutoModelForCausalLM

from inferd.protocol import InvalidRequest
from inferd_runtime.models.checks.probe import attach, context_length


def around(part: Any, change: Callable[..., Any]) -> None:
    """Replace a module's forward by ``change(forward, ...)``."""
    forward = part.forward
    part.forward = lambda *arguments, **kwargs: change(forward, *arguments, **kwargs)


def one_number_twice(model: Any) -> None:
    model.model.layers[2].self_attn.layer_idx = 1


def attends_twice(model: Any) -> None:
    def change(forward: Any, *arguments: Any, **kwargs: Any) -> Any:
        forward(*arguments, **kwargs)
        return forward(*arguments, **kwargs)

    around(model.model.layers[0].self_attn, change)


def skips_attention(model: Any) -> None:
    around(model.model.layers[1].self_attn, lambda forward, hidden_states, **kwargs: (hidden_states, None))


def scales_single_tokens_otherwise(model: Any) -> None:
    def change(forward: Any, hidden_states: torch.Tensor, **kwargs: Any) -> Any:
        attention.scaling = 1.0 if hidden_states.shape[1] == 1 else 0.5
        return forward(hidden_states=hidden_states, **kwargs)

    attention = model.model.layers[1].self_attn
    around(attention, change)


def has_fewer_heads_for_single_tokens(model: Any) -> None:
    def change(forward: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = forward(hidden_states)
        return states[..., :8] if hidden_states.shape[1] == 1 else states

    for projection in (model.model.layers[0].self_attn.k_proj, model.model.layers[0].self_attn.v_proj):
        around(projection, change)


def drops_kwargs(model: Any) -> None:
    def change(forward: Any, *arguments: Any, inferd_layout: Any = None, **kwargs: Any) -> Any:
        return forward(*arguments, **kwargs)

    around(model.model.layers[0].self_attn, change)


def drops_out(model: Any) -> None:
    model.model.layers[2].self_attn.attention_dropout = 0.1
    model.model.layers[2].self_attn.training = True


def looks_at_the_token_before(model: Any) -> None:
    around(model.model.layers[1].mlp, lambda forward, hidden: forward(hidden + hidden.roll(1, dims=1)))


def counts_positions(model: Any) -> None:
    def change(forward: Any, hidden: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return forward(hidden, torch.arange(hidden.shape[1])[None])

    around(model.model.rotary_emb, change)


def gives_all_logits(model: Any) -> None:
    around(model, lambda forward, *arguments, logits_to_keep=0, **kwargs: forward(*arguments, **kwargs))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (one_number_twice, r"layer 1 \(LlamaAttention\) attends twice, or shares its number with another layer"),
        (attends_twice, r"layer 0 \(LlamaAttention\) attends twice"),
        (skips_attention, r"layer 1 \(LlamaAttention\) do not use the attention interface"),
        (scales_single_tokens_otherwise, r"layer 1 \(LlamaAttention\) attends to one token otherwise than to several"),
        (has_fewer_heads_for_single_tokens, r"layer 0 \(LlamaAttention\) attends to one token otherwise"),
        (drops_kwargs, r"layer 0 \(LlamaAttention\) does not get the keyword arguments"),
        (drops_out, r"layer 2 \(LlamaAttention\): dropout is not zero"),
        (looks_at_the_token_before, "logits differ .* state beside attention"),
        (counts_positions, "logits differ .* counts positions"),
        (gives_all_logits, "logits differ"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_would_be_served_wrongly_is_refused(
    damage: Callable[[Any], None], reason: str, dtype: torch.dtype
) -> None:
    model = make("llama").to(dtype)
    damage(model)
    with pytest.raises(InvalidRequest, match=f"'my-model' cannot be served: .*{reason}"):
        attach(model, "my-model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_rounding_alone_does_not_refuse_a_model(family: str, dtype: torch.dtype) -> None:
    assert len(attach(make(family).to(dtype), family).rules) == 3


def test_sinks_of_another_form_are_refused() -> None:
    """One logit for all heads would be read as one per head."""
    config: Any = AutoConfig.for_model("gpt_oss", **{**BASE, **SERVED["gpt_oss"].settings})
    model = AutoModelForCausalLM.from_config(config).eval()
    model.model.layers[1].self_attn.sinks = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(InvalidRequest, match=r"layer 1 \(GptOssAttention\): s_aux of shape \[1\]"):
        attach(model, "my-model")


def test_logits_that_are_no_numbers_are_refused() -> None:
    model: Any = make("llama")
    model.model.norm.weight.data.fill_(float("nan"))
    with pytest.raises(InvalidRequest, match="logits differ"):
        attach(model, "my-model")


def test_a_window_longer_than_the_context_is_none() -> None:
    model: Any = make("mistral")
    model.config.sliding_window = 256
    assert {rule.window for rule in attach(model, "mistral").rules} == {None}


def test_llama4_is_served_up_to_the_first_query_that_is_scaled() -> None:
    """It counts the positions of these queries by itself."""
    config = AutoConfig.for_model("llama4_text", max_position_embeddings=131_072, floor_scale=8192)
    assert context_length(config) == 8191
    config.attn_temperature_tuning = False
    assert context_length(config) == 131_072
