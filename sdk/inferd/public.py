"""What ``import inferd`` offers, in one place: loaded when a name of it is asked for first."""

from __future__ import annotations

from inferd.adapter import Adapter as Adapter
from inferd.attention import AttentionMask as AttentionMask
from inferd.children import Child as Child, launch as launch
from inferd.constraints import (
    AllOf as AllOf,
    Exact as Exact,
    Gbnf as Gbnf,
    JsonText as JsonText,
    Lark as Lark,
    StepConstraint as StepConstraint,
    Tag as Tag,
    Tagged as Tagged,
    TaggedSpan as TaggedSpan,
)
from inferd.context import Context as Context
from inferd.custom_sampler import Candidates as Candidates, CustomSampler as CustomSampler
from inferd.generation import Generator as Generator
from inferd.grammar import Grammar as Grammar, Matcher as Matcher
from inferd.masks import TokenMask as TokenMask
from inferd.model import Model as Model, Tokenizer as Tokenizer
from inferd.partial import Partial as Partial
from inferd.probes import (
    Distribution as Distribution,
    Entropy as Entropy,
    Logits as Logits,
    Logprob as Logprob,
    Logprobs as Logprobs,
)
from inferd.protocol import (
    Cancelled as Cancelled,
    CheckedKeyword as CheckedKeyword,
    ClientError as ClientError,
    ConstraintError as ConstraintError,
    ConstraintViolated as ConstraintViolated,
    EndOfMessages as EndOfMessages,
    Forbidden as Forbidden,
    IdempotencyKeyReused as IdempotencyKeyReused,
    InferdError as InferdError,
    InternalError as InternalError,
    InvalidRequest as InvalidRequest,
    LimitExceeded as LimitExceeded,
    NotFound as NotFound,
    ProgramError as ProgramError,
    ProgramSyntaxError as ProgramSyntaxError,
    ReasoningSpec as ReasoningSpec,
    SnapshotDamaged as SnapshotDamaged,
    SnapshotForeign as SnapshotForeign,
    Step as Step,
    TokenLogprob as TokenLogprob,
    Truncated as Truncated,
    Unauthorized as Unauthorized,
    Unavailable as Unavailable,
)
from inferd.protocol.speculation import Verification as Verification
from inferd.sampling import Sampler as Sampler
from inferd.schema import AnyJson as AnyJson, Choice as Choice, JsonSchema as JsonSchema, Regex as Regex
from inferd.spec_config import SpecConfig as SpecConfig
from inferd.speculation import DraftTree as DraftTree, Speculator as Speculator
from inferd.speculation_stats import (
    SourceStats as SourceStats,
    SpeculationCycle as SpeculationCycle,
    SpeculationStats as SpeculationStats,
)
from inferd.tools import tool as tool
from inferd.vocabulary import TokenVocabulary as TokenVocabulary
