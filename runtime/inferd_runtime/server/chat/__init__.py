"""What answers a chat request: the built-in program in this process, or an uploaded one in the sandbox. Both send events."""
