"""Pie's names against a real session, with a driver that does no maths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from inferd.protocol import ConstraintError, InvalidRequest, NotFound, Unavailable
from inferd.protocol.mcp import McpConnected, McpItems, McpServers, McpTool, McpToolResult, McpTools
from inferd.testing import FakeRuntime
from inferd.transport import restore_transport, transport_in_force, use_transport
from inferd_runtime.kv.snapshot_folder import SnapshotFolder
from inferd_runtime.kv.snapshots import SnapshotStore
from inferd_runtime.testing.direct import DirectSession
from inferd_runtime.testing.served import null_model
from inferd_runtime.testing.transport import DirectTransport, run_program
from inferlet import (
    Context,
    Distribution,
    Entropy,
    Grammar,
    GrammarConstraint,
    JsonSchema,
    Logits,
    Logprob,
    Matcher,
    Model,
    Regex,
    Sampler,
    chat,
    get_return_value,
    mcp,
    model,
    reasoning,
    runtime,
    set_return,
    tools,
)
from inferlet.run_lengths import intersection, number_of, runs_of

COLOR = json.dumps(
    {"type": "object", "properties": {"c": {"enum": ["red", "blue"]}}, "required": ["c"], "additionalProperties": False}
)


def run(program: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return run_program(program)


def test_blocking_calls_work_inside_a_running_event_loop() -> None:
    async def main() -> tuple[list[str], str, bool]:
        model = Model.load(runtime.models()[0])
        tokenizer = model.tokenizer()
        ids, pieces = tokenizer.vocabs()
        assert pieces[ids.index(104)] == b"h"
        assert tokenizer.special_tokens() == ([256, 257], [b"<end>", b"<turn>"])
        with pytest.raises(NotFound, match="no model 'gpt-9'"):
            Model.load("gpt-9")
        return runtime.models(), tokenizer.decode(tokenizer.encode("hi<end>")), model.default_system_speculation()

    assert run(main) == (["null"], "hi<end>", False)


def test_programs_that_know_one_model_leave_it_out() -> None:
    class Own:
        def build_constraint(self) -> GrammarConstraint:
            return GrammarConstraint.from_grammar(Grammar.json())

    async def main() -> None:
        named = Model.load()
        assert model.name() == named.name
        assert model.decode(model.encode("hi")) == "hi"
        assert chat.system("s") == chat.system(named, "s") == chat.system(named, message="s")
        assert (chat.user("u"), chat.cue(), chat.stop_tokens()) == (
            chat.user(named, "u"), chat.cue(named), chat.stop_tokens(named),
        )  # fmt: skip
        assert tools.answer_prefix("f", {"a": 1}) == tools.answer_prefix(named, "f", {"a": 1})
        assert not Matcher(Grammar.json()).is_terminated
        with pytest.raises(TypeError, match="a model and a name"):
            Context.open(named)
        text = await Context().user("u").generate(Sampler.argmax(), constrain=Own(), max_tokens=40).collect_text()
        json.loads(text)
        set_return("said")
        assert get_return_value() == "said"

    run(main)


def test_turns_are_the_templates_own() -> None:
    async def main() -> list[str]:
        model = Model.load()
        decode = model.tokenizer().decode
        parts = [
            chat.system(model, "s"),
            chat.user(model, "u"),
            chat.cue(model),
            chat.seal(model),
            chat.assistant(model, "a"),
        ]
        ctx = Context(model).system("s").user("u").cue()
        assert ctx.buffer() == [*parts[0], *parts[1], *parts[2]]
        assert ctx.seal().append([65]).buffer()[-2:] == [256, 65]
        return [decode(part) for part in parts]

    assert run(main) == [
        *("<turn>system:s<end>", "<turn>user:u<end>", "<turn>assistant:", "<end>", "<turn>assistant:a<end>"),
    ]


def test_a_generation_by_itself_and_by_hand_are_the_same() -> None:
    async def main() -> None:
        first = Context(Model.load()).user("q")
        by_hand, by_probe = first.fork(), first.fork()
        tokens = await first.generate(Sampler.argmax(), max_tokens=6).collect_tokens()
        stepped: list[int] = []
        async for step in by_hand.generate(Sampler.argmax(), max_tokens=6):
            stepped += (await step.execute()).tokens
        assert stepped == tokens
        await by_probe.cue().flush()
        generator = by_probe.generate(Sampler.argmax(), max_tokens=6, auto_flush=False)
        chosen: list[int] = []
        async for step in generator:
            handle = step.clear_sampler().probe(0, Distribution(k=1))
            found = (await step.execute()).distribution(handle)
            assert found is not None
            chosen += generator.accept(found[0])
        assert (chosen, generator.is_done, generator.tokens_generated) == (tokens, True, 6)
        assert first.seq_len == by_hand.seq_len == by_probe.seq_len
        assert first.buffer() == by_hand.buffer() == by_probe.buffer() == tokens[-1:]

    run(main)


def test_stop_tokens_are_left_out_and_the_context_holds_all_before() -> None:
    async def main() -> None:
        ctx = Context(Model.load()).user("q")
        twin = ctx.fork()
        tokens = await ctx.generate(Sampler.argmax(), max_tokens=6).collect_tokens()
        generator = twin.generate(Sampler.argmax(), max_tokens=6, stop=[tokens[3]])
        end = tokens.index(tokens[3])
        assert await generator.collect_tokens() == tokens[:end]
        assert twin.buffer() == []
        assert twin.seq_len == ctx.seq_len - 5 + end

    run(main)


def test_probes_of_a_step_and_of_every_step() -> None:
    async def main() -> None:
        generator = Context(Model.load()).user("q").generate(Sampler.argmax(), max_tokens=2)
        each = generator.probe_each_step(0, Entropy())
        async for step in generator:
            once = step.probe(0, Logprob(3))
            out = await step.execute()
            assert out.entropy(each) is not None
            assert len(out.logprobs(once) or []) == 1
            assert out.auto_sampler is not None
            assert out.token(out.auto_sampler) == out.tokens[0]
            assert (out.logits(each), out.distribution(once), out.token(each)) == (None, None, None)  # type: ignore[arg-type]

    run(main)


def test_a_step_is_executed_once_and_before_the_next() -> None:
    async def main() -> None:
        generator = Context(Model.load()).user("q").generate(Sampler.argmax(), max_tokens=3)
        step = await anext(generator)
        with pytest.raises(InvalidRequest, match="execute"):
            await anext(generator)
        await step.execute()
        with pytest.raises(InvalidRequest, match="was executed"):
            await step.execute()

    run(main)


def test_constraints_hold_together() -> None:
    async def main() -> Any:
        other = json.dumps({**json.loads(COLOR), "properties": {"c": {"enum": ["blue", "green"]}}})
        generator = (
            Context(Model.load()).user("q").generate(Sampler.argmax(), constrain=JsonSchema(COLOR), max_tokens=40)
        )
        return await generator.collect_json(schema=other)

    assert run(main) == {"c": "blue"}


def test_json_is_complete_within_the_tokens_that_there_are() -> None:
    async def main() -> Any:
        schema = json.dumps({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
        ctx = Context(Model.load()).user("q")
        generator = ctx.generate(Sampler.argmax(), constrain=JsonSchema(schema), max_tokens=20)
        found = await generator.collect_json(schema=schema)
        assert (generator.is_done, generator.tokens_generated <= 20) == (True, True)
        return found

    assert set(run(main)) == {"text"}


def test_drafts_of_the_runtime_change_no_token() -> None:
    async def main() -> None:
        ctx = Context(Model.load()).user("q")
        twin, stepped = ctx.fork(), ctx.fork()
        tokens = await ctx.generate(Sampler.argmax(), max_tokens=9).collect_tokens()
        drafted = twin.generate(Sampler.argmax(), max_tokens=9, system_speculation=True)
        assert await drafted.collect_tokens() == tokens
        by_hand = stepped.generate(Sampler.argmax(), max_tokens=9, system_speculation=True).disable_system_speculation()
        assert [token async for step in by_hand for token in (await step.execute()).tokens] == tokens
        assert (twin.seq_len, twin.buffer()) == (ctx.seq_len, ctx.buffer()) == (stepped.seq_len, stepped.buffer())

    run(main)


def test_a_constraint_of_the_programs_own_and_a_fixed_mask() -> None:
    async def main() -> list[list[int]]:
        model = Model.load()

        class Digits:
            def __init__(self) -> None:
                self.seen: list[list[int]] = []

            def step(self, accepted: list[int]) -> list[int]:
                self.seen.append(accepted)
                return [48, 10, 200]

        digits = Digits()
        generator = (
            Context(model)
            .user("q")
            .generate(Sampler.multinomial(), constrain=[digits, Regex("[0-9a-f]{3}")], logit_mask=[0, 55], max_tokens=3)
        )
        tokens = await generator.collect_tokens()
        assert all(48 <= token < 55 for token in tokens)
        assert digits.seen == [[], tokens[:1], tokens[1:2]]
        with pytest.raises(TypeError, match="build_constraint"):
            Context(model).generate(Sampler.argmax(), constrain=object())  # type: ignore[arg-type]
        return digits.seen

    run(main)


def test_matchers_accept_mask_and_begin_anew() -> None:
    async def main() -> None:
        model = Model.load()
        matcher = Matcher(Grammar.from_ebnf('root ::= "ab" | "ac"'), model.tokenizer())
        assert number_of(matcher.next_token_logit_mask()) == 1 << ord("a")
        matcher.accept_tokens([ord("a")])
        assert number_of(matcher.next_token_logit_mask()) == (1 << ord("b")) | (1 << ord("c"))
        with pytest.raises(ConstraintError, match="does not allow the token 122"):
            matcher.accept_tokens([122])
        matcher.accept_tokens([ord("b"), 256])
        assert matcher.is_terminated
        matcher.reset()
        assert not matcher.is_terminated
        lark = GrammarConstraint.from_ebnf('start: "x" | "y"', model)
        assert number_of(lark.step([])) == (1 << ord("x")) | (1 << ord("y"))

    run(main)


def test_run_lengths_begin_with_what_is_forbidden() -> None:
    assert runs_of(number_of([2, 3, 1]), 6) == [2, 3, 1]
    assert runs_of(number_of([0, 2, 4]), 6) == [0, 2, 4]
    assert intersection([[0, 4, 2], [], [2, 4]]) == 0b1100
    assert intersection([[], []]) is None
    with pytest.raises(ValueError, match="run lengths"):
        number_of([-1])


class Parrot:
    """Drafts the next tokens of a text that it was told, and a wrong one behind them."""

    def __init__(self, known: list[int]) -> None:
        self.known = known
        self.accepted: list[int] = []
        self.dropped = 0

    def draft(self) -> tuple[list[int], list[int]]:
        at = len(self.accepted)
        tokens = [*self.known[at : at + 2], 1]
        return tokens, list(range(at, at + len(tokens)))

    def accept(self, tokens: list[int]) -> None:
        self.accepted += tokens

    def rollback(self, n: int) -> None:
        self.dropped += n

    def reset(self) -> None:
        self.accepted.clear()


def test_a_speculators_drafts_change_no_token() -> None:
    async def main() -> None:
        plain = Context(Model.load()).user("q")
        drafted = plain.fork()
        tokens = await plain.generate(Sampler.argmax(), max_tokens=7).collect_tokens()
        parrot = Parrot(tokens)
        steps = 0
        generator = drafted.generate(Sampler.argmax(), max_tokens=7, speculator=parrot)
        found: list[int] = []
        async for step in generator:
            found += (await step.execute()).tokens
            steps += 1
        assert found == tokens
        assert (steps, parrot.accepted[:7], parrot.dropped) == (3, tokens, steps)
        assert (drafted.seq_len, drafted.buffer()) == (plain.seq_len, plain.buffer())
        with pytest.raises(ValueError, match="mutually exclusive"):
            plain.generate(Sampler.argmax(), speculator=parrot, system_speculation=True)

    run(main)


def test_a_pass_samples_probes_and_masks() -> None:
    async def main() -> None:
        ctx = Context(Model.load()).append([1, 2, 3])
        await ctx.flush()
        fwd = ctx.forward().input([4, 5, 6]).attention_mask([[0, 2, 100], [0, 100], [1, 99]]).mask([60, 4])
        drawn = fwd.sample([0, 2], Sampler.argmax())
        logits, ranked = fwd.probe(1, Logits()), fwd.probe(2, Distribution(1.0, 4))
        assert (drawn.slot, drawn.arity, logits.slot, logits.kind, ranked.slot) == (0, 2, 2, "logits", 3)
        out = await fwd.execute()
        assert all(60 <= token < 64 for token in out.tokens_at(drawn))
        assert len(out.logits(logits) or b"") == 258 * 4
        found = out.distribution(ranked)
        assert found is not None
        assert sorted(found[0]) == [60, 61, 62, 63]
        assert (ctx.seq_len, out.tokens, out.auto_sampler) == (6, [], None)
        ctx.truncate(4)
        assert ctx.seq_len == 2
        with pytest.raises(ValueError, match="cannot drop"):
            ctx.truncate(3)
        with pytest.raises(ValueError, match="no inputs and no slots"):
            await ctx.forward().execute()

    run(main)


def test_tokens_at_positions_are_seen_in_their_pass_alone() -> None:
    async def main() -> None:
        ctx = Context(Model.load()).append([1, 2, 3])
        await ctx.flush()
        fwd = ctx.forward().input([4]).input_at([5, 6], [4, 5])
        handle = fwd.sample([2], Sampler.argmax())
        assert (await fwd.execute()).token(handle) is not None
        assert ctx.seq_len == 4
        with pytest.raises(ValueError, match="same length"):
            ctx.forward().input_at([1], [])
        kept = await ctx.forward().input([9]).defer_commit().execute()
        assert (kept.tokens, ctx.seq_len) == ([], 4)

    run(main)


def test_a_pass_without_tokens_looks_at_the_end() -> None:
    async def main() -> None:
        ctx = Context(Model.load()).user("q").cue()
        twin = ctx.fork()
        await ctx.flush()
        fwd = ctx.forward()
        handle = fwd.sample([0], Sampler.argmax())
        token = (await fwd.execute()).token(handle)
        assert [token] == await twin.generate(Sampler.argmax(), max_tokens=1, auto_flush=False).collect_tokens()

    run(main)


def test_decoders_tell_text_ends_and_calls_apart() -> None:
    async def main() -> None:
        model = Model.load()
        encode = model.tokenizer().encode
        shown = chat.Decoder(model)
        whole = encode("hé")
        assert shown.feed(whole[:2]) == chat.Event.Delta("h")
        assert shown.feed([]) == chat.Event.Idle()
        assert shown.feed(whole[2:]) == chat.Event.Delta("é")
        assert shown.feed([257]) == chat.Event.Interrupt(257)
        assert shown.feed([33, 256]) == chat.Event.Done("hé!")
        assert reasoning.Decoder(model).feed(whole) == reasoning.Event.Idle()
        calls = tools.Decoder(model)
        assert calls.feed(encode('<tool_call>{"name": "f", "argu')) == tools.Event.Start()
        assert calls.feed(encode('ments": {"x": 3}}')) == tools.Event.Call("f", '{"x": 3}')
        assert calls.feed(encode("</tool_call>")) == tools.Event.Start()

    run(main)


def test_tools_are_told_answered_and_held_to_their_schemas() -> None:
    async def main() -> None:
        model = Model.load()
        decode = model.tokenizer().decode
        schema = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {"enum": [1]}}}}
        told = decode(tools.equip_prefix(model, [json.dumps(schema)]))
        assert told.startswith("<turn>tools:[")
        assert told.endswith("<end>")
        assert decode(tools.answer_prefix(model, "f", {"a": 1})) == '<turn>tool:{"a": 1}<end>'
        matcher = tools.native_matcher(model, [schema])
        assert matcher is not None
        matcher.accept_tokens(model.tokenizer().encode("<tool_call>"))
        assert tools.native_matcher(model, []) is None
        assert tools.native_matcher(model, ["no schema"]) is None

    run(main)


def test_saved_contexts_open_fork_and_end(tmp_path: Path) -> None:
    async def main() -> None:
        model = Model.load()
        ctx = Context(model).user("q")
        await ctx.flush()
        ctx.append([7]).save("any name: 1")
        with pytest.raises(InvalidRequest):
            ctx.save("any name: 1")
        opened = Context.open(model, "any name: 1")
        assert opened is not None
        assert (opened.seq_len, opened.buffer()) == (ctx.seq_len, [])
        taken = Context.take(model, ctx.snapshot())
        assert taken is not None
        assert Context.open(model, "not there") is None
        with pytest.raises(NotFound):
            Context.open("not there")
        again = Context.open("any name: 1")
        assert again is not None
        assert again.seq_len == ctx.seq_len
        Context.delete("any name: 1")
        with pytest.raises(NotFound):
            Context.delete(model, "any name: 1")

    transport = DirectTransport()
    store = SnapshotStore(SnapshotFolder(tmp_path / "snapshots", 1 << 20))
    transport.direct = DirectSession(null_model(), snapshots=store)
    try:
        with transport_in_force(transport):
            asyncio.run(main())
    finally:
        transport.direct.close()
        store.close()


def test_contexts_that_are_dropped_are_released() -> None:
    async def main() -> None:
        model = Model.load()
        for _ in range(5):
            await Context(model).user("q").flush()
        with Context(model) as ctx:
            held = ctx
        with pytest.raises(InvalidRequest, match="released"):
            held.fork()
        with held.idle():
            held.set_bid(1.0)

    run(main)


def test_a_connection_that_cannot_block_says_so() -> None:
    with FakeRuntime(), pytest.raises(Unavailable, match="inferlet blocks"):
        runtime.models()


class Played:
    """Answers each request with what is said for its type."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    async def call(self, request: Any) -> Any:
        return self.call_blocking(request)

    def call_blocking(self, request: Any) -> Any:
        return self.answers[type(request).__name__]


def test_mcp_answers_are_json_as_the_protocol_writes_it() -> None:
    token = use_transport(
        Played(
            ListMcpServers=McpServers(["demo"]),
            ConnectMcp=McpConnected("demo"),
            ListMcpTools=McpTools([McpTool("echo", "Says it.", {"type": "object"})]),
            CallMcpTool=McpToolResult([{"type": "text", "text": "hi"}]),
            ListMcpPrompts=McpItems([{"name": "p"}]),
            GetMcpPrompt=McpItems([{"role": "user"}], "d"),
        )
    )
    try:
        server = mcp.connect(mcp.available_servers()[0])
        (tool,) = json.loads(server.list_tools())["tools"]
        assert tool == {"name": "echo", "description": "Says it.", "inputSchema": {"type": "object"}}
        answer = json.loads(server.call_tool("echo", '{"text": "hi"}'))
        assert answer == {"content": [{"type": "text", "text": "hi"}], "isError": False}
        assert json.loads(server.list_prompts()) == {"prompts": [{"name": "p"}]}
        assert json.loads(server.get_prompt("p")) == {"description": "d", "messages": [{"role": "user"}]}
        with pytest.raises(InvalidRequest, match="JSON object"):
            server.call_tool("echo", "[]")
    finally:
        restore_transport(token)
