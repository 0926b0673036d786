"""Every operation that crosses a wall, defined once: requests with their replies, one module per family.

The sandbox carries these dataclasses as JSON, the network and the engine link as msgpack. Standard library only, because this
package is part of the sandboxed runner. Adding an operation = one dataclass in its family here, one handler in the runtime's
``session/operations``, one method in the SDK; what the gateway answers (``by_gateway=True``) has its handler in
``server/services``. What a request must hold that no model decides is checked by a ``check_...`` function beside its
dataclass: the SDK calls it before it sends, the runtime when it receives.
"""

from __future__ import annotations

# Every family of operations is known where the protocol is: each registers its own.
from inferd.protocol import files as files, http as http, launches as launches, mcp as mcp, topics as topics
from inferd.protocol.adapters import (
    AdapterInfo as AdapterInfo,
    Adapters as Adapters,
    DropAdapter as DropAdapter,
    ListAdapters as ListAdapters,
    LoadAdapter as LoadAdapter,
    Upload as Upload,
    UploadAdapter as UploadAdapter,
)
from inferd.protocol.candidates import (
    MAX_CANDIDATES as MAX_CANDIDATES,
    CandidateRow as CandidateRow,
    check_candidates as check_candidates,
)
from inferd.protocol.carrying import cut as cut, shown as shown
from inferd.protocol.chat import (
    ChatFormat as ChatFormat,
    GetChatFormat as GetChatFormat,
    RenderChat as RenderChat,
    RenderedChat as RenderedChat,
    chat_texts as chat_texts,
    check_render_chat as check_render_chat,
)
from inferd.protocol.codec import reply_from_plain as reply_from_plain, set_fields as set_fields, to_plain as to_plain
from inferd.protocol.contexts import (
    AppendContext as AppendContext,
    ContextState as ContextState,
    ContextTokens as ContextTokens,
    CreateContext as CreateContext,
    FlushContext as FlushContext,
    ForkContext as ForkContext,
    Part as Part,
    ReleaseContext as ReleaseContext,
    TruncateContext as TruncateContext,
    check_append as check_append,
    check_context_tokens as check_context_tokens,
    check_create as check_create,
    check_truncate as check_truncate,
)
from inferd.protocol.errors import (
    ERRORS as ERRORS,
    Cancelled as Cancelled,
    ClientError as ClientError,
    ConstraintError as ConstraintError,
    ConstraintViolated as ConstraintViolated,
    EndOfMessages as EndOfMessages,
    ErrorInfo as ErrorInfo,
    Forbidden as Forbidden,
    IdempotencyKeyReused as IdempotencyKeyReused,
    InferdError as InferdError,
    InternalError as InternalError,
    InvalidRequest as InvalidRequest,
    LimitExceeded as LimitExceeded,
    NotFound as NotFound,
    ProgramError as ProgramError,
    ProgramSyntaxError as ProgramSyntaxError,
    SnapshotDamaged as SnapshotDamaged,
    SnapshotForeign as SnapshotForeign,
    Truncated as Truncated,
    Unauthorized as Unauthorized,
    Unavailable as Unavailable,
    known_code as known_code,
)
from inferd.protocol.generation import (
    MOST_JOINED as MOST_JOINED,
    MOST_STEPS as MOST_STEPS,
    CloseGenerate as CloseGenerate,
    GenerationStarted as GenerationStarted,
    NextSteps as NextSteps,
    ReasoningSpec as ReasoningSpec,
    StartGenerate as StartGenerate,
    Step as Step,
    Steps as Steps,
    check_next_steps as check_next_steps,
    check_start_generate as check_start_generate,
    check_step_mask as check_step_mask,
)
from inferd.protocol.grammar import (
    MAX_ACCEPT as MAX_ACCEPT,
    MAX_CHECKED as MAX_CHECKED,
    MAX_FORCED as MAX_FORCED,
    AcceptTokens as AcceptTokens,
    AllowedTokens as AllowedTokens,
    CheckedKeyword as CheckedKeyword,
    CompiledGrammar as CompiledGrammar,
    CompileGrammar as CompileGrammar,
    ConstraintSpec as ConstraintSpec,
    Forced as Forced,
    ForkMatcher as ForkMatcher,
    GetForced as GetForced,
    GetMask as GetMask,
    MatcherState as MatcherState,
    OpenMatcher as OpenMatcher,
    ReleaseGrammar as ReleaseGrammar,
    RollbackMatcher as RollbackMatcher,
    TagConstraint as TagConstraint,
    check_accept as check_accept,
    check_constraint as check_constraint,
    check_constraint_fields as check_constraint_fields,
    check_rollback as check_rollback,
)
from inferd.protocol.models import (
    Detokenize as Detokenize,
    GetTokenizerInfo as GetTokenizerInfo,
    GetVocabulary as GetVocabulary,
    ListModels as ListModels,
    ModelInfo as ModelInfo,
    Models as Models,
    PackedVocabulary as PackedVocabulary,
    Text as Text,
    TokenBytes as TokenBytes,
    Tokenize as Tokenize,
    TokenizerInfo as TokenizerInfo,
    TokenPieces as TokenPieces,
    Tokens as Tokens,
    check_detokenize as check_detokenize,
)
from inferd.protocol.notes import DeleteNote as DeleteNote, GetNote as GetNote, Note as Note, PutNote as PutNote
from inferd.protocol.operations import (
    GATEWAY_OPERATIONS as GATEWAY_OPERATIONS,
    OPERATIONS as OPERATIONS,
    Done as Done,
    operation as operation,
)
from inferd.protocol.passes import (
    MAX_LOGPROB_TOKENS as MAX_LOGPROB_TOKENS,
    MAX_LOGPROBS as MAX_LOGPROBS,
    Embed as Embed,
    Embeddings as Embeddings,
    Forward as Forward,
    ForwardResult as ForwardResult,
    Probe as Probe,
    ProbeResult as ProbeResult,
    PromptLogprobs as PromptLogprobs,
    RowResult as RowResult,
    TokenLogprob as TokenLogprob,
    TokenLogprobs as TokenLogprobs,
    TokenProbes as TokenProbes,
    check_embed as check_embed,
    check_forward as check_forward,
    check_mask_allows as check_mask_allows,
    check_prompt_logprobs as check_prompt_logprobs,
)
from inferd.protocol.sampling import MAX_BIASES as MAX_BIASES, Sampling as Sampling, check_sampling as check_sampling
from inferd.protocol.session import (
    GetUsage as GetUsage,
    Received as Received,
    ReceiveMessage as ReceiveMessage,
    SendMessage as SendMessage,
    Usage as Usage,
)
from inferd.protocol.snapshots import (
    MAX_EXPORT_BYTES as MAX_EXPORT_BYTES,
    MAX_SCRIPT_MESSAGE as MAX_SCRIPT_MESSAGE,
    MAX_SNAPSHOTS as MAX_SNAPSHOTS,
    DeleteSaved as DeleteSaved,
    ExportContext as ExportContext,
    Exported as Exported,
    ImportContext as ImportContext,
    ListSaved as ListSaved,
    Opened as Opened,
    OpenSaved as OpenSaved,
    SaveContext as SaveContext,
    SavedContext as SavedContext,
    SavedContexts as SavedContexts,
    TakeSaved as TakeSaved,
    check_export_size as check_export_size,
    check_import as check_import,
    check_snapshot_name as check_snapshot_name,
)
from inferd.protocol.speculation import (
    MAX_DRAFT as MAX_DRAFT,
    SOURCES as SOURCES,
    VERIFIERS as VERIFIERS,
    SourceCount as SourceCount,
    SpeculationSettings as SpeculationSettings,
    Verification as Verification,
    VerifyDraft as VerifyDraft,
    check_settings as check_settings,
    check_tree as check_tree,
    check_verify as check_verify,
)

PROTOCOL_VERSION = 1
