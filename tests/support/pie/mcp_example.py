"""Calls a tool of an MCP server, if there is one."""

import json

from inferlet import mcp


async def main(input: dict) -> dict:
    name = input.get("server", "demo")
    servers = mcp.available_servers()
    if name not in servers:
        raise Exception(f"MCP server '{name}' is not registered (have: {servers})")
    server = mcp.connect(name)
    tools = json.loads(server.list_tools())["tools"]
    answer = json.loads(server.call_tool(tools[0]["name"], json.dumps({"text": input.get("text", "hello")})))
    assert answer["isError"] is False
    return {"tools": [tool["name"] for tool in tools], "text": answer["content"][0]["text"]}
