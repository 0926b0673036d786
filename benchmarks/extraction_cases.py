"""Twenty extractions as programs ask for them: a schema, and the text that its values stand in."""

from __future__ import annotations

from typing import Any, NamedTuple

TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}
NUMBER: dict[str, Any] = {"type": "number"}


class ExtractionCase(NamedTuple):
    """What is asked for, and where it stands."""

    name: str
    schema: dict[str, Any]
    text: str


def record(required: str, **members: Any) -> dict[str, Any]:
    """Return the schema of a closed object; `required` names members, "" is all of them."""
    names = required.split() if required else list(members)
    return {"type": "object", "properties": members, "required": names, "additionalProperties": False}


def many(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": items, **more}


def one_of(*values: str) -> dict[str, Any]:
    """Return the schema of a choice."""
    return {"type": "string", "enum": list(values)}


def maybe(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


ADDRESS = record("street city", street=TEXT, city=TEXT, zip={"type": "string", "pattern": "^[0-9]{5}$"}, country=TEXT)

CASES = (
    ExtractionCase(
        "person",
        record("", name=TEXT, age=WHOLE, email=TEXT),
        "Maria Lopez, 34, joined the team in Boston. Write to maria.lopez@example.com.",
    ),
    ExtractionCase(
        "invoice",
        record(
            "",
            number=TEXT,
            date={"type": "string", "format": "date"},
            currency=one_of("EUR", "USD", "GBP"),
            lines=many(record("", item=TEXT, quantity=WHOLE, price=NUMBER)),
            total=NUMBER,
        ),
        "Invoice INV-2103 of 2024-03-05: 3 chairs at 49.90 EUR each and 1 desk at 210.00 EUR. Total 359.70 EUR.",
    ),
    ExtractionCase(
        "event",
        record(
            "title start",
            title=TEXT,
            start={"type": "string", "format": "date-time"},
            place=maybe(TEXT),
            guests=many(TEXT),
        ),
        "Team lunch on 2024-06-01 at noon in the garden with Ann, Bob and Chen.",
    ),
    ExtractionCase(
        "product",
        record("", name=TEXT, price=NUMBER, in_stock={"type": "boolean"}, tags=many(TEXT, uniqueItems=True)),
        "The Aurora desk lamp costs 39.95 dollars, is in stock, and is sold as lighting, office and LED.",
    ),
    ExtractionCase("address", ADDRESS, "Ship it to 12 Elm Street, Springfield, 62704, United States."),
    ExtractionCase(
        "order",
        record("", id=WHOLE, customer=record("name", name=TEXT, address=ADDRESS), items=many(TEXT, minItems=1)),
        "Order 88121 of Jane Roe, 7 Oak Road, Dover, 19901: a kettle, two mugs and a tea strainer.",
    ),
    ExtractionCase(
        "sentiment",
        record(
            "",
            sentiment=one_of("positive", "negative", "neutral"),
            confidence={"type": "number", "minimum": 0, "maximum": 1},
        ),
        "The battery lasts all day and the screen is lovely, but it is a bit heavy.",
    ),
    ExtractionCase(
        "entities",
        record("", entities=many(record("", text=TEXT, kind=one_of("person", "place", "organisation", "date")))),
        "On 4 May 1976 Anna Berg left Oslo to work for the United Nations in Geneva.",
    ),
    ExtractionCase(
        "recipe",
        record(
            "",
            title=TEXT,
            minutes={"type": "integer", "minimum": 1},
            ingredients=many(record("name", name=TEXT, amount=NUMBER, unit=TEXT)),
            steps=many(TEXT),
        ),
        "Pancakes, 20 minutes: mix 200 g flour, 2 eggs and 300 ml milk, rest, and fry in butter.",
    ),
    ExtractionCase(
        "meeting",
        record(
            "",
            topic=TEXT,
            decisions=many(TEXT, maxItems=4),
            actions=many(record("", who=TEXT, what=TEXT, due=maybe({"type": "string", "format": "date"}))),
        ),
        "We talked about the release. It ships in May. Ali writes the notes by 2024-04-20, Bea tests the installer.",
    ),
    ExtractionCase(
        "flight",
        record(
            "",
            carrier=TEXT,
            number={"type": "string", "pattern": "^[A-Z]{2}[0-9]{1,4}$"},
            origin={"type": "string", "pattern": "^[A-Z]{3}$"},
            destination={"type": "string", "pattern": "^[A-Z]{3}$"},
            stops={"type": "integer", "minimum": 0},
        ),
        "Lufthansa flight LH438 goes from FRA to DFW without a stop.",
    ),
    ExtractionCase(
        "paper",
        record(
            "title authors",
            title=TEXT,
            authors=many(TEXT, minItems=1, uniqueItems=True),
            year={"type": "integer", "minimum": 1900, "maximum": 2100},
            keywords=many(TEXT),
        ),
        "Attention Is All You Need, by Vaswani, Shazeer and Parmar, 2017, introduces the transformer.",
    ),
    ExtractionCase(
        "measurements",
        record("", sensor=TEXT, unit=one_of("C", "F", "K"), values=many(NUMBER, minItems=2)),
        "Sensor A7 measured 21.5, 21.75 and 22.0 degrees Celsius.",
    ),
    ExtractionCase(
        "company",
        record(
            "",
            name=TEXT,
            founded=WHOLE,
            employees=maybe(WHOLE),
            offices=many(record("", city=TEXT, head={"type": "boolean"})),
        ),
        "Northwind was founded in 1994, has 1200 employees, its head office in Porto and another office in Leeds.",
    ),
    ExtractionCase(
        "ticket",
        record(
            "",
            title=TEXT,
            severity={"type": "integer", "enum": [1, 2, 3, 4]},
            components=many(one_of("ui", "api", "db", "auth"), uniqueItems=True),
            steps=many(TEXT),
        ),
        "Login fails after the update, severity 2. It touches auth and api. Open the page, enter a password, press enter.",
    ),
    ExtractionCase(
        "weather",
        record(
            "",
            city=TEXT,
            days=many(
                record(
                    "",
                    day=one_of("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
                    high=NUMBER,
                    low=NUMBER,
                    rain={"type": "boolean"},
                ),
                minItems=1,
                maxItems=7,
            ),
        ),
        "Lisbon: Monday 24 and 16 degrees and dry, Tuesday 22 and 15 with rain, Wednesday 23 and 15, dry.",
    ),
    ExtractionCase(
        "contact",
        record(
            "name phones",
            name=TEXT,
            phones=many({"type": "string", "pattern": r"^\+?[0-9 ]{6,16}$"}),
            emails=many({"type": "string", "format": "email"}),
        ),
        "Call Tom Ray at +1 555 0100 or +1 555 0177, or write to tom@ray.example.",
    ),
    ExtractionCase(
        "payment",
        record(
            "",
            payer=TEXT,
            method={"anyOf": [record("", card={"type": "string", "pattern": "^[0-9]{4}$"}), record("", iban=TEXT)]},
            amount={"type": "number", "exclusiveMinimum": 0, "multipleOf": 0.01},
        ),
        "Kim Park paid 129.99 with the card that ends in 4242.",
    ),
    ExtractionCase(
        "tree",
        {"$ref": "#/$defs/part", "$defs": {"part": record("name", name=TEXT, parts=many({"$ref": "#/$defs/part"}))}},
        "A bicycle has a frame and two wheels; a wheel has a rim, spokes and a hub.",
    ),
    ExtractionCase(
        "patient",
        record(
            "",
            age={"type": "integer", "minimum": 0, "maximum": 130},
            weight_kg=NUMBER,
            drugs=many(record("", name=TEXT, mg=NUMBER, times_a_day={"type": "integer", "minimum": 1})),
            allergies=maybe(many(TEXT)),
        ),
        "A man of 62, 81.5 kg, takes 5 mg of amlodipine once and 500 mg of metformin twice a day. No allergies.",
    ),
)
