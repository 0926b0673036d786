"""The inferd runtime: engine, KV cache, models, speculation, sandbox, sessions and server. See docs/architecture.md."""

__version__ = "0.1.0"
