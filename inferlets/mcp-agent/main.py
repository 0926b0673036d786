# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "mcp-agent"
# version = "0.2.0"
# mcp = ["tools"]
# ///
"""An agent over a server of tools (MCP): the model calls the server's tools, reads their results, and answers."""

from typing import Any

from inferd import Context, LimitExceeded, mcp
from inferd.tools import ToolAnswer, ToolResult

MOST_TOKENS = 120
MOST_RESULT = 2000
"""Characters of a result that the model reads: it is a stranger's text."""


def told(result: ToolResult) -> dict[str, Any]:
    """Return a call with its result, as the agent tells of it. The arguments stay text: the model may write any number."""
    return {
        "tool": result.call.name,
        "arguments": result.call.arguments,
        "result": result.text,
        "failed": result.is_error,
    }


async def main(
    task: str = "What is 17 plus 25?", server: str = "tools", most_calls: int = 3, tool_choice: str = "auto"
) -> dict[str, Any]:
    """Answer a task with the tools of a server. Returns the answer, and every call with its result."""
    calls: list[dict[str, Any]] = []
    answer = ""
    async with mcp.connect(server) as toolbox, Context() as ctx:
        ctx.system("Answer in one sentence. Use the tools where they help.").user(task)
        run = ctx.run_tools(
            await toolbox.tools(),
            tool_choice=tool_choice,
            parallel=False,
            max_calls=most_calls,
            max_tokens=MOST_TOKENS,
            max_result=MOST_RESULT,
        )
        try:
            async for event in run:
                if isinstance(event, ToolResult):
                    calls.append(told(event))
                    print(f"{event.call.name} {event.call.arguments} = {event.text}", flush=True)
                elif isinstance(event, ToolAnswer):
                    answer = event.text
        except LimitExceeded as error:
            answer = f"(ended: {error.message})"
    return {"answer": answer, "calls": calls}
