"""The HTTP dialects of LLM clients: what they ask as a :class:`~inferd.chat.ChatRequest`, and answers in their shapes. Nothing
is read or sent here: the gateway's routes do that.
"""
