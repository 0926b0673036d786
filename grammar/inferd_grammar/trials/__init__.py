"""Trial compiles in a child process, which can be stopped when a constraint takes too much."""
