"""The real sandbox and the real engine under the supervisor: what the fakes cannot show."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from waiting import until

from inferd_runtime.sandbox.messages import Bundle
from inferd_runtime.sandbox.runner_build.component import ensure_runner
from inferd_runtime.server.programs.bundles import Program, make_program
from inferd_runtime.server.supervisor.commands import Commands, default_commands
from inferd_runtime.server.supervisor.held_runs import RunRequest
from inferd_runtime.server.supervisor.run_events import Ending
from inferd_runtime.server.supervisor.runs import Run
from inferd_runtime.server.supervisor.runtime import Runtime, open_runtime

from .conftest import fake_commands, settings_in

COUNT_SESSIONS = """
from inferd.protocol import CreateContext
from inferd.transport import current_transport

async def main() -> int:
    return (await current_transport().call(CreateContext())).length
"""
SLEEP = "import asyncio\nasync def main():\n    print('asleep')\n    await asyncio.sleep(600)\n"
GENERATE = """
from inferd import Context, Sampler

async def main(prompt: str, max_tokens: int = 8) -> int:
    count = 0
    async for step in Context().user(prompt).generate(Sampler.argmax(), max_tokens=max_tokens):
        print(step.text, end="", flush=True)
        count += len(step.tokens)
    return count
"""
DRAWS = """
import random
from inferd import Context, Sampler

async def main() -> str:
    text = await Context().user("Tell me.").generate(Sampler.multinomial(), max_tokens=8).collect_text()
    return f"{random.random()} {text}"
"""
SAVE = """
from inferd import Context, Sampler

async def main() -> str:
    ctx = Context().system("Repeat the text.").user("Nine green boats.")
    await (await ctx.flush()).save("boats")
    copy = await Context.from_bytes(await ctx.export())
    sampler = Sampler.multinomial(seed=3)
    return "".join([await c.generate(sampler, max_tokens=12).collect_text() for c in (ctx, copy)])
"""
OPEN = """
from inferd import Context, Sampler

async def main() -> str:
    ctx = await Context.open("boats")
    assert ctx.recomputed == 0 < ctx.restored
    text = await ctx.generate(Sampler.multinomial(seed=3), max_tokens=12).collect_text()
    return text * 2
"""
DECODE = """
from inferd import AttentionMask, Context, CustomSampler, Distribution, Entropy, Lark, Model, Regex, Sampler
from inferd.samplers import Dry, Guided, Typical, chain

async def beams(ctx: Context, width: int, length: int) -> int:
    first = (await ctx.forward([], probes=[Distribution(k=width)])).rows[0].probes[0]
    beams = [(await ctx.fork(), [token]) for token in first.tokens]
    for _ in range(length - 1):
        for fork, tokens in beams:
            tokens.append((await fork.forward(tokens[-1:])).rows[0].token)
    return len(beams)

async def main() -> dict:
    def best(candidates) -> int:
        return candidates.tokens[0]

    async def later(candidates) -> int:
        return candidates.tokens[0]

    plain = await Context().user("Hello").generate(Sampler.argmax(), max_tokens=8).collect_tokens()
    own = [await Context().user("Hello").generate(each, max_tokens=8).collect_tokens() for each in (best, later)]
    assert own == [plain, plain]
    ctx, made, opened = Context().user("Hello"), [], []
    async for step in ctx.generate(best, max_tokens=8, probes=[Entropy()]):
        made += step.tokens
        assert [each[0].value >= 0 for each in step.probes] == [True]
        await ctx.save("middle", overwrite=True)
    assert made == plain
    opened = await Context.open("middle", model=await Model.load())
    assert (await opened.tokens())[-len(plain):] == plain
    seeded = chain(Dry(), Typical(0.9), Guided(Context().user("x").cue(), 1.2), seed=3, k=64)
    text = await Context().user("Hello").generate(seeded, max_tokens=6, constrain=Regex("[a-z ]{1,4}")).collect_text()
    assert 0 < len(text) <= 4, text
    lark = Lark('%import python.HEX_NUMBER -> NUMBER\\nfirst.2: NUMBER', start="first")  # read by a library, in a sealed child
    text = await Context().user("Hello").generate(seeded, max_tokens=6, constrain=lark).collect_text()
    assert text[:2].lower() == "0x", text
    vocabulary = await (await Model.load()).tokenizer.vocabulary()
    words = await (await Model.load()).tokenizer.encode("a few words")
    assert b"".join(vocabulary[token] for token in words) == b"a few words"
    wide = Context()
    await wide.forward(words * 40, attention_mask=AttentionMask.window(16, sink=2))
    counted = await Context().append("one two").flush()
    return {"beams": await beams(counted, 3, 4), "prompt": counted.length}
"""
COUNT_BEAMS = (
    DECODE.partition("async def main")[0]
    + """
async def main() -> list[int]:
    ctx = Context().append("one two")
    return [await beams(ctx, 3, 4), ctx.length]
"""
)
PROMPT = json.dumps({"prompt": "Hello"})


async def ended(run: Run, seconds: float = 60) -> Ending:
    """How a run ends, within a time."""
    with anyio.fail_after(seconds):
        return await run.wait()


def program(source: str) -> Program:
    return make_program(Bundle("p", {"main.py": source}))


@pytest.fixture(scope="module")
async def runtime(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Runtime]:
    ensure_runner()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    async with open_runtime(settings_in(tmp_path_factory.mktemp("real"), threads=1)) as opened:
        yield opened


async def printed(run: Run) -> str:
    """All that a run prints on stdout."""
    return "".join([event.payload async for event in run.follow() if event.kind == "stdout"])


async def test_a_program_generates_with_the_embedded_model(runtime: Runtime) -> None:
    run = runtime.launch(program(GENERATE), PROMPT)
    text = await printed(run)
    ending = await ended(run)
    assert ending.error is None, ending.error
    assert text
    assert 0 < run.result <= 8
    assert ending.usage.tokens == run.result
    assert ending.usage.steps > 0
    assert ending.usage.peak_memory_mb > 1


async def test_the_same_program_again_prints_the_same(runtime: Runtime) -> None:
    texts = [await printed(runtime.launch(program(GENERATE), PROMPT)) for _ in range(2)]
    assert texts[0] == texts[1]


async def test_a_seed_holds_for_a_run_that_is_not_retry_safe(runtime: Runtime) -> None:
    async def drawn(seed: int | None) -> str:
        asked = RunRequest(program(DRAWS), "{}", runtime.settings.limits, seed=seed)
        return str((await ended(runtime.launch_request(asked, "default"))).result)

    seeded = {await drawn(7), await drawn(7)}
    assert len(seeded) == 1
    assert len({*seeded, await drawn(8), await drawn(None), await drawn(None)}) == 4


async def test_a_program_opens_what_another_saved(runtime: Runtime) -> None:
    saved = await ended(runtime.launch(program(SAVE), "{}"))
    opened = await ended(runtime.launch(program(OPEN), "{}"))
    assert saved.error is opened.error is None, (saved.error, opened.error)
    assert saved.result == opened.result != ""
    stranger = await ended(runtime.launch(program(OPEN), "{}", "stranger"))
    assert stranger.error is not None
    assert stranger.error.code == "client.not_found"


async def test_a_program_decodes_in_its_own_way(runtime: Runtime) -> None:
    ending = await ended(runtime.launch(program(DECODE), "{}"))
    assert ending.error is None, ending.error


async def test_a_beam_search_is_counted(runtime: Runtime) -> None:
    run = runtime.launch(program(COUNT_BEAMS), "{}")
    ending = await ended(run)
    assert ending.error is None, ending.error
    (beams, prompt), usage = run.result, ending.usage
    assert beams == 3
    assert (usage.prompt_tokens, usage.tokens, usage.steps) == (prompt + 3 * 3, 1 + 3 * 3, 1 + 3 * 3)


async def test_a_killed_engine_ends_its_runs_and_comes_back(runtime: Runtime) -> None:
    run = runtime.launch(program(SLEEP), "{}")
    await run.next_batch(1)
    assert runtime.engine.pid is not None
    os.kill(runtime.engine.pid, signal.SIGKILL)
    ending = await ended(run)
    assert ending.error is not None
    assert ending.error.code == "unavailable"
    assert "the engine was killed by SIGKILL" in ending.error.message
    await until(lambda: runtime.engine.pid is not None, seconds=60)
    again = await ended(runtime.launch(program(GENERATE), PROMPT))
    assert again.error is None


async def test_a_killed_worker_ends_its_runs_and_is_replaced(runtime: Runtime) -> None:
    run = runtime.launch(program(SLEEP), "{}")
    await run.next_batch(1)
    worker = runtime.fleet.pool.worker_of(run.id)
    assert worker is not None
    os.kill(runtime.fleet.pids[worker], signal.SIGKILL)
    ending = await ended(run)
    assert ending.error is not None
    assert (ending.error.code, ending.error.detail["process"]) == ("unavailable", worker)
    again = await ended(runtime.launch(program(GENERATE), PROMPT))
    assert again.error is None


async def test_the_sessions_of_a_killed_real_worker_are_closed_at_the_engine(tmp_path: Path) -> None:
    ensure_runner()
    settings = settings_in(tmp_path)
    commands = Commands(fake_commands().engine, default_commands(settings).worker)
    async with open_runtime(settings, commands) as runtime:
        sleeping = [runtime.launch(program(SLEEP), "{}") for _ in range(3)]
        for run in sleeping:
            await run.next_batch(1)
        counted = runtime.launch(program(COUNT_SESSIONS), "{}")
        await ended(counted)
        assert counted.result == 5  # the gateway's, three that sleep, and its own
        for pid in runtime.fleet.pids.values():
            os.kill(pid, signal.SIGKILL)
        for run in sleeping:
            await ended(run)

        async def only_two() -> bool:
            again = runtime.launch(program(COUNT_SESSIONS), "{}")
            await ended(again)
            return bool(again.result == 2)

        with anyio.fail_after(20):
            await until(only_two)
