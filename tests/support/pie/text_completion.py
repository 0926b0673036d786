"""Streams an answer to the launcher, with the decoders of text and reasoning beside each other."""

from inferlet import Context, Model, Sampler, chat, reasoning, runtime, session


async def main(input: dict) -> str:
    model = Model.load(runtime.models()[0])
    ctx = Context(model)
    ctx.system("You answer briefly.").user(input.get("prompt", "Who are you?"))
    shown, thought, answer = chat.Decoder(model), reasoning.Decoder(model), ""
    async for step in ctx.generate(Sampler.top_p(0.6, 0.95), max_tokens=int(input.get("max_tokens", 8))):
        out = await step.execute()
        match thought.feed(out.tokens):
            case reasoning.Event.Delta(text=text):
                session.send(text)
        match shown.feed(out.tokens):
            case chat.Event.Delta(text=text):
                session.send(text)
                answer += text
            case chat.Event.Done(text=whole):
                answer = whole
                break
    session.send("[done]")
    return answer
