"""``/v1/embeddings``: what is to be embedded, and the vectors as OpenAI writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from inferd.protocol.floats import unpack_floats
from inferd_runtime.server.dialects.exchange import ClientHeaders
from inferd_runtime.server.dialects.field_table import FieldTable, RequestField
from inferd_runtime.server.dialects.openai.common_fields import MAX_TOKEN, Name
from inferd_runtime.server.dialects.openai.completion_fields import Prompt, read_prompts
from inferd_runtime.server.dialects.reading import as_kind, read_object
from inferd_runtime.server.dialects.refusals import refusal

MAX_INPUTS = 2048


class EmbeddingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that work."""

    model: Name
    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=MAX_TOKEN)] | None = None
    truncation_side: Literal["left"] | None = None


EMBEDDING_FIELDS = FieldTable(
    (
        RequestField("model", "a served model; required"),
        RequestField("input", f"a string, token ids, or up to {MAX_INPUTS} strings or lists of token ids; none empty"),
        RequestField("encoding_format", "float (the default), or base64: 32-bit floats, little-endian"),
        RequestField("dimensions", "only the model's own number of dimensions"),
        RequestField("user", "the client's own"),
        RequestField("truncate_prompt_tokens", "the last so many tokens of each input; -1: as many as the model takes"),
        RequestField("truncation_side", "left, with truncate_prompt_tokens"),
        RequestField("add_special_tokens", "inputs begin as the model expects it", (True,)),
        RequestField("priority", "embeddings have none", (0,)),
        RequestField("embed_dtype", "vectors have 32 bits", ("float32",)),
        RequestField("endianness", "vectors are written little-endian", ("little",)),
    )
)


@dataclass(frozen=True)
class EmbeddingQuery:
    """What is to be embedded. ``dimensions`` None: the client did not say. ``truncate``: the last so many tokens of each input,
    -1: as many as the model takes, None: all. ``id``: of the answer.
    """

    model: str
    inputs: list[Prompt]
    base64: bool = False
    dimensions: int | None = None
    truncate: int | None = None
    id: str = ""

    def cut(self, tokens: list[int], max_context: int) -> list[int]:
        """Return the last tokens of an input, as many as the request says."""
        most = max_context if self.truncate is None or self.truncate < 0 else self.truncate
        return tokens[-most:]

    def check_dimensions(self, dimensions: int) -> None:
        """Raises InvalidRequest if the client asks for another number of dimensions than the model has."""
        if self.dimensions not in (None, dimensions):
            raise refusal("dimensions", f"the model's vectors have {dimensions}, and are not cut", "unsupported_value")


def read_embeddings(body: bytes, headers: ClientHeaders) -> EmbeddingQuery:
    """Return the query of a request. Raises InvalidRequest, which names the field."""
    asked: EmbeddingFields = as_kind(EMBEDDING_FIELDS.take(read_object(body)), EmbeddingFields)
    if asked.truncate_prompt_tokens == 0:
        raise refusal("truncate_prompt_tokens", "at least 1, or -1")
    inputs = read_prompts(asked.input, "input", most=MAX_INPUTS)
    is_base64 = asked.encoding_format == "base64"
    answer = f"embd-{headers.request_id}"
    return EmbeddingQuery(asked.model, inputs, is_base64, asked.dimensions, asked.truncate_prompt_tokens, answer)


def embeddings_body(query: EmbeddingQuery, packed: Sequence[str], tokens: int) -> bytes:
    """Return the answer's JSON: one vector for each input, in order. ``tokens``: of all inputs together.

    ``packed`` are vectors of :func:`~inferd.protocol.floats.pack_floats`, as OpenAI writes base64; the ``id`` is vLLM's:
    Mistral's client wants one. Two million numbers take 0.2 s: call this in a thread. They are written vector by vector, so that
    other threads have turns meanwhile.
    """
    written = packed if query.base64 else [msgspec.Raw(msgspec.json.encode(unpack_floats(each))) for each in packed]
    data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(written)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return msgspec.json.encode({"id": query.id, "object": "list", "data": data, "model": query.model, "usage": usage})
