# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "order"
# version = "0.1.0"
# ///
"""Read a nested record out of a letter, then stream an edit of the letter; each with speculation and without, to compare."""

import time
from dataclasses import dataclass
from typing import Any, Literal

from inferd import Context, Generator, Grammar, JsonSchema, Sampler


@dataclass
class Address:
    street: str
    city: str


@dataclass
class Payment:
    euros: int
    day: Literal["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


@dataclass
class Order:
    customer: str
    address: Address
    lamps: int
    blankets: int
    payment: Payment


LETTER = (
    "Please sent three oil lamps and two wool blankets to Ingrid Solberg, 12 Harbour Road, Varnes. I payed 118 euros on "
    "Monday. The parcel may be left wiht the neighbour."
)
TASK = "Extract the order from this letter as JSON. The customer is the person who receives the parcel."
EDIT = "Correct the spelling in this letter:"


class Measured:
    """What a generation brought: tokens, steps, seconds."""

    def __init__(self, generator: Generator[Any], seconds: float) -> None:
        self.tokens, self.steps, self.seconds = generator.usage.tokens, generator.usage.steps, seconds

    def __str__(self) -> str:
        each = self.tokens / max(1, self.steps)
        return f"{self.tokens} tokens in {self.steps} steps ({each:.1f} a step), {self.seconds:.2f} s"


async def extract(text: str, most: int, speculate: bool) -> tuple[Order, Measured]:
    """The order in a text. The output can only be JSON of an ``Order``."""
    constraint = JsonSchema(Order)
    async with Context() as ctx, await Grammar.compile(constraint):  # the clock starts behind both
        await ctx.user(f"{TASK}\n\n{text}").cue().flush()
        generator = ctx.generate(Sampler.argmax(), max_tokens=most, constrain=constraint, system_speculation=speculate)
        start = time.perf_counter()
        order = await generator.collect_json()
        return order, Measured(generator, time.perf_counter() - start)


async def edit(text: str, instruction: str, most: int, speculate: bool) -> tuple[str, Measured]:
    """The edited text, printed as it comes when it comes with speculation: most of it is a copy, and is predicted."""
    async with Context() as ctx:
        await ctx.user(f"{instruction}\n\n{text}").cue().flush()
        predicted = {"predict": text} if speculate else {}
        generator = ctx.generate(Sampler.argmax(), max_tokens=most, system_speculation=speculate, **predicted)
        pieces: list[str] = []
        start = time.perf_counter()
        async for step in generator:
            pieces.append(step.text)
            print(step.text if speculate else "", end="", flush=True)
        return "".join(pieces), Measured(generator, time.perf_counter() - start)


def report(what: str, on: Measured, off: Measured) -> None:
    """Print what speculation brought. The texts are the same."""
    print(f"[{what}: {on}; without speculation {off}: {off.seconds / on.seconds:.1f} times as fast]")


async def main(text: str = LETTER, instruction: str = EDIT, max_tokens: int = 160) -> Order:
    """Return the order that ``text`` speaks of. Prints the record, the edited text, and what speculation brought to both.

    Raises RuntimeError if an answer depends on speculation.
    """
    order, on = await extract(text, max_tokens, True)
    print(order)
    same, off = await extract(text, max_tokens, False)
    report("record", on, off)
    edited, on_edit = await edit(text, instruction, max_tokens, True)
    print()
    again, off_edit = await edit(text, instruction, max_tokens, False)
    report("edit", on_edit, off_edit)
    if (order, edited) != (same, again):
        raise RuntimeError("speculation has changed an answer")
    return order
