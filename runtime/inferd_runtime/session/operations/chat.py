"""``chat.*``: whole conversations through a model's chat template, and what the template says about its model."""

from __future__ import annotations

from inferd import protocol as p
from inferd_runtime.models.jinja_template import RenderBudget
from inferd_runtime.models.template_input import BREAK, TemplateInput
from inferd_runtime.session.served_model import ServedModel
from inferd_runtime.session.state import Call, SessionState
from inferd_runtime.session.texts import RenderSize, check_text, most_characters, render_with


def render(state: SessionState, call: Call) -> None:
    """Answer with a conversation's tokens."""
    request: p.RenderChat = call.request
    p.check_render_chat(request)
    model = state.model(request.model)
    room = model.info.max_context
    texts = [len(text) for text in p.chat_texts(request)]
    check_text(model, sum(texts), room)
    conversation = TemplateInput(
        request.messages, request.tools, request.template_arguments, request.cue, request.continue_final
    )

    def work(budget: RenderBudget) -> p.RenderedChat:
        return _rendered(model, conversation, budget, text=request.text)

    size = RenderSize(sum(texts), len(texts), most_characters(model, room))
    render_with(state, call, size, work, call.respond)


def chat_format(state: SessionState, call: Call) -> None:
    """Answer with what the model's chat template says about tools and reasoning."""
    request: p.GetChatFormat = call.request
    call.respond(state.model(request.model).chat_format)


def _rendered(model: ServedModel, conversation: TemplateInput, budget: RenderBudget, *, text: bool) -> p.RenderedChat:
    written = model.tokenizer.render(conversation, budget)
    tokens = model.tokenizer.encode_rendered(written)
    return p.RenderedChat(tokens, written.replace(BREAK, "") if text else "")


HANDLERS = {p.RenderChat: render, p.GetChatFormat: chat_format}
