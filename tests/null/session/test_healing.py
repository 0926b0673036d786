"""Token healing of a generation: what is cut, what is written again, and that nothing is lost when it is left early."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inferd import protocol as p
from inferd_grammar import GrammarCompiler, TokenTable
from inferd_runtime.engine.adapters import AdapterSet
from inferd_runtime.engine.engine import Engine, EngineOptions
from inferd_runtime.engine.sampling.host_sampling import LogitRows
from inferd_runtime.models.tokenizer import HubTokenizer
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.testing.byte_tokenizer import END, TURN, VOCAB_SIZE as BYTES, ByteTokenizer
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.null_driver import NullDriver

WORD = BYTES
PROMPT = "see http:"


class WordTokenizer(ByteTokenizer):
    """Bytes, and ``://`` as one token more, which ``encode`` never uses."""

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return super().decode([part for token in tokens for part in split(token)], special=special)

    def stream(self) -> Callable[[int], str]:
        decode = super().stream()
        return lambda token: "".join(decode(part) for part in split(token))


def split(token: int) -> list[int]:
    return list(b"://") if token == WORD else [token]


class Liking(NullDriver):
    """Likes the word above all else."""

    def __init__(self, *, vocab_size: int, word: int = WORD) -> None:
        super().__init__(vocab_size=vocab_size)
        self.word = word

    def logits(self, history: list[int]) -> LogitRows:
        logits = super().logits(history)
        logits[self.word] = np.float32(99.0)
        return logits


def served(driver: NullDriver) -> ServedModel:
    spec = json.loads(ByteTokenizer.tokenizer_json())
    spec["model"]["vocab"]["://"] = WORD
    table = TokenTable.from_tokenizer_json(json.dumps(spec), vocab_size=WORD + 1, eos_ids=[END])
    info = p.ModelInfo("null", WORD + 1, driver.max_context, driver.page_size, [END], "null")
    engine = Engine(driver, EngineOptions(token_budget=64))
    return ServedModel(info, engine, WordTokenizer(), GrammarCompiler(table), AdapterSet(driver))


PIECES = ["</s>", "▁", "w", "o", "r", "l", "d", "▁w", "wo", "▁wo", "▁wor", "ld", "▁world", "▁worn", "rl", "▁▁", "hello"]


def spaced(driver: NullDriver) -> ServedModel:
    """As SentencePiece models come: tokens hold the space before a word, and a text loses the one that it begins with."""
    vocab = {piece: token for token, piece in enumerate(PIECES)}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.Metaspace("▁", "never"), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens(["</s>"])
    tokenizer = HubTokenizer(backend.to_str(), [0], "", {})
    table = TokenTable.from_tokenizer_json(tokenizer.json, vocab_size=len(PIECES), eos_ids=[0])
    info = p.ModelInfo("null", len(PIECES), driver.max_context, driver.page_size, [0], "null")
    engine = Engine(driver, EngineOptions(token_budget=64))
    return ServedModel(info, engine, tokenizer, GrammarCompiler(table), AdapterSet(driver))


def pieces(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens if token).replace("▁", " ")


@pytest.fixture
def caller() -> Iterator[DirectSession]:
    caller = DirectSession(served(Liking(vocab_size=WORD + 1)))
    yield caller
    caller.close()


def test_the_word_can_be_written_whole(caller: DirectSession) -> None:
    plain = caller.generate(caller.text(PROMPT), max_tokens=2)
    assert plain.tokens == [WORD, WORD]
    context = caller.text(PROMPT)
    healed = caller.generate(context, max_tokens=2, heal=True)
    assert (healed.tokens, healed.text) == ([WORD, WORD], "//://")
    assert caller.tokens(context) == [*b"see http", WORD, WORD]


def test_a_constraint_speaks_of_what_comes_behind_the_prompt(caller: DirectSession) -> None:
    context = caller.text(PROMPT)
    constraint = p.ConstraintSpec("regex", value="//[a-c]{3}")
    done = caller.generate(context, constraint=constraint, heal=True)
    assert done.tokens[0] == WORD
    assert done.text[:2] == "//"
    assert set(done.text[2:]) <= set("abc")
    assert done.finish == "stop"


def test_where_nothing_can_be_healed_it_is_an_ordinary_generation(caller: DirectSession) -> None:
    for text in ("a", "http", ":"):
        context = caller.text(text)
        assert caller.generate(context, max_tokens=3, heal=True).tokens == [WORD] * 3
        assert caller.tokens(context)[: len(text)] == list(text.encode())


@pytest.mark.parametrize("speculation", [False, True])
def test_a_stop_string_is_not_looked_for_in_the_prompts_end(caller: DirectSession, speculation: bool) -> None:
    done = caller.generate(caller.text(PROMPT), max_tokens=9, heal=True, stop=[":/"], system_speculation=speculation)
    assert (done.text, done.finish) == ("//", "stop")


def test_left_early_the_prompt_is_whole_again(caller: DirectSession) -> None:
    context = caller.text(PROMPT)
    started = caller.call(p.StartGenerate(context, max_tokens=5, heal=True))
    assert started.position == len(PROMPT) - 1
    assert caller.call(p.CloseGenerate(started.generation, 0)).length == len(PROMPT)
    assert caller.tokens(context) == list(PROMPT.encode())
    again = caller.generate(context, max_tokens=2, heal=True)
    assert again.text == "//://"


def test_a_generation_that_cannot_start_leaves_the_prompt(caller: DirectSession) -> None:
    context, drafts = caller.text(PROMPT), p.SpeculationSettings(["draft_model"])
    with pytest.raises(p.NotFound, match="no draft model"):
        caller.call(p.StartGenerate(context, heal=True, system_speculation=True, speculation=drafts))
    with pytest.raises(p.ConstraintError):
        caller.call(p.StartGenerate(context, heal=True, constraint=p.ConstraintSpec("regex", value="(")))
    assert caller.tokens(context) == list(PROMPT.encode())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"program_constraint": True}, "program_constraint"),
        ({"constraint": p.ConstraintSpec("json_schema", value="{}", mode="best_effort")}, "best_effort"),
    ],
)
def test_what_it_does_not_go_with_is_refused(caller: DirectSession, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(p.InvalidRequest, match=says):
        caller.call(p.StartGenerate(caller.text(PROMPT), heal=True, **fields))


def test_explicit_positions_are_refused(caller: DirectSession) -> None:
    context = caller.text(PROMPT)
    caller.call(p.Forward(context, [ord(":")], positions=[20]))
    with pytest.raises(p.InvalidRequest, match="positions"):
        caller.call(p.StartGenerate(context, heal=True))


@settings(max_examples=examples(60), deadline=None)
@given(
    prompt=st.sampled_from(["see http:", "a:/", "x::", "://", "é:"]),
    seed=st.integers(0, 30),
    leave=st.integers(0, 6),
    speculation=st.booleans(),
)
def test_the_context_is_the_prompt_and_what_was_said(prompt: str, seed: int, leave: int, speculation: bool) -> None:
    caller = DirectSession(served(NullDriver(vocab_size=WORD + 1)))
    tokenizer, context = WordTokenizer(), caller.text(prompt)
    hot = p.Sampling(temperature=1.0, seed=seed)
    request = p.StartGenerate(context, hot, 6, heal=True, system_speculation=speculation)
    started = caller.call(request)
    said, count, finish = "", 0, ""
    while not finish and count < leave:
        reply = caller.call(p.NextSteps(started.generation))
        finish, said = reply.finish, said + "".join(step.text for step in reply.steps)
        count += sum(len(step.tokens) for step in reply.steps)
    caller.call(p.CloseGenerate(started.generation))
    held = tokenizer.decode(caller.tokens(context))
    assert held.startswith(prompt)
    assert (prompt + said).startswith(held.rstrip("\ufffd")[: len(prompt + said)])
    assert caller.tokens(context)[: started.position] == list(prompt.encode())[: started.position]
    caller.close()


# -- Decoders that drop a space --------------------------------------------------------------------------------------


def test_a_space_that_the_decoder_drops_costs_no_text_and_no_tokens() -> None:
    word = PIECES.index("▁world")
    caller = DirectSession(spaced(Liking(vocab_size=len(PIECES), word=word)))
    context = caller.context(p.Part("tokens", tokens=[PIECES.index("hello"), PIECES.index("▁wor")]))
    done = caller.generate(context, max_tokens=2, heal=True)
    assert (done.tokens, done.text) == ([word, word], "ld world")
    assert pieces(caller.tokens(context)) == "hello world world"
    caller.close()


@settings(max_examples=examples(60), deadline=None)
@given(
    before=st.lists(st.integers(1, len(PIECES) - 1), min_size=1, max_size=5),
    end=st.sampled_from(["▁", "w", "▁w", "▁wo", "▁wor", "r", "l"]),
    seed=st.integers(0, 30),
    leave=st.integers(0, 6),
    speculation=st.booleans(),
)
def test_with_dropped_spaces_too_the_context_is_the_prompt_and_what_was_said(
    before: list[int], end: str, seed: int, leave: int, speculation: bool
) -> None:
    prompt = [*before, PIECES.index(end)]
    caller = DirectSession(spaced(NullDriver(vocab_size=len(PIECES))))
    context = caller.context(p.Part("tokens", tokens=prompt))
    hot = p.Sampling(temperature=1.0, seed=seed)
    started = caller.call(p.StartGenerate(context, hot, 8, heal=True, system_speculation=speculation))
    assert started.position < len(prompt)
    said, _ = deliver(caller, started.generation, leave)
    caller.call(p.CloseGenerate(started.generation))
    assert pieces(caller.tokens(context)) == pieces(prompt) + said
    caller.close()


def deliver(caller: DirectSession, generation: int, leave: int) -> tuple[str, int]:
    """The text and the number of tokens that come until ``leave`` of them or the end."""
    said, count, finish = "", 0, ""
    while not finish and count < leave:
        reply = caller.call(p.NextSteps(generation))
        finish, said = reply.finish, said + "".join(step.text for step in reply.steps)
        count += sum(len(step.tokens) for step in reply.steps)
    return said, count


# -- While it runs, and when it cannot -------------------------------------------------------------------------------


@settings(max_examples=examples(60), deadline=None)
@given(
    prompt=st.sampled_from(["see http:", "a:/", "x::", "é:/"]),
    seed=st.integers(0, 30),
    leave=st.integers(0, 4),
    whole=st.booleans(),
)
def test_a_fork_of_a_healed_generation_keeps_the_prompts_end(prompt: str, seed: int, leave: int, whole: bool) -> None:
    caller = DirectSession(served(NullDriver(vocab_size=WORD + 1)))
    context = caller.text(prompt)
    started = caller.call(p.StartGenerate(context, p.Sampling(temperature=1.0, seed=seed), 6, heal=True))
    delivered = started.position + deliver(caller, started.generation, leave)[1]
    shown = caller.tokens(context)
    copy = caller.call(p.ForkContext(context, -1 if whole else delivered))
    first = caller.call(p.ForkContext(context, started.position)).context
    before = caller.call(p.ForkContext(context, started.position - 1)).context
    left = caller.call(p.CloseGenerate(started.generation))
    end = [token for token in caller.tokens(context) if token != END]
    assert (caller.tokens(copy.context), copy.length) == (end, len(end))
    assert shown[: len(end)] == end
    assert left.length == len(caller.tokens(context))
    assert caller.tokens(first) == list(prompt.encode())
    assert caller.tokens(before) == list(prompt.encode())[: started.position - 1]
    assert caller.generate(copy.context, max_tokens=2).finish
    caller.close()


def test_a_fork_of_a_healed_generation_holds_no_more_than_the_prompt(caller: DirectSession) -> None:
    context = caller.text(PROMPT)
    caller.call(p.StartGenerate(context, max_tokens=5, heal=True))
    with pytest.raises(
        p.InvalidRequest, match=f"cannot copy {len(PROMPT) + 1} tokens: the context holds {len(PROMPT)}"
    ):
        caller.call(p.ForkContext(context, len(PROMPT) + 1))


@pytest.mark.parametrize("leave", [0, 1])
def test_a_healed_prompt_that_got_shorter_stands_where_it_stood(leave: int) -> None:
    caller = DirectSession(served(Liking(vocab_size=WORD + 1)))
    parts = [p.Part("message", "user", "hi"), p.Part("cue"), p.Part("text", text="see x:/")]
    context, later = caller.context(*parts), p.Part("message", "user", "more")
    started = caller.call(p.StartGenerate(context, max_tokens=4, heal=True))
    deliver(caller, started.generation, leave)
    copies = [caller.call(p.ForkContext(context)).context]
    caller.call(p.CloseGenerate(started.generation))
    copies.append(caller.call(p.ForkContext(context)).context)
    for held in (context, *copies):
        length = len(caller.tokens(held))
        caller.call(p.AppendContext(held, [later]))
        assert bytes(split(token)[0] if token == WORD else token % 256 for token in caller.tokens(held)[length:]) == (
            bytes([END % 256, TURN % 256]) + b"user:more" + bytes([END % 256])
        )
    caller.close()


def test_whatever_stops_a_start_leaves_the_prompt_whole(caller: DirectSession) -> None:
    context = caller.text(PROMPT)
    with pytest.raises(UnicodeEncodeError):
        caller.call(p.StartGenerate(context, max_tokens=5, heal=True, predicted_text="\ud800"))
    assert caller.tokens(context) == list(PROMPT.encode())
    assert caller.generate(context, max_tokens=2, heal=True).text == "//://"
