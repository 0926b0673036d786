"""Two tokenizers between a draft model and its target: never a wrong id, never an exception, and mostly the right tokens."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tiers import examples
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from inferd_grammar import TokenTable
from inferd_runtime.draft_models.drafter import DraftModelDrafter, DraftModelLink
from inferd_runtime.draft_models.lengths import DraftLength
from inferd_runtime.draft_models.messages import AnswerCallback, AskDraft, DraftAnswer, DraftSpec
from inferd_runtime.engine.sampling.host_sampling import RowSampler
from inferd_runtime.speculation import bridge as bridges
from inferd_runtime.speculation.bridge import (
    MAX_BYTES,
    PIECES,
    WINDOW,
    Vocabulary,
    VocabularyBridge,
    common_prefix,
    complete_characters,
)

TEXT = (
    "The ferry left the port at noon. The captain noted a light wind, and the second engine was stopped for a while. "
    "def moving_average(values, width):\n    return [sum(values[:width]) / width]\n"
    '{"name": "Odessa Brandt", "age": 47, "city": "Port Ellery"}\n'
    "Größe, naïve, 東京 and emoji 🙂 stand between plain words; the passengers waited on the deck. "
)


def byte_level(size: int, text: str, *, split: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<end>", "<turn>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def sentence_piece(size: int, text: str) -> Tokenizer:
    """Llama's way: a space before every text, spaces as marks, bytes where a character is not known."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<end>", "<turn>", *(f"<0x{byte:02X}>" for byte in range(256))]
    plain = "".join(char for char in text if ord(char) < 128)
    trainer = trainers.BpeTrainer(vocab_size=len(special) + size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([plain], trainer)
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    text = tokenizer.to_str()
    table = TokenTable.from_tokenizer_json(
        text, vocab_size=tokenizer.get_vocab_size() + 3, eos_ids=[tokenizer.token_to_id("<end>") or 0]
    )
    plain = Tokenizer.from_str(text)
    plain.encode_special_tokens = True
    tokens = list(table.tokens)
    for byte in range(256):  # the trainer has to call them special; a model's own file does not
        number = tokenizer.token_to_id(f"<0x{byte:02X}>")
        if number is not None:
            tokens[number] = bytes([byte])
    special = {name: number for name, number in table.special_names.items() if not tokens[number]}
    return Vocabulary(tokens, special, lambda text: list(plain.encode(text, add_special_tokens=False).ids))


VOCABULARIES = {
    "words": vocabulary_of(byte_level(700, TEXT)),
    "syllables": vocabulary_of(byte_level(330, TEXT[::-1])),
    "runs": vocabulary_of(byte_level(290, TEXT, split=False)),
    "pieces": vocabulary_of(sentence_piece(250, TEXT)),
    "bytes": Vocabulary(
        [*(bytes([byte]) for byte in range(256)), b"", b""],
        {"<end>": 256, "<turn>": 257},
        lambda text: list(text.encode()),
    ),
}
PAIRS = list(itertools.permutations(VOCABULARIES, 2))


def bridge(target: str, draft: str) -> tuple[VocabularyBridge, Vocabulary, Vocabulary]:
    return VocabularyBridge(VOCABULARIES[target], VOCABULARIES[draft]), VOCABULARIES[target], VOCABULARIES[draft]


def spelled(vocabulary: Vocabulary, text: str) -> list[int]:
    tokens = vocabulary.tokenize(text.encode())
    assert tokens is not None
    return tokens


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_the_path_is_the_committed_text_however_it_arrives(target: str, draft: str) -> None:
    for size in (1, 3, 7):
        spelling, one, other = bridge(target, draft)
        tokens = spelled(one, TEXT)
        for at in range(0, len(tokens), size):
            spelling.follow(tokens[at : at + size], ())
            committed, held = one.text(tokens[: at + size]), other.text(spelling.path)
            assert committed.startswith(held)
            held.decode()  # whole characters
            assert len(committed) - len(held) <= 3, "an incomplete character at most"
        whole = spelled(other, TEXT)
        same = sum(a == b for a, b in zip(reversed(spelling.path), reversed(whole), strict=False))
        assert same >= 0.8 * len(whole), "spelled as the draft model's tokenizer spells it"


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_draft_that_knows_the_text_proposes_the_targets_tokens(target: str, draft: str) -> None:
    """Every place of the text: what is proposed continues it, and is what the target's tokenizer makes of it nearly always."""
    spelling, one, other = bridge(target, draft)
    tokens = spelled(one, TEXT)
    right = proposed = 0
    for at in range(len(tokens) - 12):
        spelling.follow(tokens[at : at + 1], ())
        rest = TEXT.encode()[len(other.text(spelling.path)) :]
        stream = other.tokenize(rest[:40][: complete_characters(rest[:40])])
        if stream is None:  # in the middle of a character
            continue
        drafted, chances = spelling.render(stream, [0.5] * len(stream), ended=False)
        assert len(chances) == len(drafted)
        assert all(0 < chance <= 1 for chance in chances)
        assert rest.startswith(one.text(drafted)) or one.text(tokens[at + 1 :]).startswith(one.text(drafted))
        proposed += len(drafted)
        right += sum(a == b for a, b in zip(drafted, tokens[at + 1 :], strict=False))
    assert proposed > len(tokens)
    assert right >= 0.9 * proposed


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_stream_that_comes_true_is_kept(target: str, draft: str) -> None:
    """The target commits what the draft model wrote, token by token of its own: nothing is ever thrown away."""
    spelling, one, other = bridge(target, draft)
    text = TEXT[:110]
    tokens, stream = spelled(one, text), spelled(other, text)
    spelling.follow(tokens[:1], ())
    stream = spelled(other, text)
    held = other.text(spelling.path)
    stream = other.tokenize(text.encode()[len(held) :]) or []
    used = 0
    for token in tokens[1:]:
        followed = spelling.follow([token], stream[used:])
        assert followed.agreed
        used += followed.used
    assert used == len(stream)
    assert other.text(spelling.path) == text.encode()


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_whatever_comes_the_bridge_proposes_text_tokens_that_go_on_from_the_committed_ones(data: st.DataObject) -> None:
    target, draft = data.draw(st.sampled_from(PAIRS))
    spelling, one, other = bridge(target, draft)
    committed: list[int] = []
    path: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        stream = data.draw(st.lists(st.integers(0, len(other.tokens) + 2), max_size=8))
        if data.draw(st.booleans()):
            text = data.draw(st.text(st.sampled_from('the a\n東🙂é{"1 <end>'), max_size=12))
            tokens = one.encode(text)
        else:
            tokens = data.draw(st.lists(st.integers(0, len(one.tokens) - 1), max_size=6))
        before = list(spelling.path)
        followed = spelling.follow(tokens, stream)
        committed += tokens
        assert spelling.path[: spelling.changed_from] == before[: spelling.changed_from]
        assert 0 <= followed.used <= len(stream)
        path = spelling.path
        assert all(0 <= token < len(other.tokens) for token in path)
        drafted, chances = spelling.render(stream, [0.5] * len(stream), ended=data.draw(st.booleans()))
        assert all(0 <= token < len(one.tokens) and one.tokens[token] for token in drafted)
        assert len(chances) == len(drafted)
        assert spelling.wanted(4) >= 2
        assert one.text(drafted) in other.text(stream)


def test_a_text_that_ends_within_a_draft_token_is_gone_on_from_there() -> None:
    spelling, _, other = bridge("bytes", "words")
    stream = spelled(other, "The ferry left the port at noon.")
    first = other.piece(stream[0])
    spelling.follow(list(first), ())
    inside = other.piece(stream[1])[:2]
    assert spelling.follow(list(inside), stream[1:]) == (0, True)
    assert other.text(spelling.path) == first
    drafted, _ = spelling.render(stream[1:], [1.0] * len(stream[1:]), ended=True)
    assert bytes(drafted) == other.text(stream)[len(first + inside) :]
    assert spelling.render(stream[2:], [1.0] * len(stream[2:]), ended=True) == ([], []), "it does not begin as it must"


def test_special_tokens_go_over_by_name_and_split_the_text() -> None:
    spelling, one, other = bridge("words", "syllables")
    turn, end = one.special["<turn>"], one.special["<end>"]
    spelling.follow([turn, *spelled(one, "The ferry"), end, turn, *spelled(one, " left the")], ())
    special = [other.special["<turn>"], other.special["<end>"], other.special["<turn>"]]
    assert [token for token in spelling.path if not other.piece(token)] == special
    assert other.text(spelling.path) == b"The ferry left the"
    stream = [*spelled(other, " port"), other.special["<end>"]]
    drafted, _ = spelling.render(stream, [1.0] * len(stream), ended=True)
    assert all(one.piece(token) for token in drafted)


def test_a_special_token_that_the_draft_model_does_not_have_is_left_out() -> None:
    target = VOCABULARIES["words"]
    spelling = VocabularyBridge(
        target, Vocabulary([bytes([byte]) for byte in range(256)], {}, lambda text: list(text.encode()))
    )
    spelling.follow([target.special["<turn>"], *spelled(target, "port")], ())
    assert spelling.path == list(b"port")


class Counted:
    """A vocabulary that counts the bytes its tokenizer reads."""

    def __init__(self, name: str, *, normalizes: bool = False) -> None:
        self.bytes = 0
        self._encode = VOCABULARIES[name].encode
        self._normalizes = normalizes
        self.vocabulary = replace(VOCABULARIES[name], encode=self.encode)

    def encode(self, text: str) -> list[int]:
        self.bytes += len(text.encode())
        return self._encode(unicodedata.normalize("NFC", text) if self._normalizes else text)


PROMPTS = {
    "plain": TEXT.encode(),
    "not UTF-8": b"\xff",
    "within characters": b"\x80",
    "what is normalised": "e\u0301 and ".encode(),
    "spaces": b" ",
    "turns": b"<turn>a",
}


@pytest.mark.parametrize("draft", ["words", "syllables", "runs", "pieces"])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_step_loop_does_not_stand_still_for_a_prompt_of_any_kind(prompt: str, draft: str) -> None:
    """The tokenizer reads so much of 100,000 bytes and no more, and a window with every step behind them."""
    target, counted = VOCABULARIES["bytes"], Counted(draft, normalizes=True)
    spelling = VocabularyBridge(target, counted.vocabulary)
    data = PROMPTS[prompt] * (100_000 // len(PROMPTS[prompt]))
    tokens = list(data)
    if prompt == "turns":
        tokens = [target.special["<turn>"], ord("a")] * 50_000
        data = b"a" * 50_000
    spelling.follow(tokens, ())
    assert counted.bytes <= 2 * (len(PIECES) + 1) * MAX_BYTES
    assert spelling._segment > 0 or data.endswith(counted.vocabulary.text(spelling.path) + spelling._unfinished)
    for token in b"a\xffb\x80c":
        counted.bytes, length = 0, len(spelling.path)
        spelling.follow([token], ())
        assert counted.bytes <= 8 * WINDOW
        assert length - spelling.changed_from <= 2 * WINDOW


@pytest.mark.parametrize("bad", [b"\xff", "e\u0301".encode()], ids=["not UTF-8", "normalised"])
@pytest.mark.parametrize("draft", ["words", "syllables", "runs", "pieces"])
def test_one_bad_place_does_not_change_how_the_rest_is_spelled(draft: str, bad: bytes) -> None:
    counted = Counted(draft, normalizes=True)
    text = (TEXT * (MAX_BYTES // len(TEXT.encode()) - 1)).encode()
    at = text.index(b"The", len(text) // 2)
    whole = counted.vocabulary.tokenize_all(text)
    spelled = counted.vocabulary.tokenize_all(text[:at] + bad + text[at:])
    assert counted.vocabulary.text(spelled) == text[:at] + bad + text[at:]
    same = whole[: common_prefix(whole, spelled)]
    assert len(counted.vocabulary.text(same)) > at - PIECES[0] - PIECES[-1]
    assert len(spelled) <= 1.15 * len(whole) + PIECES[-1]


def test_of_a_long_context_the_end_goes_over_behind_its_first_token_if_that_is_special() -> None:
    spelling, one, other = bridge("words", "syllables")
    turn, text = one.special["<turn>"], spelled(one, TEXT)
    spelling.follow([turn, *text * 200], ())
    assert spelling.path[0] == other.special["<turn>"]
    end = other.text(spelling.path[1:])
    assert (TEXT.encode() * 200).endswith(end)
    assert MAX_BYTES <= len(end) <= MAX_BYTES + 64
    short, _, _ = bridge("words", "syllables")
    short.follow(text * 9, ())
    assert abs(spelling.wanted(8) - short.wanted(8)) <= 1, "what was left out does not count as read"
    spelling.follow(text, ())
    assert other.text(spelling.path[1:]).endswith(end + TEXT.encode())
    stream = spelled(other, TEXT[:40])
    assert spelling.follow([turn, *text * 200], stream) == (0, False)
    assert spelling.path[0] == other.special["<turn>"]
    assert other.text(spelling.path[1:]) == end
    assert spelling.changed_from == 0


def test_a_draft_model_goes_on_behind_a_long_context(sampler: Callable[..., RowSampler]) -> None:
    """Its path is shorter than what it was told before: it is sent anew."""
    spelling, one, other = bridge("words", "syllables")
    post = Prophet(other, TEXT.encode() * 400)
    line = DraftModelLink(post, 1 << 16)
    spec = DraftSpec("t", sampler(), len(other.tokens))
    drafter = DraftModelDrafter(line, 1, spelling, spec, length=Eight(line.experience, most=8, overlaps=True))
    text = spelled(one, TEXT)
    drafter.observe(text)
    drafter.observe(text * 100)
    assert post._paths[1] == spelling.path
    drafter.observe(text)
    assert post._paths[1] == spelling.path
    drafter.drop()


@settings(max_examples=examples(80), deadline=None)
@given(st.data())
def test_whatever_is_left_out_the_path_is_an_end_of_the_committed_text(data: st.DataObject) -> None:
    spelling, one, other = bridge(*data.draw(st.sampled_from([pair for pair in PAIRS if "pieces" not in pair])))
    committed = b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridges, "MAX_BYTES", 24)
        for _ in range(data.draw(st.integers(1, 6))):
            tokens = [token for token in data.draw(st.lists(st.integers(2, 255), max_size=60)) if one.piece(token)]
            stream = data.draw(st.lists(st.integers(2, 255), max_size=4))
            before = list(spelling.path)
            followed = spelling.follow(tokens, stream)
            committed += one.text(tokens)
            assert committed.endswith(other.text(spelling.path) + spelling._unfinished)
            assert spelling.path[: spelling.changed_from] == before[: spelling.changed_from]
            assert followed.used <= len(stream)


def test_greedy_spelling_takes_the_longest_token_that_stands_there() -> None:
    tokens = [b"a", b"ab", b"abcd", b"b" * 100, b"", b"c"]
    vocabulary = Vocabulary(tokens, {}, lambda text: [])
    vocabulary.index()
    assert vocabulary.tokenize_all(b"ababcdcxabc") == [1, 2, 5, 1, 5]


def test_memory_beside_the_path_is_bounded() -> None:
    spelling, one, _ = bridge("words", "syllables")
    for _ in range(30):
        spelling.follow(spelled(one, TEXT), ())
        assert len(spelling._tail) <= 64


class Prophet:
    """A draft model that knows what comes: it answers in tokens of its own, and errs now and then."""

    overlaps = True
    round_trip = 0.0
    waits_on: Sequence[Any] = ()

    def __init__(self, vocabulary: Vocabulary, text: bytes) -> None:
        self._vocabulary, self._text = vocabulary, text
        self._paths: dict[int, list[int]] = {}
        self.answers = 0

    def ask(self, request: AskDraft, done: AnswerCallback) -> None:
        path = [*self._paths.get(request.sequence, [])[: request.start], *request.tokens]
        self._paths[request.sequence] = path
        rest = self._text[len(self._vocabulary.text(path)) :][:200]
        tokens = (self._vocabulary.tokenize(rest[: complete_characters(rest)]) or [])[: request.count]
        self.answers += 1
        if self.answers % 7 == 0 and tokens:
            tokens[-1] = (tokens[-1] + 1) % 256
        done(DraftAnswer(len(path), tokens, [0.9] * len(tokens), drawn=len(tokens), seconds=1e-6 * len(tokens)))

    def drop(self, sequence: int) -> None: ...
    def poll(self) -> bool:
        return False

    def close(self) -> None: ...


class Eight(DraftLength):
    measured = False

    def choose(self) -> tuple[int, bool]:
        return 8, False


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_acceptance_over_a_bridge_of_a_draft_model_that_is_nearly_always_right(
    sampler: Callable[..., RowSampler], target: str, draft: str
) -> None:
    spelling, one, other = bridge(target, draft)
    tokens = spelled(one, TEXT)
    line = DraftModelLink(Prophet(other, TEXT.encode()), 4096)
    spec = DraftSpec("t", sampler(), len(other.tokens))
    drafter = DraftModelDrafter(line, 1, spelling, spec, length=Eight(line.experience, most=8, overlaps=True))
    drafter.observe(tokens[:5])
    at, drafted, accepted, steps = 5, 0, 0, 0
    while at < len(tokens):
        guess = list(drafter.propose(8).tokens)
        right = next(
            (i for i, (a, b) in enumerate(zip(guess, tokens[at:], strict=False)) if a != b),
            min(len(guess), len(tokens) - at),
        )
        drafted, accepted, steps = drafted + len(guess), accepted + right, steps + 1
        drafter.observe(tokens[at : at + right + 1])
        at += right + 1
    assert accepted >= 0.75 * drafted
    assert len(tokens) / steps > 2.0
    assert line.counters.hits > line.counters.misses
