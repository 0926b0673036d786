"""JSON of a schema that is given twice, as constraint and to collect_json."""

import json

from inferlet import Context, JsonSchema, Model, Sampler, runtime

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
    }
)


async def main(input: dict):
    ctx = Context(Model.load(runtime.models()[0])).system("Write JSON.").user("Describe a sailor.")
    generator = ctx.generate(
        Sampler.argmax(), constrain=JsonSchema(SCHEMA), max_tokens=int(input.get("max_tokens", 48))
    )
    return await generator.collect_json(schema=SCHEMA)
