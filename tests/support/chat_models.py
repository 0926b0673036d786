"""Small tokenizers of the kinds that chat models have, with templates like theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from inferd_runtime.models.tokenizer import HubTokenizer

CORPUS = [
    "You are a helpful assistant. The end of the system, user and tool: { } [ ] < > | / _ . 0123456789 é 東京"
] * 4
CHATML = (
    "{% for message in messages %}{% if loop.first and message.role != 'system' %}<|im_start|>system\nBe brief.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HERMES = (
    "{%- if tools %}<|im_start|>system\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{%- endif %}{% for message in messages %}{% set content = message.content or '' %}"
    "{% if message.role == 'assistant' and '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip() %}"
    "{% endif %}<|im_start|>{{ 'user' if message.role == 'tool' else message.role }}\n{{ content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% if tools %}<|start_header_id|>system<|end_header_id|>\n\n"
    '{% for tool in tools %}{{ tool | tojson(indent=4) }}{% endfor %} as {"name": , "parameters": }<|eot_id|>{% endif %}'
    "{% for message in messages %}<|start_header_id|>{{ 'ipython' if message.role == 'tool' else message.role }}"
    "<|end_header_id|>\n\n{{ (message.content or '') | trim }}"
    '{% for call in message.tool_calls or [] %}{"name": "{{ call.function.name }}", '
    '"parameters": {{ call.function.arguments | tojson }}}{% endfor %}<|eot_id|>{% endfor %}'
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for message in messages %}{% if message.role == 'user' or message.role == 'system' %}[INST] {{ message.content }}[/INST]"
    "{% elif message.role == 'tool' %}[TOOL_RESULTS] {{ message.content }}[/TOOL_RESULTS]"
    "{% elif message.tool_calls %}[TOOL_CALLS] [{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}]"
    "{{ eos_token }}{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
TURNS = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}<｜Assistant｜>{{ message.content }}"
    "{{ eos_token }}{% else %}<｜User｜>{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)


@dataclass(frozen=True)
class ChatKind:
    """``special`` and ``added``: names of its control tokens, the latter not special. ``strip``: they take the space behind them.

    ``pieces``: as SentencePiece makes them, with the space in front of a word. ``folded``: texts are normalized, and so are the
    names of control tokens that are looked for in them.
    """

    template: str
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    pieces: bool = False
    strip: bool = False
    folded: bool = False
    family: str = "bpe"


RESERVED = (f"<|reserved_special_token_{at}|>" for at in range(30))
KINDS = {
    "chatml": ChatKind(CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
    "hermes": ChatKind(
        HERMES, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_call>", "</tool_call>")
    ),
    "llama3": ChatKind(
        LLAMA3,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>", *RESERVED),
    ),
    "mistral": ChatKind(
        MISTRAL,
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
         "[/TOOL_RESULTS]"),
        pieces=True,
    ),
    "turns that are not special": ChatKind(
        TURNS, ("<s>", "</s>"), ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
    ),
    "stripping": ChatKind(CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), strip=True),
    "folding": ChatKind(CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), folded=True),
    "unigram": ChatKind(CHATML, ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), pieces=True, family="unigram"),
}  # fmt: skip


def make(kind: ChatKind) -> HubTokenizer:
    """Return a tokenizer that knows a few words, of a kind."""
    backend = _unigram(kind) if kind.family == "unigram" else _trained(kind)
    flags: dict[str, Any] = {"rstrip": kind.strip, "normalized": kind.folded}
    backend.add_special_tokens([AddedToken(name, **flags) for name in kind.special])
    backend.add_tokens([AddedToken(name, normalized=False) for name in kind.added])
    bos, eos = kind.special[0], kind.special[1] if kind.pieces else kind.special[-1]
    return HubTokenizer(
        backend.to_str(), [backend.token_to_id(eos)], kind.template, {"bos_token": bos, "eos_token": eos}
    )


def _trained(kind: ChatKind) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    alphabet: list[str] = []
    if kind.folded:
        backend.normalizer = normalizers.NFKC()
    if kind.pieces:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    else:
        split = pre_tokenizers.Split(Regex(r" ?\w+|[^\w\s]+|\s+"), "isolated")
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _unigram(kind: ChatKind) -> Tokenizer:
    """A vocabulary that holds the names of control tokens among its pieces, so that they come out of plain text."""
    letters = sorted(set("".join(CORPUS)) | set("▁\n")) + [chr(code) for code in range(33, 127)]
    pieces = dict.fromkeys(kind.special, -1.0) | dict.fromkeys(letters, -5.0)
    backend = Tokenizer(models.Unigram([("<unk>", -20.0), *pieces.items()], unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return backend
