"""Eight prompts of each kind for the benchmark of speculation. None of them is in the toy model's training data.

The toy ends all of the chats by itself. It copies lists and writes records well; what it makes of an edit is a copy with a
part left out, which is what an edit looks like to a drafter. Its greedy prose runs in circles, so prose is sampled.
"""

from __future__ import annotations

import json
from random import Random

from prompts import PERSON, Prompt

COUNT = 8
WORDS = [
    "alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliett", "kilo", "lima", "mike",
    "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango",
]  # fmt: skip
PEOPLE = [
    ("Ingrid Solberg", 63, "Varnes"), ("Selma Okafor", 52, "Dunmere"), ("Hugo Tanaka", 26, "Kestrel"),
    ("Mara Delacroix", 38, "Belport"), ("Odessa Brandt", 47, "Port Ellery"), ("Teo Marchetti", 29, "Tamsin"),
    ("Rufus Albarn", 35, "Marlow"), ("Viktor Lindqvist", 41, "Ostvik"),
]  # fmt: skip
FUNCTION = '''def {name}({first}, {second}):
    """Return the {name} of a {thing}."""
    if {first} < 0 or {second} < 0:
        raise ValueError("negative")
    return {first} * {second}
'''
FUNCTIONS = [
    ("area", "rectangle", "width", "height"), ("speed", "journey", "distance", "time"),
    ("share", "total", "part", "whole"), ("ratio", "pair", "first", "second"), ("power", "load", "current", "voltage"),
    ("price", "product", "amount", "rate"), ("cost", "trip", "days", "fare"), ("dose", "patient", "weight", "factor"),
]  # fmt: skip
OPENINGS = [
    "The statement raises an exception if the value cannot be converted. Otherwise, it returns",
    "A class definition is an executable statement. The name of the class is",
    "When the file has been read to its end, the next call",
    "The arguments are evaluated from left to right before",
    "If the name is not found in the local scope,",
    "An iterator is an object that represents a stream of",
    "The module provides access to the variables that are",
    "Every thread has its own copy of the context, so that",
]
SCHEMA = json.dumps(PERSON)


def copies() -> list[Prompt]:
    """Lists of words in different orders, to be repeated."""
    lists = [", ".join(Random(seed).sample(WORDS, 12)) for seed in range(COUNT)]
    return [Prompt("copy", "Repeat the text.", text, max_tokens=96) for text in lists]


def records() -> list[Prompt]:
    """A record as lines, to be written as JSON under a schema."""
    ask = "Extract the name, the age, the city and the email."
    lines = ["\n".join((*_lines(person), f"email: {_email(person)}")) for person in PEOPLE]
    return [Prompt("json", ask, text, schema=SCHEMA, max_tokens=96) for text in lines]


def edits() -> list[Prompt]:
    """A function in which a name is to be replaced."""
    edited = []
    for name, thing, first, second in FUNCTIONS:
        code = FUNCTION.format(name=name, thing=thing, first=first, second=second)
        edited.append(Prompt("code", f"Replace {first} by length.", code, max_tokens=96))
    return edited


def agents() -> list[Prompt]:
    """Four turns of one conversation: a tool's output comes in, the arguments of the next call go out."""
    ask = "Extract the name, the age and the city."
    looped = [["\n".join(_lines(PEOPLE[(at + turn) % COUNT])) for turn in range(4)] for at in range(COUNT)]
    return [Prompt("agent", ask, first, more=tuple(rest), max_tokens=64) for first, *rest in looped]


def prose(temperature: float = 0.8) -> list[Prompt]:
    """Openings of texts, continued with the noise of a seed."""
    return [Prompt("prose", raw=text, max_tokens=80, temperature=temperature) for text in OPENINGS]


def _lines(person: tuple[str, int, str]) -> list[str]:
    name, age, city = person
    return [f"name: {name}", f"age: {age}", f"city: {city}"]


def _email(person: tuple[str, int, str]) -> str:
    name, _, city = person
    return f"{name.lower().replace(' ', '.')}@{city.lower().split()[-1]}.example"
