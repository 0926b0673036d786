"""A model's tokenizer behind the few calls that the runtime makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import DecodeStream

from inferd.protocol import InvalidRequest, cut
from inferd_runtime.models.chat_formats import ASSISTANT_MARKS
from inferd_runtime.models.control_names import ControlNames, is_control
from inferd_runtime.models.jinja_template import JinjaTemplate, RenderBudget
from inferd_runtime.models.template_input import BREAK, TemplateInput

MAX_PANIC = 200


def encoded(backend: Tokenizer, text: str, *, start: bool = False) -> list[int]:
    """Return the ids of a text. Raises InvalidRequest for one that the tokenizer's expressions give up on."""
    try:
        # In a batch, even of one, tokenizers lets other threads run meanwhile; its `encode` does not.
        return list(backend.encode_batch_fast([text], add_special_tokens=start)[0].ids)
    except BaseException as panic:
        if type(panic).__name__ != "PanicException":  # what Rust raises is no Exception: it would end the engine
            raise
        raise InvalidRequest(f"the tokenizer gives up on this text: {cut(str(panic), MAX_PANIC)}") from None


def keep_no_words(backend: Tokenizer) -> Tokenizer:
    """Return it without its memory of words that it has split: a text whose words another tenant's had took half the time."""
    resize = getattr(backend.model, "_resize_cache", None)  # what splits no words into parts remembers none
    if resize is not None:
        resize(0)
    return backend


class HubTokenizer:
    """Encodes, decodes and streams with a tokenizer's own Rust backend, and renders its chat template.

    ``json``: its tokenizer.json. ``chat_template`` "" is none; ``special``: the tokens that the template can name. Of
    ``eos_tokens`` the tokenizer's own comes first.
    """

    def __init__(self, json: str, eos_tokens: Sequence[int], chat_template: str, special: Mapping[str, str]) -> None:
        self.json = json
        self.chat_template = chat_template
        self.special = dict(special)
        self._special = keep_no_words(Tokenizer.from_str(json))
        usual = self._special.token_to_id(self.special.get("eos_token", ""))
        self.eos_tokens = tuple(sorted(eos_tokens, key=lambda token: token != usual))
        self._special.no_truncation()
        self._special.no_padding()
        self._plain = keep_no_words(Tokenizer.from_str(self._special.to_str()))
        self._plain.encode_special_tokens = True

    @classmethod
    def of(cls, tokenizer: Any, eos_tokens: Sequence[int]) -> HubTokenizer:
        """Return the tokenizer behind transformers'. Raises InvalidRequest for a slow one."""
        if not getattr(tokenizer, "is_fast", False):
            raise InvalidRequest("this model has no fast tokenizer (tokenizer.json)")
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        return cls(tokenizer.backend_tokenizer.to_str(), eos_tokens, template, tokenizer.special_tokens_map)

    @property
    def template(self) -> bool:
        """True if the model has a chat template."""
        return bool(self.chat_template)

    def prepare_template(self) -> None:
        """Build what rendering needs, so that no request waits for it. What is wrong with a template is told when it is used."""
        if self.template:
            self._jinja.prepare()
            _ = self._names, self._break_id

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the chat template asks for."""
        return self._jinja.variables

    @cached_property
    def _jinja(self) -> JinjaTemplate:
        return JinjaTemplate(self.chat_template, self.special)

    @cached_property
    def _added(self) -> Sequence[tuple[int, AddedToken]]:
        return sorted(self._special.get_added_tokens_decoder().items())

    @cached_property
    def _control(self) -> Mapping[str, tuple[int, AddedToken]]:
        return {
            token.content: (ident, token)
            for ident, token in self._added
            if is_control(token.content, token.special, self.chat_template)
        }

    @cached_property
    def _names(self) -> ControlNames:
        kept = {name for name, (_, token) in self._control.items() if not token.special} & ASSISTANT_MARKS
        return ControlNames(self._control, kept)

    @cached_property
    def _exact(self) -> bool:
        """True if control tokens are found by their very characters, and not by others that are normalized to them."""
        return self._special.normalizer is None or not any(token.normalized for _, token in self._control.values())

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(ident for ident, _ in self._control.values())

    @cached_property
    def _between(self) -> Tokenizer:
        """The tokenizer without its control tokens. BREAK is a token of it that stands for nothing: it parts a text."""
        backend = Tokenizer(self._special.model)
        if self._special.normalizer is not None:
            backend.normalizer = self._special.normalizer
        if self._special.pre_tokenizer is not None:
            backend.pre_tokenizer = self._special.pre_tokenizer
        added = [self._as_text(token) for _, token in self._added]  # in order: each gets the id that it has there
        backend.add_tokens([*added, AddedToken(BREAK, normalized=False)])
        backend.encode_special_tokens = True
        return backend

    def _as_text(self, token: AddedToken) -> AddedToken:
        """Return an added token that is read as text if it is a control token."""
        flags = {name: getattr(token, name) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        return AddedToken(token.content, special=token.special or token.content in self._control, **flags)

    @cached_property
    def _break_id(self) -> int:
        return int(self._between.encode(BREAK).ids[0])

    def render(self, conversation: TemplateInput, budget: RenderBudget) -> str:
        """Return the chat template's text for :meth:`encode_rendered`. The names of control tokens in the messages are broken.

        Raises InvalidRequest when the template refuses the messages, and LimitExceeded past the budget.
        """
        if not self.template:
            raise InvalidRequest("this model has no chat template: use append() with text or tokens")
        return self._jinja.render(self._names.guarded(conversation), budget)

    def encode_rendered(self, text: str) -> list[int]:
        """Return the ids of what :meth:`render` returned: the template's control tokens, and all others' texts as text."""
        if BREAK not in text and (self._exact or text.isascii()):
            return self.encode(text, special=True)
        return self.encode_parts(text)

    def encode_parts(self, text: str) -> list[int]:
        """Return what :meth:`encode_rendered` does, always part by part: slower, and the same for texts without broken names."""
        parts = self._names.split(text)
        controls = parts[1::2]
        tokens: list[int] = []
        for before, part, behind in zip(["", *controls], parts[::2], [*controls, ""], strict=True):
            tokens += [self._control[before][0]] if before else []
            tokens += self._encode_between(part, before, behind)
        return tokens

    def _encode_between(self, text: str, before: str, behind: str) -> list[int]:
        """Return the ids of a text between control tokens ("": there is none), without any of these."""
        if before and self._control[before][1].rstrip:
            text = text.lstrip()
        if behind and self._control[behind][1].lstrip:
            text = text.rstrip()
        start = BREAK if before else ""  # so that it is not taken for the beginning of a text
        tokens = self._encode_text(start + text.replace(BREAK, ""))
        forged = not self._control_ids.isdisjoint(tokens)  # some vocabularies hold names whole
        return self._encode_text(start + text) if forged else tokens

    def _encode_text(self, text: str) -> list[int]:
        return [ident for ident in encoded(self._between, text) if ident != self._break_id]

    def encode(self, text: str, *, special: bool = False, start: bool = False) -> list[int]:
        """Return the ids of a text. ``special``: read special tokens as such. ``start``: add the tokens that begin a text."""
        return encoded(self._special if special else self._plain, text, start=start)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Return the text of ids."""
        return str(self._special.decode(list(tokens), skip_special_tokens=not special))

    def stream(self) -> Callable[[int], str]:
        """Return a decoder for one id at a time; "" while a character is incomplete."""
        decoder = DecodeStream(skip_special_tokens=True)
        return lambda token: decoder.step(self._special, token) or ""
