"""Programs that start programs: who descends from whom, and what they may use together."""
