# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "chat"
# version = "0.1.0"
# serves = "chat"
# ///
"""Answer chat requests with the model itself: what stands behind the gateway's OpenAI and Anthropic routes."""

from inferd.chat import ChatRequest, answer


async def main(request: ChatRequest) -> None:
    """Write the answers to ``request``: text, reasoning and tool calls as they come, under the output format that it asks for."""
    await answer(request)
