"""The request of ``/v1/completions``: its fields, and what they become."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, TypeAlias, TypeGuard

from msgspec import Meta

from inferd.chat import ChatRequest
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.common_fields import (
    COMMON_FIELDS,
    MAX_TOKEN,
    CommonFields,
    checked_request,
    common_request,
)
from inferd_runtime.server.dialects.openai.messages import HINTS
from inferd_runtime.server.dialects.reading import as_kind
from inferd_runtime.server.dialects.refusals import refusal

DEFAULT_MAX_TOKENS = 16
MAX_PROMPTS = 128
MAX_LOGPROBS = 20
Prompt: TypeAlias = str | list[int]


class CompletionFields(CommonFields, kw_only=True, forbid_unknown_fields=True):
    """The fields that work."""

    prompt: str | list[str | int | list[int]]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


COMPLETION_FIELDS = FieldTable(
    (
        RequestField(
            "prompt", f"a string, token ids, or up to {MAX_PROMPTS} strings or lists of token ids, n answers for each"
        ),
        *COMMON_FIELDS,
        RequestField("max_tokens", f"at least 1, or 0 with echo; {DEFAULT_MAX_TOKENS} by default"),
        RequestField("logprobs", f"0 to {MAX_LOGPROBS}: log-probabilities, and so many of the most likely tokens"),
        RequestField("echo", "the text begins with the prompt; with logprobs its tokens are scored, too"),
        RequestField("best_of", "only n itself: a program can choose among answers (best-of-n)"),
        RequestField("add_special_tokens", "true (the default): a text prompt begins as the model expects it"),
        RequestField("thinking_token_budget", "there is no reasoning here", (-1,)),
        RequestField("suffix", "no text is filled in", ("",)),
        RequestField("prompt_embeds", "prompts are text or token ids", ()),
    )
)


def read_completion_fields(value: dict[str, Any]) -> CompletionFields:
    """Return the fields of a request. Raises InvalidRequest, which names the field."""
    return as_kind(COMPLETION_FIELDS.take(value), CompletionFields, hints=HINTS)


def completion_requests(asked: CompletionFields, headers: ClientHeaders) -> list[ChatRequest]:
    """Return a neutral request for each prompt. Raises InvalidRequest, which names the field."""
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise refusal("best_of", "only n itself is supported: a program can choose among answers", "unsupported_value")
    if asked.max_tokens == 0 and not asked.echo:
        raise refusal("max_tokens", "0 needs echo: true")
    if asked.max_tokens == 0 and asked.logprob_token_ids:
        raise refusal("logprob_token_ids", "needs max_tokens: the prompt's tokens are told with the most likely ones")
    if asked.echo and asked.truncate_prompt_tokens is not None:
        raise refusal("truncate_prompt_tokens", "does not go with echo")
    request = replace(
        common_request(asked, headers),
        max_tokens=DEFAULT_MAX_TOKENS if asked.max_tokens is None else asked.max_tokens,
        logprobs=asked.logprobs,
        echo=bool(asked.echo),
        bare_prompt=asked.add_special_tokens is False,
    )
    prompts = read_prompts(asked.prompt, "prompt")
    if asked.return_token_ids and len(prompts) > 1:
        raise refusal("return_token_ids", "works with one prompt at a time", "unsupported_value")
    return [checked_request(replace(request, prompt=prompt)) for prompt in prompts]


def read_prompts(given: str | list[str | int | list[int]], param: str, most: int = MAX_PROMPTS) -> list[Prompt]:
    """Return the texts and token lists that ``given`` holds.

    Raises InvalidRequest for a mix of kinds, for an empty one, for none, and for more than ``most``.
    """
    if isinstance(given, str) or _are_tokens(given):
        return [_prompt(given, param)]
    if len(given) > most:
        raise refusal(param, f"at most {most} in one request")
    prompts: list[Prompt] = []
    for index, each in enumerate(given):
        place = f"{param}[{index}]"
        if isinstance(each, int) or isinstance(each, str) != isinstance(given[0], str):
            raise refusal(place, "texts, token ids and lists of token ids do not go together", "invalid_type")
        prompts.append(_prompt(each, place))
    return prompts


def _are_tokens(given: list[str | int | list[int]]) -> TypeGuard[list[int]]:
    return {*map(type, given)} <= {int}  # there may be a million: nothing here looks at each of them in Python


def _prompt(prompt: Prompt, place: str) -> Prompt:
    """Raises InvalidRequest for an empty one, and for a number that is no token id."""
    if not prompt:
        raise refusal(place, "must not be empty")
    if not isinstance(prompt, str) and not (min(prompt) >= 0 and max(prompt) <= MAX_TOKEN):
        index = next(index for index, token in enumerate(prompt) if not 0 <= token <= MAX_TOKEN)
        raise refusal(f"{place}[{index}]", "not a token id")
    return prompt
