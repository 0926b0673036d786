"""inferlet: Pie 0.4's names over inferd's operations, so that Pie's Python programs run unchanged.

What each name does here, and which are refused, is in ``docs/guides/pie.md``. Programs that are written for this runtime use
``import inferd``.
"""

from __future__ import annotations

from inferlet import chat, http, mcp, messaging, model, reasoning, runtime, scheduling, session, tools, zo
from inferlet.adapter import Adapter
from inferlet.connection import connect
from inferlet.context import Context
from inferlet.forward import Forward
from inferlet.generation import Generator, GenStep
from inferlet.grammar import AnyJson, Constraint, Ebnf, Grammar, GrammarConstraint, JsonSchema, Matcher, Regex, Schema
from inferlet.media import Audio, Image, Speech, SpeechBuilder, Video, write_wav
from inferlet.model import Model, Tokenizer
from inferlet.output import Output, ProbeHandle, SampleHandle
from inferlet.refused import NotOffered
from inferlet.returned import get_return_value, set_return
from inferlet.sample import Distribution, Entropy, Logits, Logprob, Logprobs, Sampler
from inferlet.spec import Speculator

__all__ = [
    "Adapter", "AnyJson", "Audio", "Constraint", "Context", "Distribution", "Ebnf", "Entropy", "Forward", "GenStep",
    "Generator", "Grammar", "GrammarConstraint", "Image", "JsonSchema", "Logits", "Logprob", "Logprobs", "Matcher", "Model",
    "NotOffered", "Output", "ProbeHandle", "Regex", "SampleHandle", "Sampler", "Schema", "Speculator", "Speech",
    "SpeechBuilder", "Tokenizer", "Video", "chat", "connect", "get_return_value", "http", "mcp", "messaging", "model",
    "reasoning", "runtime", "scheduling", "session", "set_return", "tools", "write_wav", "zo",
]  # fmt: skip
