"""Generated examples for the tiny model: turns that copy, extract, edit and look things up.

The tiny model has to copy from its context rather than remember, so every value comes from a space
far larger than the training set: names out of syllables, numbers of every size, random identifiers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"
Record: TypeAlias = dict[str, Value]


def listed(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


FIRST = listed(
    "Alan Grace Linus Edsger Barbara Donald Margaret Dennis Ken Radia Frances Niklaus Tony Leslie "
    "Marie Albert Niels Emmy Carl Sofia Omar Wei Mei Raj Priya Amara Kofi Yuki Hana Diego Lucia "
    "Ivan Olga Peter Anna Paul Laura Tom Eva Max Nora Leo Mia Sam Zoe Ben Ida Hugo Clara"
)
LAST = listed(
    "Turing Hopper Torvalds Dijkstra Liskov Knuth Hamilton Ritchie Thompson Perlman Allen Wirth "
    "Hoare Lamport Curie Einstein Bohr Noether Gauss Khan Chen Wang Patel Singh Okafor Mensah Sato "
    "Tanaka Garcia Lopez Petrov Smith Jones Brown Weber Novak Rossi Silva Meyer Fischer Berg"
)
CITIES = listed(
    "Paris London Berlin Tokyo Madrid Rome Lagos Accra Delhi Mumbai Beijing Oslo Lima Quito Cairo "
    "Boston Denver Austin Lyon Porto Vienna Prague Zurich Geneva Dublin"
)
ITEMS = listed(
    "pencil notebook lamp chair desk keyboard cable mouse monitor bottle cup plate knife jacket "
    "shirt hat book map ticket camera phone battery bag box ruler eraser clock mirror candle rope"
)
COLORS = listed("red green blue yellow black white orange purple grey pink")
STATUSES = listed("open closed pending active failed done new shipped cancelled paid")
ONSETS = listed("b br c ch d dr f g gr h j k kr l m n p pr qu r s sh st t th tr v w z")
VOWELS = listed("a e i o u ai ea ou ie")
CODAS = listed("n r l s t m ck nd x v") + [""] * 8
HEX = "0123456789abcdef"


def syllables(rng: Random, most: int = 3) -> str:
    """A made-up word."""
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(rng.randint(1, most)))


def number(rng: Random, most: int = 6) -> int:
    """A whole number whose count of digits is uniform, so that long ones are not rare."""
    return rng.randrange(10 ** rng.randint(1, most))


def name(rng: Random) -> str:
    """One half of a person's name, more often made up than known."""
    known = FIRST + LAST
    return rng.choice(known) if rng.random() < 0.35 else syllables(rng).capitalize()


def person(rng: Random) -> str:
    """A full name."""
    return " ".join(name(rng) for _ in range(rng.choice((1, 2, 2, 2, 2, 2, 3))))


def city(rng: Random) -> str:
    """A place."""
    return rng.choice(CITIES) if rng.random() < 0.4 else syllables(rng).capitalize()


def item(rng: Random) -> str:
    """A thing one can order."""
    noun = rng.choice(ITEMS) if rng.random() < 0.6 else syllables(rng)
    return f"{rng.choice(COLORS)} {noun}" if rng.random() < 0.3 else noun


def price(rng: Random) -> float:
    """An amount with up to two decimals."""
    return round(rng.randrange(10 ** rng.randint(2, 5)) / 100, 2)


def date(rng: Random) -> str:
    """A day in ISO form."""
    return f"{rng.randint(1950, 2039)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def clock(rng: Random) -> str:
    """A time of day."""
    return f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"


def code_id(rng: Random) -> str:
    """An identifier that no model can guess."""
    letters = "".join(rng.choice("ABCDEFGHKLMNPRSTUVWXYZ") for _ in range(rng.randint(1, 3)))
    style = rng.randrange(3)
    if style == 0:
        return f"{letters}-{number(rng)}"
    if style == 1:
        return "".join(rng.choice(HEX) for _ in range(rng.randint(4, 12)))
    return f"{syllables(rng, 2)}_{number(rng, 4)}"


def email(rng: Random) -> str:
    """An address at a made-up host."""
    host = f"{syllables(rng, 2)}.{rng.choice(('org', 'com', 'net', 'io'))}"
    return f"{syllables(rng, 2)}@{host}"


def words(rng: Random) -> str:
    """A short title."""
    return " ".join(
        rng.choice((syllables(rng), rng.choice(ITEMS), rng.choice(COLORS))) for _ in range(rng.randint(1, 4))
    ).capitalize()


def tags(rng: Random) -> Value:
    """A list of short words."""
    return [rng.choice(ITEMS + COLORS) for _ in range(rng.randint(1, 4))]


def age(rng: Random) -> int:
    """An age in years."""
    return rng.randint(1, 99)


Maker: TypeAlias = Callable[[Random], Value]


@dataclass(frozen=True)
class Field:
    """One key of a schema, and where its values come from."""

    key: str
    make: Maker


def choice(*values: Value) -> Maker:
    """A maker that picks one of a few values."""
    return lambda rng: rng.choice(values)


FIELDS = {
    field.key: field
    for field in (
        Field("name", person), Field("age", age), Field("city", city), Field("email", email),
        Field("item", item), Field("price", price), Field("quantity", number), Field("id", code_id),
        Field("date", date), Field("time", clock), Field("title", words), Field("author", person),
        Field("year", lambda rng: rng.randint(1800, 2039)), Field("color", choice(*COLORS)),
        Field("status", choice(*STATUSES)), Field("active", choice(True, False)),
        Field("tags", tags), Field("place", city), Field("total", price), Field("score", price),
        Field("count", number), Field("country", city), Field("job", lambda rng: syllables(rng)),
        Field("host", lambda rng: f"{syllables(rng, 2)}.{syllables(rng, 2)}"),
        Field("port", lambda rng: rng.randint(1, 65535)), Field("code", code_id),
    )
}  # fmt: skip
SCHEMAS = {
    "person": "name age city email job active",
    "order": "item quantity price status date id",
    "event": "title date place time tags",
    "book": "title author year price",
    "product": "item price color count code",
    "server": "host port active status",
    "ticket": "id title status author",
    "customer": "name email id city total",
    "player": "name score country age",
    "invoice": "id total date name",
    "city": "name country count",
    "task": "title status date author tags",
}


def dumps(value: Value) -> str:
    """JSON in its most compact form, the one the model is taught to write."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def plain(value: Value) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " and ".join(plain(one) for one in value)
    return str(value)


def schema(rng: Random) -> tuple[str, list[str]]:
    """A thing and its keys: mostly the first keys of a known schema, sometimes any keys at all."""
    entity = rng.choice((*SCHEMAS, "person", "person", "person", "order"))
    keys = SCHEMAS[entity].split()
    if rng.random() < 0.25:
        return "record", rng.sample(sorted(FIELDS), rng.randint(2, 5))
    return entity, keys[: rng.choice((2, 2, 3, min(4, len(keys)), len(keys)))]


def record(rng: Random, keys: list[str]) -> Record:
    """A record with these keys."""
    return {key: FIELDS[key].make(rng) for key in keys}


def as_list(rng: Random, rec: Record) -> str:
    """Only the values, in order."""
    return rng.choice((", ", ", ", ", ", "; ", " | ")).join(map(plain, rec.values()))


def as_lines(rng: Random, rec: Record) -> str:
    """One `key: value` line for each field."""
    return "\n".join(f"{key}: {plain(value)}" for key, value in rec.items())


def as_sentence(rng: Random, rec: Record) -> str:
    """Prose that names every field, in any order after the first."""
    pairs = list(rec.items())
    if set(rec) == {"name", "age"}:
        who, years = plain(rec["name"]), plain(rec["age"])
        return rng.choice((
            f"{who} is {years} years old.", f"{who} is {years}.", f"{who} ({years})",
            f"My name is {who} and I am {years}.", f"{who}, aged {years}, lives here.",
        ))  # fmt: skip
    (first, value), rest = pairs[0], pairs[1:]
    if rng.random() < 0.3:
        rng.shuffle(rest)
    clauses = [f"the {key} is {plain(one)}" for key, one in rest]
    return f"The {first} is {plain(value)}, {' and '.join(clauses)}."


def as_email(rng: Random, rec: Record) -> str:
    """The fields inside a short message."""
    body = as_lines(rng, rec) if rng.random() < 0.5 else as_sentence(rng, rec)
    return f"Hello {name(rng)},\n\n{body}\n\nBest regards,\n{name(rng)}"


RENDERINGS = (as_list, as_list, as_list, as_lines, as_sentence, as_sentence, as_email)


@dataclass(frozen=True)
class Turn:
    """A question and its answer."""

    user: str
    answer: str


@dataclass(frozen=True)
class Chat:
    """A conversation with an optional system prompt."""

    system: str
    turns: tuple[Turn, ...]


def extract_prompt(rng: Random, entity: str, keys: list[str]) -> str:
    """One of the ways to ask for a record."""
    names = ", ".join(keys)
    if entity == "record":
        return rng.choice((f"Extract the fields {names}.", f"Return JSON with: {names}."))
    return rng.choice((
        f"Extract the {entity}.", f"Extract the {entity}.", f"Extract the {entity} as JSON.",
        f"Return the {entity} as JSON.", f"Extract the {entity}: {names}.",
        f"Read the {entity} and answer with JSON.",
    ))  # fmt: skip


def nest(rng: Random, rec: Record) -> Record:
    """Move the last fields into an object of their own, now and then."""
    if len(rec) < 4 or rng.random() < 0.7:
        return rec
    items = list(rec.items())
    return {**dict(items[:2]), "details": dict(items[2:])}


def extract(rng: Random) -> Chat:
    """Text to compact JSON."""
    entity, keys = schema(rng)
    system, render = extract_prompt(rng, entity, keys), rng.choice(RENDERINGS)
    turns = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rec = record(rng, keys)
        turns.append(Turn(render(rng, rec), dumps(rec)))
    if rng.random() < 0.25:
        first = turns[0]
        return Chat("", (Turn(f"{system}\n{first.user}", first.answer),))
    return Chat(system, tuple(turns))


def as_csv(recs: list[Record]) -> str:
    """A table with commas."""
    return "\n".join([",".join(recs[0]), *(",".join(map(plain, rec.values())) for rec in recs)])


def as_markdown(recs: list[Record]) -> str:
    """A table with bars."""
    rows = [list(recs[0]), ["---"] * len(recs[0]), *([plain(v) for v in r.values()] for r in recs)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def table(rng: Random) -> Chat:
    """One table form to another, or one column of it."""
    _, keys = schema(rng)
    keys = [key for key in keys if key != "tags"][:4]
    recs = [record(rng, keys) for _ in range(rng.randint(1, 5))]
    forms = {"CSV": as_csv(recs), "JSON": dumps(list(recs)), "a markdown table": as_markdown(recs)}
    source, target = rng.sample(sorted(forms), 2)
    if rng.random() < 0.2:
        column = rng.choice(keys)
        answer = "\n".join(plain(rec[column]) for rec in recs)
        return Chat(f"List the {column} of each row.", (Turn(forms[source], answer),))
    return Chat(f"Convert to {target}.", (Turn(forms[source], forms[target]),))


def question(rng: Random) -> Chat:
    """Questions about one record or a few."""
    _, keys = schema(rng)
    keys = [key for key in keys if key not in ("active", "tags")] or ["name", "age"]
    rec = record(rng, keys)
    text = rng.choice((dumps(rec), as_lines(rng, rec), as_sentence(rng, rec)))
    turns = []
    for number_of, key in enumerate(rng.sample(keys, min(len(keys), rng.randint(1, 3)))):
        asked = f"What is the {key}?"
        if key == "age" and "name" in rec:
            asked = f"How old is {rec['name']}?"
        user = f"{text}\n{asked}" if number_of == 0 else asked
        turns.append(Turn(user, plain(rec[key])))
    return Chat(rng.choice(("", "Answer from the text.")), tuple(turns))


@dataclass(frozen=True)
class Material:
    """Real text that copies and edits work on."""

    sentences: list[str]
    snippets: list[str]
    vocabulary: list[str]


def noise(rng: Random, material: Material, least: int = 3, most: int = 40) -> str:
    """A run of unrelated words, ids and numbers: nothing but copying can predict it."""
    makers: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(material.vocabulary), lambda: rng.choice(material.vocabulary),
        lambda: syllables(rng), lambda: str(number(rng)), lambda: code_id(rng), lambda: name(rng),
    )  # fmt: skip
    chosen = rng.sample(makers, rng.randint(1, len(makers)))
    parts = [rng.choice(chosen)() for _ in range(rng.randint(least, most))]
    return rng.choice((" ", " ", ", ", "\n", "-")).join(parts)


def some_record(rng: Random) -> str:
    """One record or a list of them as JSON."""
    _, keys = schema(rng)
    if rng.random() < 0.5:
        return dumps(nest(rng, record(rng, keys)))
    return dumps([record(rng, keys) for _ in range(rng.randint(1, 4))])


def copied_text(rng: Random, material: Material) -> tuple[str, str]:
    """What to call a text, and the text."""
    pick = rng.random()
    if pick < 0.40:
        return "text", noise(rng, material)
    if pick < 0.55:
        return "text", " ".join(rng.choice(material.sentences) for _ in range(rng.randint(1, 3)))
    if pick < 0.80:
        return "code", rng.choice(material.snippets)
    if pick < 0.90:
        return "JSON", some_record(rng)
    _, keys = schema(rng)
    return "text", rng.choice(RENDERINGS)(rng, record(rng, keys))


def copy(rng: Random, material: Material) -> Chat:
    """Say it again."""
    kind, text = copied_text(rng, material)
    ask = rng.choice((
        f"Repeat the {kind}.", f"Copy the {kind}.", f"Copy this {kind}.", "Repeat after me.",
        f"Repeat this {kind} exactly.", f"Write the {kind} again.", "Echo.",
    ))  # fmt: skip
    if rng.random() < 0.6:
        return Chat(ask, (Turn(text, text),))
    return Chat("", (Turn(ask[:-1] + rng.choice((":\n", ": ", ":\n\n")) + text, text),))


def replace(rng: Random, material: Material) -> Chat:
    """Swap one word for another throughout a text or some code."""
    text = copied_text(rng, material)[1]
    found = sorted(set(re.findall(r"\b[A-Za-z_]\w{2,}\b", text)))
    if not found:
        return copy(rng, material)
    old = rng.choice(found)
    new = rng.choice((syllables(rng), rng.choice(material.vocabulary), name(rng)))
    edited = re.sub(rf"\b{re.escape(old)}\b", new, text)
    ask = rng.choice((
        f"Replace {old} by {new}.", f"Replace {old} with {new}.", f"Rename {old} to {new}.",
        f"Change {old} to {new}.",
    ))  # fmt: skip
    if rng.random() < 0.5:
        return Chat(ask, (Turn(text, edited),))
    return Chat("", (Turn(f"{ask}\n\n{text}", edited),))


def assign(rng: Random) -> Chat:
    """Set one key of a JSON record."""
    _, keys = schema(rng)
    rec = record(rng, keys)
    key = rng.choice(keys)
    changed = {**rec, key: FIELDS[key].make(rng)}
    user = f"Set {key} to {dumps(changed[key])}.\n{dumps(rec)}"
    return Chat("", (Turn(user, dumps(changed)),))


def drop_line(rng: Random, material: Material) -> Chat:
    """Copy all lines but one."""
    lines = rng.choice(material.snippets).splitlines()
    gone = rng.randrange(len(lines))
    if len(lines) < 3 or not lines[gone].strip():
        return replace(rng, material)
    ask = f"Delete the line `{lines[gone].strip()}`."
    answer = "\n".join(lines[:gone] + lines[gone + 1 :])
    return Chat("", (Turn(f"{ask}\n" + "\n".join(lines), answer),))


def edit(rng: Random, material: Material) -> Chat:
    """A copy with one change."""
    pick = rng.random()
    if pick < 0.65:
        return replace(rng, material)
    return assign(rng) if pick < 0.85 else drop_line(rng, material)


GREETINGS = (
    ("Hi", "Hello! How can I help you?"),
    ("Hello", "Hello! How can I help you?"),
    ("Hello!", "Hi! What can I do for you?"),
    ("Hi!", "Hello! How can I help you?"),
    ("Who are you?", "I am a tiny toy model for tests and demos. I copy, extract and edit text."),
    ("What can you do?", "I can copy text, extract JSON, convert tables and edit words."),
    ("Thank you.", "You are welcome!"),
    ("Good morning!", "Good morning! How can I help you?"),
    ("Bye", "Goodbye!"),
    ("How are you?", "I am fine, thank you. How can I help you?"),
)


def small_talk(rng: Random) -> Chat:
    """Greetings, so that a first `Hi` gets a sensible answer."""
    system = rng.choice(("", "", "You are a helpful assistant.", "Be brief."))
    turns = tuple(Turn(*rng.choice(GREETINGS)) for _ in range(rng.randint(1, 3)))
    return Chat(system, turns)


def counting(rng: Random) -> Chat:
    """Continue a list of numbers or a repeating list of words."""
    if rng.random() < 0.5:
        start, step = rng.randrange(50), rng.randint(1, 5)
        values = [str(start + step * i) for i in range(14)]
    else:
        cycle = [rng.choice(ITEMS + COLORS) for _ in range(rng.randint(2, 4))]
        values = [cycle[i % len(cycle)] for i in range(14)]
    cut = rng.randint(6, 9)
    ask = rng.choice(("Continue the list: ", "Continue: ", "What comes next? "))
    return Chat("", (Turn(ask + ", ".join(values[:cut]), ", ".join(values[cut:])),))
