"""A served model without weights, for tests of sessions and of everything above them."""

from __future__ import annotations

from inferd.protocol import ModelInfo
from inferd_grammar import GrammarCompiler, TokenTable
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.testing.byte_tokenizer import END, VOCAB_SIZE, ByteTokenizer
from inferd_runtime.testing.null_driver import NullDriver


def null_model(
    name: str = "null", *, driver: NullDriver | None = None, options: EngineOptions | None = None
) -> ServedModel:
    """A NullDriver behind a byte tokenizer."""
    driver = driver or NullDriver(vocab_size=VOCAB_SIZE)
    table = TokenTable.from_tokenizer_json(ByteTokenizer.tokenizer_json(), vocab_size=VOCAB_SIZE, eos_ids=[END])
    info = ModelInfo(name, VOCAB_SIZE, driver.max_context, driver.page_size, [END], "null")
    engine = Engine(driver, options or EngineOptions(token_budget=64))
    return ServedModel(info, engine, ByteTokenizer(), GrammarCompiler(table), AdapterSet(driver))
