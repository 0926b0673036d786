"""Fills a text template with values that a grammar holds to their kinds."""

from string import Template

from inferlet import Context, Ebnf, Model, Regex, Sampler, runtime


async def main(input: dict) -> str:
    model = Model.load(runtime.models()[0])
    ctx = Context(model).user("Fill in the form of a boat.")
    color = (
        await ctx.fork()
        .generate(Sampler.argmax(), constrain=Ebnf('root ::= "red" | "blue"'), max_tokens=8)
        .collect_text()
    )
    year = await ctx.fork().generate(Sampler.argmax(), constrain=Regex("(19|20)[0-9]{2}"), max_tokens=8).collect_text()
    return Template("A $color boat of $year").substitute(color=color, year=year)
