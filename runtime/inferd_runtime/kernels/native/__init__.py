"""What the CPU computes in code of our own, in C: compiled where a compiler is, and done without everywhere else."""
