"""Models that were proved before: what the proof found is kept, and the next start goes without transformers."""
