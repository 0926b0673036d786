"""Backends: one module per grammar library. Each is imported only when it is chosen, so that an optional one may be absent."""
