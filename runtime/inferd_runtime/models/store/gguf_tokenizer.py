"""The tokenizer that a GGUF file describes, as a tokenizer.json: byte-level BPE with the splits that the file names, or
SentencePiece's BPE, whose merges follow from its scores. What is not known here is refused: a guess would give other tokens.

Each name in SPLITS gives llama.cpp's tokens on random texts, except combining marks, which it parts from their letters for the
splits of cased words, and the models' own tokenizers do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from inferd.protocol import InvalidRequest

KEY = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
LISTS: Mapping[str, type | tuple[type, ...]] = {"tokens": str, "token_type": int, "merges": str, "scores": (int, float)}
LONGEST_TOKEN = 1024
SPACE = "\u2581"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CHINESE = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
EAST_ASIAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
MARKED = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral")
SPLITS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "exaone4"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", GPT2)),
    **dict.fromkeys((*LLAMA3, "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), (WORDS % "{1,3}",)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "hunyuan"), (WORDS % "",)),
    "seed-coder": (WORDS.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+") % "",),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), (r"\p{N}{1,3}", EAST_ASIAN, MARKED)),
    "tekken": (CASED % ("", "", ""),),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), (CASED % (SHORT, SHORT, "{1,3}"),)),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE, r"\p{N}"),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
"""Regular expressions that cut a text one after the other, by the name of a vocabulary's splits."""
WHOLE_WORDS = frozenset({*LLAMA3, "tekken", "glm4"})
"""Where a word that is in the vocabulary is one token, whatever the merges say."""
BEGINS = frozenset({*LLAMA3, "tekken"})
"""Whose texts begin with the token for it where the file does not say."""
ENDS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<|end_of_text|>", "<|endoftext|>", "<end_of_turn>", "<turn|>",
        "<EOT>", "</s>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<|end_of_role|>", "<|END_OF_TURN_TOKEN|>",
    }
)  # fmt: skip
"""Control tokens that end an answer: a file names only one or two of them."""
HARMONY_ENDS, HARMONY_MESSAGE_END = frozenset({"<|return|>", "<|call|>"}), "<|end|>"
"""gpt-oss: what ends an answer, and what ends one of the messages that it consists of."""

NO_SPLIT = (
    "it does not say how texts are split (tokenizer.ggml.pre), and a guess would give other tokens than its model was trained "
    "with: write it anew with `gguf-new-metadata --pre-tokenizer NAME OLD.gguf NEW.gguf`, by the name that a newer file of the "
    "model has"
)
PHI_ENDS_THERE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
"""Of Phi-3's control tokens those that the white space behind them is no part of."""


class FileTokenizer:
    """A vocabulary with its metadata. Raises InvalidRequest for one that cannot be read exactly."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self._check_lists()
        self.tokens: list[str] = self._get("tokens")
        self._types: Sequence[int] = self._get("token_type") or [NORMAL] * len(self.tokens)
        if len(set(self.tokens)) < len(self.tokens):
            raise InvalidRequest("its vocabulary has a token twice")

    def _get(self, key: str, otherwise: Any = None) -> Any:
        return self._metadata.get(KEY + key, otherwise)

    def _check_lists(self) -> None:
        sizes = {}
        for key, kind in LISTS.items():
            found = self._get(key) or []
            if not isinstance(found, list) or any(not isinstance(one, kind) for one in found):
                raise InvalidRequest(f"its setting {KEY}{key} is not a list of what it should be")
            sizes[key] = len(found)
        if not sizes["tokens"]:
            raise InvalidRequest("it has no tokenizer")
        if any(sizes[key] not in (0, sizes["tokens"]) for key in ("token_type", "scores")):
            raise InvalidRequest("its tokens are not as many as their types or scores")
        if max(map(len, self._get("tokens"))) > LONGEST_TOKEN:
            raise InvalidRequest(f"its vocabulary has a token of more than {LONGEST_TOKEN} characters")

    def build(self) -> Tokenizer:
        """Return the tokenizer."""
        kind = self._get("model")
        if kind == "gpt2":
            found = self._byte_level()
        elif kind == "llama":
            found = self._sentence_piece()
        elif kind == "gemma4":
            found = self._lines()
        else:
            raise InvalidRequest(
                f"its tokenizer is of the kind {kind!r}, which is not read: only gpt2, llama and gemma4 are"
            )
        found.add_special_tokens(self._added(CONTROL, UNKNOWN))
        found.add_tokens(self._added(USER_DEFINED))
        if found.get_vocab_size() != len(self.tokens):
            raise InvalidRequest("its vocabulary has tokens that cannot be added")
        self._begin_and_end(found)
        return found

    def special(self) -> dict[str, str]:
        """Return the tokens that have a role, as a tokenizer_config.json names them."""
        roles = {role.removesuffix("_id"): ident for role, ident in self.roles().items()}
        unknown = self._get("unknown_token_id")
        ids = {**roles, "unk_token": unknown if self._is_token(unknown) else None}
        return {role: self.tokens[ident] for role, ident in ids.items() if ident is not None}

    def roles(self) -> dict[str, int | None]:
        """Return the ids of tokens that have a role, as a config.json names them."""
        roles = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
        ids = {role: self._get(key) for role, key in roles.items()}
        return {role: ident if self._is_token(ident) else None for role, ident in ids.items()}

    def _is_token(self, ident: Any) -> bool:
        return isinstance(ident, int) and 0 <= ident < len(self.tokens)

    def ends(self) -> list[int]:
        """Return the tokens that end an answer: those that the file names, and those known by their own names."""
        named = [self._get(f"{key}_token_id") for key in ("eos", "eot", "eom")]
        harmony = set(self.tokens) >= HARMONY_ENDS
        names = (ENDS - {HARMONY_MESSAGE_END}) | HARMONY_ENDS if harmony else ENDS
        known = [at for at in self._of(CONTROL, USER_DEFINED) if self.tokens[at] in names]
        return list(dict.fromkeys(ident for ident in [*named, *known] if self._is_token(ident)))

    def _of(self, *kinds: int) -> Iterable[int]:
        return (at for at, kind in enumerate(self._types) if kind in kinds)

    def _added(self, *kinds: int) -> list[AddedToken]:
        phi = (
            kinds[0] == CONTROL
            and self._metadata.get("general.architecture") == "phi3"
            and self._get("model") == "llama"
        )
        names = (self.tokens[at] for at in self._of(*kinds))
        return [
            AddedToken(name, normalized=False, special=kinds[0] == CONTROL, rstrip=phi and name not in PHI_ENDS_THERE)
            for name in names
        ]

    def _byte_level(self) -> Tokenizer:
        name = self._get("pre")
        if not isinstance(name, str) or name not in SPLITS:
            raise InvalidRequest(
                f"its texts are split as {name!r} says (tokenizer.ggml.pre), which is not known here: {', '.join(SPLITS)} are"
                if name else NO_SPLIT
            )  # fmt: skip
        vocabulary = self._vocabulary()
        merges = self._listed(vocabulary)
        found = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=name in WHOLE_WORDS))
        cuts = [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in SPLITS[name]]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        found.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last])
        found.decoder = decoders.ByteLevel()
        return found

    def _listed(self, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
        """Return the merges that the file lists."""
        merges = [merge.split(" ") for merge in self._get("merges") or []]
        for merge in (one for one in merges if len(one) != 2 or not {*one, "".join(one)} <= vocabulary.keys()):
            raise InvalidRequest(f"its merge {merge} is not one of two tokens to a third")
        return [(first, second) for first, second in merges]

    def _lines(self) -> Tokenizer:
        """Return a tokenizer whose merges are listed, of lines with their spaces."""
        vocabulary = self._vocabulary()
        found = Tokenizer(self._characters(vocabulary, self._listed(vocabulary)))
        found.normalizer = normalizers.Replace(" ", SPACE)
        found.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\n]+|[\n]+"), behavior="isolated")
        found.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
        return found

    def _characters(self, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> BPE:
        """Return a model of characters, which are bytes where they are not in the vocabulary."""
        unknown = next(iter(self._of(UNKNOWN)), None)
        token = None if unknown is None else self.tokens[unknown]
        return BPE(vocab=vocabulary, merges=merges, fuse_unk=True, byte_fallback=True, unk_token=token)

    def _sentence_piece(self) -> Tokenizer:
        vocabulary, prefix = self._vocabulary(), self._get("add_space_prefix", True)
        found = Tokenizer(self._characters(vocabulary, self._merges(vocabulary)))
        spaces = [normalizers.Replace(" ", SPACE)]
        found.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), *spaces] if prefix else spaces)
        parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        found.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if prefix else parts)
        return found

    def _vocabulary(self) -> dict[str, int]:
        return {token: at for at, token in enumerate(self.tokens)}

    def _merges(self, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
        """Return the pairs that make a token, those of the best score first."""
        scores = self._get("scores")
        if scores is None:
            raise InvalidRequest("its SentencePiece vocabulary has no scores")
        normal = {self.tokens[at] for at in self._of(NORMAL)}
        pairs = (
            (-scores[vocabulary[token]], vocabulary[token], at)
            for token in normal
            for at in range(1, len(token))
            if token[:at] in normal and token[at:] in normal
        )
        return [(self.tokens[ident][:at], self.tokens[ident][at:]) for _, ident, at in sorted(pairs)]

    def _begin_and_end(self, found: Tokenizer) -> None:
        begins = self._get("model") == "llama" or self._get("pre") in BEGINS
        special, text = self.special(), ["$A"]
        if self._get("add_bos_token", begins) and "bos_token" in special:
            text = [special["bos_token"], *text]
        if self._get("add_eos_token", False) and "eos_token" in special:
            text = [*text, special["eos_token"]]
        ids = [(token, self.tokens.index(token)) for token in text if token != "$A"]
        found.post_processor = processors.TemplateProcessing(single=text, special_tokens=ids)
