"""Every operation of the gateway, once: what the document is made of. A test compares the list with the routing table."""

from __future__ import annotations

from typing import Any

from inferd.protocol.files import FileBegun, FilePiece
from inferd_runtime.server.dialects.anthropic.fields import (
    COUNT_TOKENS_FIELDS,
    MESSAGES_FIELDS,
    CountTokensBody,
    MessagesBody,
)
from inferd_runtime.server.dialects.anthropic.model_list import (
    LIFECYCLES,
    LISTED as MODELS_LISTED,
    MAX_LISTED as MOST_MODELS_LISTED,
)
from inferd_runtime.server.dialects.openai.chat_fields import CHAT_FIELDS, ChatFields
from inferd_runtime.server.dialects.openai.completion_fields import COMPLETION_FIELDS, CompletionFields
from inferd_runtime.server.dialects.openai.embeddings import EMBEDDING_FIELDS, EmbeddingFields
from inferd_runtime.server.dialects.openai.tokens import (
    DETOKENIZE_FIELDS,
    TOKENIZE_FIELDS,
    DetokenizeFields,
    TokenizeConversation,
    TokenizeFields,
)
from inferd_runtime.server.dialects.responses.fields import (
    INCLUDED,
    INPUT_TOKENS_FIELDS,
    RESPONSES_FIELDS,
    InputTokensBody,
    ResponsesBody,
)
from inferd_runtime.server.dialects.responses.stored import LISTED, MAX_LISTED
from inferd_runtime.server.dialects.routes import ANTHROPIC_HEADER
from inferd_runtime.server.gateway.requests import MAX_KEY, FileBody, FilePieceBody, LaunchBody, MessageBody
from inferd_runtime.server.openapi import (
    anthropic_answers as anthropic,
    openai_answers as openai,
    own_answers as own,
    responses_answers as responses,
)
from inferd_runtime.server.openapi.operation import Operation, OperationAnswer, OperationParameter
from inferd_runtime.server.programs.parser_messages import UploadBody
from inferd_runtime.session.wire import FoundSlowStep, WatchedCycle

NDJSON = "application/x-ndjson"
OWN, CHAT, MODELS, RESPONSES = "runtime", "chat", "models", "responses"
MEASURE: dict[str, Any] = {"type": "number", "minimum": 0}
SESSION = OperationParameter(
    "x-session-id", "names a conversation, which stays in the cache between its requests", {"type": "string"}, "header"
)
INCLUDE = OperationParameter("include", "what to include", {"enum": list(INCLUDED)})
FOR_ANTHROPIC = OperationParameter(
    ANTHROPIC_HEADER, "with it answers and errors are in Anthropic's shape", {"type": "string"}, "header"
)
MODEL_PAGE = (
    OperationParameter(
        "limit", f"Anthropic's: models on a page, {MODELS_LISTED} by default",
        {"type": "integer", "minimum": 1, "maximum": MOST_MODELS_LISTED},
    ),
    OperationParameter("after_id", "Anthropic's: the model before the first", {"type": "string"}),
    OperationParameter("before_id", "Anthropic's: the model behind the last, without after_id", {"type": "string"}),
    OperationParameter("lifecycle", "Anthropic's: every model is active", {"enum": list(LIFECYCLES)}),
)  # fmt: skip
ANSWERED = (404, 409, 504)
"""Errors of a request that names a model, behind which a run may be that somebody cancels, or that takes too long."""


def _says(note: str, kind: Any) -> dict[int, OperationAnswer]:
    return {200: OperationAnswer(note, kind)}


def _streams(note: str, kind: Any, event: Any) -> dict[int, OperationAnswer]:
    return {200: OperationAnswer(note, kind, stream=event)}


RUNTIME_OPERATIONS = (
    Operation(
        method="GET", path="/livez", tag=OWN, summary="The process is alive", public=True, answers=_says("Alive", own.Liveness)
    ),
    Operation(
        method="GET", path="/readyz", tag=OWN, summary="Would launches work now?",
        answers={**_says("They would", own.Readiness), 503: OperationAnswer("They would not", own.Readiness)},
    ),
    Operation(
        method="GET", path="/health", tag=OWN, summary="The same as /readyz, where tools for vLLM ask",
        answers={**_says("They would", own.Readiness), 503: OperationAnswer("They would not", own.Readiness)},
    ),
    Operation(
        method="GET", path="/version", tag=OWN, summary="Versions of inferd and of its protocol", public=True,
        answers=_says("The versions", own.Versions),
    ),
    Operation(
        method="GET", path="/openapi.json", tag=OWN, summary="This document",
        answers=_says("An OpenAPI document", dict),
    ),
    Operation(
        method="GET", path="/metrics", tag=OWN, summary="Figures for Prometheus, for an admin unless the settings say for all",
        answers={200: OperationAnswer("Prometheus' text format", media="text/plain")}, errors=(403,),
    ),
    Operation(
        method="GET", path="/v1/tenants", tag=OWN, summary="Quotas and use: of all tenants for an admin, else the tenant's own",
        answers=_says("The tenants", own.TenantStates),
    ),
    Operation(
        method="POST", path="/v1/tenants/{tenant}/stop", tag=OWN, summary="Ask all that a tenant runs to end; for an admin",
        answers={202: OperationAnswer("How many there are", own.StoppedTenant)}, errors=(403,),
    ),
    Operation(
        method="GET", path="/v1/slow-step", tag=OWN, errors=(403,),
        summary="Wait for a slow step of the engine, and tell where its time went; for an admin",
        parameters=(
            OperationParameter("over_ms", "milliseconds of a slow step, 50 by default", {**MEASURE, "maximum": 1e6}),
            OperationParameter("seconds", "how long to wait, 10 by default", {**MEASURE, "maximum": 60}),
        ),
        answers=_says("The step, or null", FoundSlowStep),
    ),
    Operation(
        method="GET", path="/v1/speculation/cycles", tag=OWN, summary="What speculation does for the tenant, from now on",
        answers={200: OperationAnswer("A line or event for each step", media="", stream=WatchedCycle, lines=NDJSON)},
    ),
    Operation(
        method="GET", path="/v1/programs", tag=OWN, summary="The tenant's programs",
        answers=_says("Newest first", own.ProgramList),
    ),
    Operation(
        method="POST", path="/v1/programs", tag=OWN, summary="Upload a program", body=(UploadBody,), errors=(422, 507),
        answers={
            200: OperationAnswer("It was there already", own.UploadedProgram),
            201: OperationAnswer("It is kept", own.UploadedProgram),
        },
    ),
    Operation(
        method="GET", path="/v1/programs/{reference}", tag=OWN, summary="A program with its interface", errors=(422,),
        answers=_says("The program", own.ShownProgram),
    ),
    Operation(
        method="DELETE", path="/v1/programs/{reference}", tag=OWN, summary="Remove a version of a program, or all of them",
        answers=_says("How many were removed", own.RemovedPrograms),
    ),
    Operation(
        method="GET", path="/v1/runs", tag=OWN, summary="The tenant's runs", answers=_says("Newest first", own.RunList)
    ),
    Operation(
        method="POST", path="/v1/runs", tag=OWN, summary="Launch a program", body=(LaunchBody,), errors=(404, 422, 507),
        parameters=(
            OperationParameter(
                "idempotency-key", "a launch with the same key is answered with the same run",
                {"type": "string", "minLength": 1, "maxLength": MAX_KEY, "pattern": "^[ -~]+$"}, "header",
            ),
        ),
        answers={
            200: OperationAnswer("The run of an earlier launch with the same key", own.ShownRun),
            201: OperationAnswer("The run", own.ShownRun),
        },
    ),
    Operation(
        method="GET", path="/v1/runs/{run}", tag=OWN, summary="A run with its result", answers=_says("The run", own.ShownRun)
    ),
    Operation(
        method="GET", path="/v1/runs/{run}/events", tag=OWN, summary="A run's events, past and to come",
        parameters=(
            OperationParameter("from", "the first event, 0 by default", {"type": "string", "pattern": "^[0-9]{1,18}$"}),
            OperationParameter("follow", "false: only what has happened so far", {"enum": ["true", "false"]}),
            OperationParameter(
                "last-event-id", "the event before the first, without from", {"type": "string", "pattern": "^[0-9]{1,18}$"},
                "header",
            ),
        ),
        answers={200: OperationAnswer("A line or event for each", media="", stream=own.ShownEvent, lines=NDJSON)},
    ),
    Operation(
        method="POST", path="/v1/runs/{run}/cancel", tag=OWN, summary="End a run",
        answers={202: OperationAnswer("The run when it is over, or as it is after two seconds", own.ShownRun)},
    ),
    Operation(
        method="POST", path="/v1/runs/{run}/messages", tag=OWN, summary="Hand a message to a run", body=(MessageBody,),
        answers={202: OperationAnswer("The run has it", own.DeliveredMessage)},
    ),
    Operation(
        method="GET", path="/v1/runs/{run}/files", tag=OWN, summary="The files that a program has sent",
        answers=_says("The files that are still there", own.SentFiles),
    ),
    Operation(
        method="POST", path="/v1/runs/{run}/files", tag=OWN, summary="Announce a file for a program", body=(FileBody,),
        answers={201: OperationAnswer("Its number: its bytes may come", FileBegun)},
    ),
    Operation(
        method="GET", path="/v1/runs/{run}/files/{number}", tag=OWN, summary="Bytes of a file that a program has sent",
        parameters=(OperationParameter("offset", "the first byte, 0 by default", {"type": "integer", "minimum": 0}),),
        answers=_says("The bytes, and whether they are the last", FilePiece),
    ),
    Operation(
        method="POST", path="/v1/runs/{run}/files/{number}", tag=OWN, summary="A file's next bytes", body=(FilePieceBody,),
        answers={202: OperationAnswer("They are kept", own.TakenPiece)},
    ),
    Operation(
        method="GET", path="/v1/session", tag=OWN, summary="A script's session: a handshake of a WebSocket",
        answers={101: OperationAnswer("The WebSocket is open", media="")}, errors=(404,),
    ),
)  # fmt: skip
CHAT_OPERATIONS = (
    Operation(
        method="POST", path="/v1/chat/completions", tag=CHAT, summary="Answer a conversation, in OpenAI's shape",
        body=(ChatFields,), fields=CHAT_FIELDS, parameters=(SESSION,), errors=ANSWERED,
        answers=_streams("The answers", openai.ChatCompletion, openai.ChatCompletionChunk),
    ),
    Operation(
        method="POST", path="/v1/completions", tag=CHAT, summary="Go on behind prompts, in OpenAI's shape",
        body=(CompletionFields,), fields=COMPLETION_FIELDS, parameters=(SESSION,), errors=ANSWERED,
        answers=_streams("The texts", openai.TextCompletion, openai.TextCompletion),
    ),
    Operation(
        method="POST", path="/v1/messages", tag=CHAT, summary="Answer a conversation, in Anthropic's shape",
        body=(MessagesBody,), fields=MESSAGES_FIELDS, parameters=(SESSION,), errors=ANSWERED,
        answers=_streams("The message", anthropic.AnsweredMessage, anthropic.MessageEvent),
    ),
    Operation(
        method="POST", path="/v1/messages/count_tokens", tag=CHAT, summary="Count the tokens of a request of /v1/messages",
        body=(CountTokensBody,), fields=COUNT_TOKENS_FIELDS, errors=ANSWERED,
        answers=_says("The number", anthropic.CountedTokens),
    ),
)  # fmt: skip
RESPONSES_OPERATIONS = (
    Operation(
        method="POST", path="/v1/responses", tag=RESPONSES, summary="Make a response", body=(ResponsesBody,),
        fields=RESPONSES_FIELDS, parameters=(SESSION,), errors=ANSWERED,
        answers=_streams("The response", responses.ShownResponse, responses.ResponseEvent),
    ),
    Operation(
        method="GET", path="/v1/responses", tag=RESPONSES, summary="Responses over a WebSocket: its handshake",
        answers={101: OperationAnswer("The WebSocket is open", media="")}, errors=(405,),
    ),
    Operation(
        method="POST", path="/v1/responses/input_tokens", tag=RESPONSES,
        summary="Count the tokens of a request of /v1/responses", body=(InputTokensBody,), fields=INPUT_TOKENS_FIELDS,
        errors=ANSWERED, answers=_says("The number", responses.CountedInput),
    ),
    Operation(
        method="GET", path="/v1/responses/{response}", tag=RESPONSES, summary="A response that is stored",
        parameters=(
            INCLUDE,
            OperationParameter("stream", "true: the events of one with background and stream", {"enum": ["true", "false"]}),
            OperationParameter("starting_after", "with stream: the number before the first", {"type": "integer", "minimum": 0}),
            OperationParameter("include_obfuscation", "only false", {"enum": ["false"]}),
        ),
        answers=_streams("The response", responses.ShownResponse, responses.ResponseEvent),
    ),
    Operation(
        method="DELETE", path="/v1/responses/{response}", tag=RESPONSES, summary="Forget a response",
        answers=_says("It is forgotten", responses.DeletedResponse),
    ),
    Operation(
        method="POST", path="/v1/responses/{response}/cancel", tag=RESPONSES,
        summary="End a response that is answered in the background",
        answers=_says("The response as it is now", responses.ShownResponse),
    ),
    Operation(
        method="GET", path="/v1/responses/{response}/input_items", tag=RESPONSES,
        summary="A response's input, and all that was said before",
        parameters=(
            INCLUDE,
            OperationParameter(
                "limit", f"items on a page, {LISTED} by default", {"type": "integer", "minimum": 1, "maximum": MAX_LISTED}
            ),
            OperationParameter("order", "desc by default", {"enum": ["asc", "desc"]}),
            OperationParameter("after", "the item before the first", {"type": "string"}),
        ),
        answers=_says("A page", responses.ResponseItems),
    ),
)  # fmt: skip
MODEL_OPERATIONS = (
    Operation(
        method="GET", path="/v1/models", tag=MODELS, summary="What clients may name as their model",
        parameters=(FOR_ANTHROPIC, *MODEL_PAGE),
        answers={200: OperationAnswer("The names", openai.ModelList, other=anthropic.AnthropicModelPage)},
    ),
    Operation(
        method="GET", path="/v1/models/{model}", tag=MODELS, summary="One of them", parameters=(FOR_ANTHROPIC,),
        answers={200: OperationAnswer("The model", openai.ShownModel, other=anthropic.AnthropicModel)},
    ),
    Operation(
        method="POST", path="/v1/embeddings", tag=MODELS, summary="A vector for each input", body=(EmbeddingFields,),
        fields=EMBEDDING_FIELDS, errors=ANSWERED, answers=_says("The vectors", openai.EmbeddingList),
    ),
    Operation(
        method="POST", path="/v1/chat/completions/render", tag=MODELS, summary="A chat request's prompt, as the model reads it",
        body=(ChatFields,), errors=ANSWERED, answers=_says("The prompt", openai.RenderedPrompt),
    ),
    Operation(
        method="POST", path="/tokenize", tag=MODELS, summary="The tokens of a text or a conversation",
        body=(TokenizeFields, TokenizeConversation), fields=TOKENIZE_FIELDS, errors=ANSWERED,
        answers=_says("The tokens", openai.Tokenized),
    ),
    Operation(
        method="POST", path="/detokenize", tag=MODELS, summary="The text of tokens", body=(DetokenizeFields,),
        fields=DETOKENIZE_FIELDS, errors=ANSWERED, answers=_says("The text", openai.Detokenized),
    ),
    Operation(
        method="GET", path="/tokenizer_info", tag=MODELS, summary="Special tokens and chat template of a model's tokenizer",
        parameters=(OperationParameter("model", "a served model; the default without it", {"type": "string"}),),
        errors=(404,), answers=_says("The tokenizer", openai.ToldTokenizer),
    ),
)  # fmt: skip
OPERATIONS = (*RUNTIME_OPERATIONS, *CHAT_OPERATIONS, *RESPONSES_OPERATIONS, *MODEL_OPERATIONS)
