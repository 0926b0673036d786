"""OpenAI's routes: requests as OpenAI documents them, and as vLLM extends them; answers and errors in their shapes."""
