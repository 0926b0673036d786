# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "mcp-agent"
# version = "0.1.0"
# mcp = ["tools"]
# ///
"""An agent over a server of tools (MCP): the model chooses a tool, writes its arguments, reads the result, and answers."""

import json
from typing import Any

from inferd import Choice, Context, JsonSchema, Sampler, mcp
from inferd.protocol.mcp import McpTool

ANSWER = "answer"
SYSTEM = "You have tools. To use one, write its name, then its arguments as JSON. When you know enough, write answer."
MOST_ARGUMENTS = 120
MOST_RESULT = 2000
"""Characters of a result that the model reads: it is a stranger's text."""


def described(tools: list[McpTool]) -> str:
    """Return the tools as the model reads them."""
    lines = [f"- {tool.name}: {tool.description} {json.dumps(tool.parameters.get('properties', {}))}" for tool in tools]
    return "\n".join([SYSTEM, *lines])


async def chosen(ctx: Context, names: list[str]) -> str:
    """Return the name that the model writes: a tool's, or ``answer``. It can write nothing else."""
    return await ctx.generate(Sampler.argmax(), max_tokens=32, constrain=Choice([*names, ANSWER])).collect_text()


async def arguments_for(ctx: Context, tool: McpTool) -> dict[str, Any]:
    """Return the arguments that the model writes: they hold the tool's schema."""
    constraint = JsonSchema(tool.parameters, soft_max_length=60, soft_max_items=4)
    ctx.append("\n")
    value: dict[str, Any] = await ctx.generate(
        Sampler.argmax(), max_tokens=MOST_ARGUMENTS, constrain=constraint
    ).collect_json()
    return value


async def main(task: str = "What is 17 plus 25?", server: str = "tools", most_calls: int = 3) -> dict[str, Any]:
    """Answer a task with the tools of a server. Returns the answer, and every call with its result."""
    calls: list[dict[str, Any]] = []
    async with mcp.connect(server) as toolbox, Context() as ctx:
        tools = {tool.name: tool for tool in await toolbox.list_tools()}
        ctx.system(described(list(tools.values()))).user(task)
        for _ in range(most_calls):
            ctx.cue()
            name = await chosen(ctx, list(tools))
            if name == ANSWER:
                break
            arguments = await arguments_for(ctx, tools[name])
            result = await toolbox.call_tool(name, arguments)
            text = mcp.text_of(result)[:MOST_RESULT]
            print(f"{name}({json.dumps(arguments)}) = {text}", flush=True)
            calls.append({"tool": name, "arguments": arguments, "result": text, "failed": result.is_error})
            ctx.user(f"{name} answered: {text}")
        ctx.user("Now answer the task in one sentence.")
        answer = await ctx.generate(Sampler.argmax(), max_tokens=64).collect_text()
    return {"answer": answer, "calls": calls}
