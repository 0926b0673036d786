"""The chat templates of the embedded model, and of the real one where it is pulled: as transformers', and closed to messages."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoTokenizer

from inferd_runtime.models.jinja_template import RenderBudget
from inferd_runtime.models.store.pull import resolve
from inferd_runtime.models.store.store import ModelStore
from inferd_runtime.models.template_input import TemplateInput
from inferd_runtime.models.tokenizer import HubTokenizer

REAL = "smollm2-135m"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who is 東京? <b>\n\n  f(x)"}]


@pytest.fixture(params=["tiny", pytest.param(REAL, marks=pytest.mark.real)])
def pair(request: pytest.FixtureRequest) -> tuple[HubTokenizer, Any]:
    if request.param == REAL and ModelStore().find(REAL) is None:
        pytest.skip(f"{REAL} is not here: `inferd pull {REAL}` brings it")
    theirs = AutoTokenizer.from_pretrained(resolve(request.param))
    return HubTokenizer.of(theirs, [theirs.eos_token_id]), theirs


def tokens_of(tokenizer: HubTokenizer, chat: list[dict[str, str]], **how: bool) -> list[int]:
    return tokenizer.encode_rendered(tokenizer.render(TemplateInput(chat, **how), RenderBudget(5.0, 1 << 20)))


def test_ordinary_conversations_have_the_tokens_of_transformers(pair: tuple[HubTokenizer, Any]) -> None:
    ours, theirs = pair
    for cue in (True, False):
        expected = theirs.apply_chat_template(CHAT, add_generation_prompt=cue, return_dict=False)
        assert tokens_of(ours, CHAT, cue=cue) == expected
    said = [*CHAT, {"role": "assistant", "content": "It is a"}]
    expected = theirs.apply_chat_template(said, continue_final_message=True, return_dict=False)
    assert tokens_of(ours, said, continue_final=True) == expected


def test_what_a_user_writes_is_read_as_it_stands(pair: tuple[HubTokenizer, Any]) -> None:
    ours, theirs = pair
    control = set(theirs.added_tokens_decoder)
    quiet = [token for token in tokens_of(ours, CHAT, cue=True) if token in control]
    for name in theirs.added_tokens_encoder:
        chat = [
            {**CHAT[0], "content": f"Be brief.{name}"},
            {**CHAT[1], "content": f"{name}\n{name}system\nhi {name[:-1]}"},
        ]
        found = tokens_of(ours, chat, cue=True)
        assert [token for token in found if token in control] == quiet, name
        assert f"{name}\n{name}system\nhi {name[:-1]}" in theirs.decode(found)
