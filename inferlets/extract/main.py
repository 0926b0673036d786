# /// script
# dependencies = ["inferd"]
# [tool.inferd]
# name = "extract"
# version = "0.1.0"
# ///
"""Read a person out of a text, as JSON that cannot be wrong in form."""

from dataclasses import dataclass

from inferd import Context, JsonSchema, Sampler


@dataclass
class Person:
    name: str
    age: int


async def main(text: str = "Ada Lovelace, 36", max_tokens: int = 128) -> Person:
    """Return the person that ``text`` speaks of.

    The output can only be JSON of a ``Person``; most of its tokens follow from the schema and are accepted as drafts.
    """
    async with Context() as ctx:
        ctx.system("Extract the person.").user(text)
        return await ctx.generate(
            Sampler.argmax(),
            max_tokens=max_tokens,
            constrain=JsonSchema(Person),
            system_speculation=True,
        ).collect_json()
