"""Draft models on other machines: the frames, the hand-shake, what each side checks of the other, and the two ends."""
