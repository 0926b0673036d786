"""A later program of Pie: it knows one model, leaves it out of every call, and sets what it returns."""

from inferlet import Context, Sampler, chat, model, session, set_return


async def main(input: dict) -> None:
    shown, answer = chat.Decoder(), ""
    ctx = Context().system("Be brief.").user(input.get("prompt", "Where is the sea?"))
    async for step in ctx.generate(Sampler.argmax(), max_tokens=6):
        match shown.feed((await step.execute()).tokens):
            case chat.Event.Delta(text=text):
                session.send(text)
                answer += text
            case chat.Event.Done(_):
                break
            case _:
                pass
    set_return(f"{model.name()}: {model.decode(model.encode(answer))}")
