"""Rules about JSON that a library's grammar cannot hold: they read the text as it is written, and narrow its masks.

`RuledCore` (`core.py`) puts them around a backend's core. Each rule is told of every token and taken back with it.
"""
