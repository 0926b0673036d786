"""Tools: functions that a model may call, and the loop in which it does so, :meth:`inferd.Context.run_tools`.

@inferd.tool
async def weather(city: str) -> str:
    \"\"\"Tell the weather.

    Args:
        city: its name, in English
    \"\"\"

answer = await Context().user("How is the weather in Oslo?").run_tools([weather]).collect()
"""

from __future__ import annotations

from inferd.tools.events import ToolAnswer, ToolEvent, ToolResult
from inferd.tools.function import ToolFunction, tool
from inferd.tools.options import ToolOptions
from inferd.tools.run import ToolRun

__all__ = ["ToolAnswer", "ToolEvent", "ToolFunction", "ToolOptions", "ToolResult", "ToolRun", "tool"]
